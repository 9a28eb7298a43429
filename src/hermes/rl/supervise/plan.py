"""The parts of a run as commands, by its resolved configuration.

Keys reach a part by its environment, never by its command line. Readiness is asked where it shows: the API
says whether the trainer has asked for a batch and whether the environment is connected. Where a service has
the weights there is no engine: the trainer offers them to the environment.
"""

from __future__ import annotations

from pathlib import Path

from hermes.core import JSONObject
from hermes.core.files import atomic_write
from hermes.rl.budget import cost_usd
from hermes.rl.config.resolve import dump_yaml
from hermes.rl.config.run_file import TRAIN_OPTIONS
from hermes.rl.results import kept
from hermes.rl.run import RlRun, last_step
from hermes.rl.service import LOCAL_KEY, engine_url, policy_url
from hermes.rl.supervise import ports
from hermes.rl.supervise.part import HERMES, Part, ask
from hermes.training.service.token_meter import read_tokens

_API_PATIENCE_S = 300.0
"""Longer than the API takes to come back after it was killed."""
_ENV_PATIENCE_S = 900.0
"""Longer than an environment may take to start; the supervisor restarts one that ends."""
_STARVING_S = 10.0
_STEP_AND_SAVE_S = 900.0
"""Longer than a step and a checkpoint take, of a large model or on a busy machine."""


class RunPlan:
    """Reads the run's configuration, and may move a server to another port."""

    def __init__(self, run: RlRun) -> None:
        self._run = run
        self._config = run.config()

    @property
    def cwd(self) -> Path:
        """Where the run was started; its folder, should that be gone."""
        started = Path(self._config["run"]["cwd"])
        return started if started.is_dir() else self._run.folder

    @property
    def max_hours(self) -> float | None:
        hours: float | None = self._config["run"]["max_hours"]
        return hours

    def over_budget(self) -> str | None:
        """Why the run has to stop, once it has spent what it may."""
        about = self._config["run"]
        most: float | None = about["max_usd"]
        if most is None or cost_usd(read_tokens(self._run.folder), about["price"]) < most:
            return None
        return f"the budget of ${most:.4g} is used up"

    def progress(self) -> int:
        """Steps trained so far."""
        return last_step(self._run)

    def starving(self) -> bool:
        """Whether the trainer has polled for a batch for longer than an environment needs to send a group."""
        trainer = (ask(f"{self._api_url}/status") or {}).get("trainer", {})
        return (trainer.get("waiting_s") or 0.0) > _STARVING_S

    def move(self, part: str) -> bool:
        """Another port for a server whose own was taken; False if that is not what ended it."""
        promised = self._config["run"]["ports"]
        if part not in promised or not any("it is taken" in line for line in self._run.last_lines(part, 4)):
            return False
        others = {port for name, port in promised.items() if name != part}
        promised[part] = ports.choose(promised[part], others)
        write_config(self._run, with_ports(self._config))
        return True

    def parts(self) -> list[Part]:
        config = self._config
        parts = [self._api(), self._trainer(), self._env()]
        return parts if config["run"]["service"] else [parts[0], self._engine(), *parts[1:]]

    def _api(self) -> Part:
        port = str(self._config["run"]["ports"]["api"])
        return Part(
            "api",
            (*HERMES, "api", "--port", port, "--state-dir", str(self._run.folder / "api")),
            self._run.log_path("api"),
            lambda: ask(f"{self._api_url}/status") is not None,
            serves=True,
            start_patience_s=120.0,
        )

    def _engine(self) -> Part:
        run = self._config["run"]
        return Part(
            "engine",
            (
                *(*HERMES, "engine", "serve", "--model", run["model"], "--device", run["device"]),
                *("--port", str(run["ports"]["engine"])),
                *("--state-dir", str(self._run.folder / "engine")),
            ),
            self._run.log_path("engine"),
            lambda: ask(f"{policy_url(run)}/health") is not None,
            serves=True,
            start_patience_s=1800.0,
        )

    def _trainer(self) -> Part:
        return Part(
            "trainer",
            (*HERMES, *trainer_arguments(self._run, self._config)),
            self._run.log_path("trainer"),
            lambda: bool((ask(f"{self._api_url}/status") or {}).get("started")),
            environ=trainer_environ(self._config),
            completes=True,
            done=self._all_steps_made,
            finish_patience_s=_STEP_AND_SAVE_S,
        )

    def _env(self) -> Part:
        file = self._config["run"]["environment_file"]
        return Part(
            "env",
            (*HERMES, "env", "serve", file, "--config", str(self._run.config_path)),
            self._run.log_path("env"),
            self._env_connected,
            environ=wandb_environ(self._config),
        )

    def _all_steps_made(self) -> bool:
        total: int = self._config["env"]["total_steps"]
        return any(each["step"] >= total for each in kept(self._run))

    def _env_connected(self) -> bool:
        envs = (ask(f"{self._api_url}/status") or {}).get("envs", [])
        return any(env["connected"] for env in envs)

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
    flags = {option: value for option, value in flags.items() if value not in (None, "")} | {
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
    sinks = (f"--sink={name}" for name in tinker["sinks"])
    return ("train", "grpo", *(f"--{name}={value}" for name, value in flags.items()), *sinks)


def trainer_environ(config: JSONObject) -> dict[str, str]:
    """A service's key is where `hermes train` looks for it; the run's own engine takes any."""
    key = {} if config["run"]["service"] else {"TINKER_API_KEY": LOCAL_KEY}
    return {**key, **wandb_environ(config)}


def wandb_environ(config: JSONObject) -> dict[str, str]:
    """What is not to be uploaded is not, whatever key there is."""
    if "wandb-offline" in config["tinker"]["sinks"]:
        return {"WANDB_MODE": "offline"}
    return {} if config["env"]["use_wandb"] else {"WANDB_MODE": "disabled"}


def with_ports(config: JSONObject) -> JSONObject:
    """The configuration with every address as the run's ports say."""
    run = config["run"]
    config["env"]["rollout_server_url"] = f"http://127.0.0.1:{run['ports']['api']}"
    config["openai"][0]["base_url"] = f"{policy_url(run)}/v1"
    return config


def write_config(run: RlRun, config: JSONObject) -> None:
    atomic_write(run.config_path, dump_yaml(config))
