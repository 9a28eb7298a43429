"""The processes of a run as commands, from its resolved configuration.

Keys, and the token of the run's own API, are passed to a process in its environment variables, never on its
command line. The readiness of trainer
and environment is read from the API's status: whether the trainer has requested a batch, and whether the
environment is connected. If a service has the weights there is no engine: the trainer serves them to the
environment.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hermes.config.environment import ENV_REPLICA_VARIABLE, RL_RUN_VARIABLE
from hermes.core import JSONObject
from hermes.disk.files import atomic_write
from hermes.rl.budget import cost_usd
from hermes.rl.config.resolve import dump_yaml
from hermes.rl.config.run_file import TRAIN_OPTIONS
from hermes.rl.fleet.run_fleet import FLEET, RunFleet
from hermes.rl.results import saved_checkpoints
from hermes.rl.run import RlRun, last_step
from hermes.rl.service import LOCAL_KEY, engine_url, policy_url
from hermes.rl.supervise import ports
from hermes.rl.supervise.engine_process import EngineProcessOptions
from hermes.rl.supervise.process import HERMES, ProcessSpec, fetch_json
from hermes.serving.trajectory_api import TOKEN_VARIABLE
from hermes.training.checkpoints import StateFile
from hermes.training.rl import PLATEAU
from hermes.training.service.token_meter import read_tokens

_TOKEN_FILE = "api_token"
"""In the run's folder, readable by its user only."""
_API_PATIENCE_S = 300.0
"""Longer than the API takes to restart after it was killed."""
_ENV_PATIENCE_S = 900.0
"""Longer than an environment may take to start; the supervisor restarts one that exits."""
ENV = "env"
"""The process of a run's first, or only, environment."""
_OF_MIXTURE = ("min_batch_allocation", "inference_weight")
"""Fields of an environment that its share of the batches decides."""
_NEVER = 10**9
"""Steps."""
_STARVING_S = 10.0
_STEP_AND_SAVE_S = 900.0
"""Longer than a step and a checkpoint of a large model or on a busy machine take."""


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """One environment of a run, as a process."""

    process: str
    """Its name among the run's processes: `env` for the first, `env-NAME` for others."""
    file: str
    evaluates: bool
    api_name: str | None
    """Under which it registers with the trajectory API; None: whatever its class says."""

    def config_path(self, run: RlRun) -> Path:
        return run.config_path if self.process == ENV else run.folder / f"{self.process}.yaml"


def run_environments(config: JSONObject) -> list[RunEnvironment]:
    """The first is the run's own; a run without a mixture has no others."""
    run, sections = config["run"], environment_sections(config)
    first = RunEnvironment(
        ENV,
        run["environment_file"],
        bool(run.get("evaluates")),
        config["env"].get("wandb_name") if len(sections) > 1 else None,
    )
    later_environments = [
        RunEnvironment(
            f"{ENV}-{re.sub(r'[^A-Za-z0-9_-]+', '-', entry['environment'])}",
            entry["environment_file"],
            bool(entry["evaluates"]),
            entry["env"]["wandb_name"],
        )
        for entry in (run.get("mixture") or ())[1:]
    ]
    return [first, *later_environments]


class RunPlan:
    """Reads the run's configuration, and may assign a server another port."""

    def __init__(self, run: RlRun) -> None:
        self._run = run
        self._config = run.config()

    @property
    def cwd(self) -> Path:
        """Where the run was started; its folder if that no longer exists."""
        started = Path(self._config["run"]["cwd"])
        return started if started.is_dir() else self._run.folder

    @property
    def max_hours(self) -> float | None:
        hours: float | None = self._config["run"]["max_hours"]
        return hours

    def over_budget(self) -> str | None:
        """Why the run has to stop, once its budget is spent."""
        settings = self._config["run"]
        max_usd: float | None = settings["max_usd"]
        if max_usd is None or cost_usd(read_tokens(self._run.folder), settings["price"]) < max_usd:
            return None
        return f"the budget of ${max_usd:.4g} is used up"

    def progress(self) -> int:
        """Steps trained so far."""
        return last_step(self._run)

    def is_starving(self) -> bool:
        """Whether the trainer has waited for a batch for longer than an environment needs to send a group."""
        trainer = (self._api_status() or {}).get("trainer", {})
        return (trainer.get("waiting_s") or 0.0) > _STARVING_S

    def reassign_port(self, name: str) -> bool:
        """Another port for a server whose port was in use; False if it exited for another reason."""
        assigned = self._config["run"]["ports"]
        if name not in assigned or not any("it is taken" in line for line in self._run.last_lines(name, 4)):
            return False
        reserved = {port for server, port in assigned.items() if server != name}
        assigned[name] = ports.choose(assigned[name], reserved)
        write_config(self._run, with_ports(self._config))
        return True

    def processes(self) -> list[ProcessSpec]:
        """In starting order."""
        engine = [] if self._config["run"]["service"] else [self._engine()]
        return [self._api(), *engine, *self._fleet(), self._trainer(), *self._envs()]

    def _api(self) -> ProcessSpec:
        port = str(self._config["run"]["ports"]["api"])
        return ProcessSpec(
            "api",
            (*HERMES, "api", "--port", port, "--state-dir", str(self._run.folder / "api")),
            self._run.log_path("api"),
            lambda: self._api_status() is not None,
            environ=self._api_environ,
            is_server=True,
            start_patience_s=120.0,
        )

    def _engine(self) -> ProcessSpec:
        run, fields = self._config["run"], self._config.get("tinker", {})
        return ProcessSpec(
            "engine",
            (
                *(*HERMES, "engine", "serve", "--model", run["model"], "--device", run["device"]),
                *EngineProcessOptions.from_fields(fields).flags(),
                *("--port", str(run["ports"]["engine"])),
                *("--state-dir", str(self._run.folder / "engine")),
            ),
            self._run.log_path("engine"),
            lambda: fetch_json(f"{policy_url(run)}/health") is not None,
            is_server=True,
            start_patience_s=1800.0,
        )

    def _fleet(self) -> list[ProcessSpec]:
        """In front of the sampling servers, if the run has any."""
        fleet, run = RunFleet.from_fields(self._config.get("tinker", {})), self._config["run"]
        if fleet is None:
            return []
        port = run["ports"][FLEET]
        return [
            ProcessSpec(
                FLEET,
                (*HERMES, *fleet.command(engine_url(run), self._run.folder, port)),
                self._run.log_path(FLEET),
                lambda: fetch_json(f"http://127.0.0.1:{port}/health") is not None,
                is_server=True,
            )
        ]

    def _trainer(self) -> ProcessSpec:
        return ProcessSpec(
            "trainer",
            (*HERMES, *trainer_arguments(self._run, self._config)),
            self._run.log_path("trainer"),
            lambda: bool((self._api_status() or {}).get("started")),
            environ={**trainer_environ(self._config), **self._api_environ},
            completes_run=True,
            is_done=self._all_steps_made,
            finish_patience_s=_STEP_AND_SAVE_S,
        )

    def _envs(self) -> list[ProcessSpec]:
        """A process for each environment, or as many replicas of it as the run has; each is watched and
        restarted by its name."""
        count = int(self._config.get("tinker", {}).get("env_replicas") or 1)
        return [
            self._env(environment, number, count)
            for environment in run_environments(self._config)
            for number in range(1, count + 1)
        ]

    def _env(self, environment: RunEnvironment, number: int, count: int) -> ProcessSpec:
        name = environment.process if count == 1 else f"{environment.process}-{number}"
        # The trainer evaluates: the weights of one step, and the last ones too.
        no_evaluation = ("--env.steps_per_eval", str(_NEVER)) if environment.evaluates else ()
        seed = ("--env.sampling_seed", str(self._config.get("tinker", {}).get("seed", 0)))
        path = str(environment.config_path(self._run))
        # Replicas do not know of each other's groups in progress: together they would begin too many.
        overlapping = () if count == 1 else ("--env.synchronous", "false")
        fleet, run = RunFleet.from_fields(self._config.get("tinker", {})), self._config["run"]
        sampling = () if fleet is None else fleet.environment_flags(run["ports"][FLEET])
        settings = (*no_evaluation, *seed, *overlapping, *sampling)
        return ProcessSpec(
            name,
            (*HERMES, "env", "serve", environment.file, "--config", path, *settings),
            self._run.log_path(name),
            lambda: self._connected(environment) >= number,
            environ={
                **wandb_environ(self._config),
                **self._api_environ,
                RL_RUN_VARIABLE: self._run.run_id,
                ENV_REPLICA_VARIABLE: f"{number}/{count}",
                "HERMES_UNSENT_DIR": str(self._run.folder),
            },
        )

    def _api_status(self) -> JSONObject | None:
        return fetch_json(f"{self._api_url}/status", self._api_environ[TOKEN_VARIABLE])

    @cached_property
    def _api_environ(self) -> dict[str, str]:
        """The token of the run's API: another program cannot post scores, not even one of the same user."""
        path = self._run.folder / _TOKEN_FILE
        if not path.exists():
            atomic_write(path, secrets.token_hex(24) + "\n")
        return {TOKEN_VARIABLE: path.read_text().strip()}

    def _all_steps_made(self) -> bool:
        total: int = self._config["env"]["total_steps"]
        state = StateFile(self._run.folder).state()
        if state is not None and state.finished == PLATEAU:
            return True
        return any(checkpoint["step"] >= total for checkpoint in saved_checkpoints(self._run))

    def _connected(self, environment: RunEnvironment) -> int:
        """Its processes that are connected. The API numbers environments of the same name: NAME_0, NAME_1."""
        connected = [
            env["wandb_name"].rpartition("_")[0]
            for env in (self._api_status() or {}).get("envs", [])
            if env["connected"]
        ]
        return len(connected) if environment.api_name is None else connected.count(environment.api_name)

    @property
    def _api_url(self) -> str:
        url: str = self._config["env"]["rollout_server_url"]
        return url


def trainer_arguments(run: RlRun, config: JSONObject) -> tuple[str, ...]:
    """The command line of `hermes train grpo`."""
    env, tinker = config["env"], config["tinker"]
    flags = {
        option.replace("_", "-"): config[field.partition(".")[0]].get(field.partition(".")[2])
        for field, option in TRAIN_OPTIONS.items()
    }
    flags = {
        option: ",".join(value) if option == "lora-targets" and value else value
        for option, value in flags.items()
        if value not in (None, "")
    } | {
        "base-model": config["run"]["model"],
        "name": run.run_id,
        "run-dir": run.folder,
        "base-url": engine_url(config["run"]),
        "api-patience": _API_PATIENCE_S,
        "env-patience": _ENV_PATIENCE_S,
        "max-staleness": env["max_batches_offpolicy"] + 1,
        "eval-folder": env["data_dir_to_save_evals"] or run.folder / "evals",
        "title": env["wandb_name"] or run.run_id,
    }
    if config["run"]["service"]:
        flags["face-port"] = config["run"]["ports"]["trainer"]
    evaluating = [environment for environment in run_environments(config) if environment.evaluates]
    if evaluating:
        flags["eval-every"] = env["steps_per_eval"]
    evaluations = (
        word
        for environment in evaluating
        for word in (
            f"--eval-environment={environment.file}",
            f"--eval-config={environment.config_path(run)}",
        )
    )
    bounds = flags.pop("clip", None)
    clip = ("--clip", *map(str, bounds)) if bounds else ()
    sinks = (f"--sink={name}" for name in tinker["sinks"])
    words = (f"--{name}={value}" for name, value in flags.items())
    return ("train", "grpo", *words, *evaluations, *clip, *sinks)


def trainer_environ(config: JSONObject) -> dict[str, str]:
    """The key of a service is read by `hermes train` itself; the run's own engine accepts any."""
    key = {} if config["run"]["service"] else {"TINKER_API_KEY": LOCAL_KEY}
    return {**key, **wandb_environ(config)}


def wandb_environ(config: JSONObject) -> dict[str, str]:
    """Disables uploads if W&B is off, even if there is a key."""
    if "wandb-offline" in config["tinker"]["sinks"]:
        return {"WANDB_MODE": "offline"}
    return {} if config["env"]["use_wandb"] else {"WANDB_MODE": "disabled"}


def with_ports(config: JSONObject) -> JSONObject:
    """The configuration with the addresses that follow from the run's ports."""
    run = config["run"]
    for section in environment_sections(config).values():
        section["rollout_server_url"] = f"http://127.0.0.1:{run['ports']['api']}"
    config["openai"][0]["base_url"] = f"{policy_url(run)}/v1"
    return config


def environment_sections(config: JSONObject) -> dict[str, JSONObject]:
    """The section `env` of each environment of the run, by the environment's name; the first is the run's."""
    mixture = config["run"].get("mixture") or ()
    later_sections = {entry["environment"]: entry["env"] for entry in mixture[1:]}
    return {config["run"].get("environment", ENV): config["env"], **later_sections}


def write_config(run: RlRun, config: JSONObject) -> None:
    """Of a run with several environments each has a file of its own; the first has the run's."""
    mixture = config["run"].get("mixture") or ()
    for entry, environment in zip(mixture, run_environments(config) if mixture else (), strict=True):
        if environment.process == ENV:
            config["env"] |= {name: entry["env"][name] for name in _OF_MIXTURE}
        else:
            env_config = {**config, "env": entry["env"], "run": {**config["run"], "mixture": None}}
            atomic_write(environment.config_path(run), dump_yaml(env_config))
    atomic_write(run.config_path, dump_yaml(config))
