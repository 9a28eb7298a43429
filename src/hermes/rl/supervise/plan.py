"""The processes of a run as commands, from its resolved configuration.

Keys, and the token of the run's own API, are passed to a process in its environment variables, never on its
command line. The readiness of trainer
and environment is read from the API's status: whether the trainer has requested a batch, and whether the
environment is connected. If a service has the weights there is no engine: the trainer serves them to the
environment.
"""

from __future__ import annotations

import secrets
from functools import cached_property
from pathlib import Path

from hermes.config.environment import ENV_REPLICA_VARIABLE, RL_POLICY_VARIABLE, RL_RUN_VARIABLE
from hermes.config.option import command_words
from hermes.core import JSONObject
from hermes.core.names import policy_name
from hermes.disk.files import atomic_write
from hermes.rl.budget import cost_usd
from hermes.rl.config.run_file import trainer_values
from hermes.rl.fleet.run_fleet import FLEET, RunFleet
from hermes.rl.process import HERMES, ProcessSpec
from hermes.rl.results import saved_checkpoints
from hermes.rl.run import RlRun, last_step
from hermes.rl.run_config import RunConfig, RunEnvironment
from hermes.rl.service import LOCAL_KEY
from hermes.rl.supervise import ports
from hermes.rl.supervise.engine_process import api_arguments, engine_options
from hermes.serving.fetch import fetch_json
from hermes.serving.trajectory_api import TOKEN_VARIABLE
from hermes.training.checkpoints import StateFile
from hermes.training.options import RlOptions
from hermes.training.rl import PLATEAU
from hermes.training.service.token_meter import read_tokens

_TOKEN_FILE = "api_token"
"""In the run's folder, readable by its user only."""
_API_PATIENCE_S = 300.0
"""Longer than the API takes to restart after it was killed."""
_ENV_PATIENCE_S = 900.0
"""Longer than an environment may take to start; the supervisor restarts one that exits."""
_NEVER = 10**9
"""Steps."""
_STARVING_S = 10.0
_STEP_AND_SAVE_S = 900.0
"""Longer than a step and a checkpoint of a large model or on a busy machine take."""


class RunPlan:
    """Reads the run's configuration, and may assign a server another port."""

    def __init__(self, run: RlRun) -> None:
        self._run = run
        self._config = run.config()

    @property
    def cwd(self) -> Path:
        """Where the run was started; its folder if that no longer exists."""
        started = Path(self._config.run.cwd)
        return started if started.is_dir() else self._run.folder

    @property
    def max_hours(self) -> float | None:
        return self._config.run.max_hours

    def over_budget(self) -> str | None:
        """Why the run has to stop, once its budget is spent."""
        settings, max_usd = self._config.run, self._config.run.max_usd
        if max_usd is None or cost_usd(read_tokens(self._run.folder), settings.price) < max_usd:
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
        assigned = self._config.run.ports
        if name not in assigned or not any("it is taken" in line for line in self._run.last_lines(name, 4)):
            return False
        reserved = {port for server, port in assigned.items() if server != name}
        self._config.assign_ports({**assigned, name: ports.choose(assigned[name], reserved)})
        self._config.write(self._run.folder)
        return True

    def processes(self) -> list[ProcessSpec]:
        """In starting order."""
        engine = [] if self._config.run.service else [self._engine()]
        return [self._api(), *engine, *self._fleet(), self._trainer(), *self._envs()]

    def _api(self) -> ProcessSpec:
        return ProcessSpec(
            "api",
            (*HERMES, *api_arguments(self._config.run.ports["api"], self._run.folder)),
            self._run.log_path("api"),
            lambda: self._api_status() is not None,
            environ=self._api_environ,
            is_server=True,
            start_patience_s=120.0,
        )

    def _engine(self) -> ProcessSpec:
        run = self._config.run
        options = engine_options(
            self._config.tinker,
            model=run.model,
            device=run.device,
            port=run.ports["engine"],
            state_dir=self._run.folder / "engine",
        )
        return ProcessSpec(
            "engine",
            (*HERMES, *options.arguments()),
            self._run.log_path("engine"),
            lambda: fetch_json(f"{run.policy_url}/health") is not None,
            is_server=True,
            start_patience_s=1800.0,
        )

    def _fleet(self) -> list[ProcessSpec]:
        """In front of the sampling servers, if the run has any."""
        fleet, run = RunFleet.from_fields(self._config.tinker), self._config.run
        if fleet is None:
            return []
        port = run.ports[FLEET]
        return [
            ProcessSpec(
                FLEET,
                (*HERMES, *fleet.command(run.engine_url, self._run.folder, port)),
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
        count = self._config.env_replicas
        return [
            self._env(environment, number, count)
            for environment in self._config.environments()
            for number in range(1, count + 1)
        ]

    def _env(self, environment: RunEnvironment, number: int, count: int) -> ProcessSpec:
        name = environment.process if count == 1 else f"{environment.process}-{number}"
        # The trainer evaluates: the weights of one step, and the last ones too.
        no_evaluation = ("--env.steps_per_eval", str(_NEVER)) if environment.evaluates else ()
        seed = ("--env.sampling_seed", str(self._config.tinker.seed))
        path = str(environment.config_path(self._run.folder))
        # Replicas do not know of each other's groups in progress: together they would begin too many.
        overlapping = () if count == 1 else ("--env.synchronous", "false")
        fleet = RunFleet.from_fields(self._config.tinker)
        sampling = () if fleet is None else fleet.environment_flags(self._config.run.ports[FLEET])
        settings = (*no_evaluation, *seed, *overlapping, *sampling)
        policy = policy_name(self._run.run_id, None, at_service=bool(self._config.run.service))
        return ProcessSpec(
            name,
            (*HERMES, "env", "serve", environment.file, "--config", path, *settings),
            self._run.log_path(name),
            lambda: self._connected(environment) >= number,
            environ={
                **wandb_environ(self._config),
                **self._api_environ,
                RL_RUN_VARIABLE: self._run.run_id,
                RL_POLICY_VARIABLE: policy,
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
        total = self._config.env.total_steps
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
        return self._config.env.rollout_server_url


def trainer_arguments(run: RlRun, config: RunConfig) -> tuple[str, ...]:
    """The command line of `hermes train grpo`."""
    env, evaluating = config.env, [entry for entry in config.environments() if entry.evaluates]
    sections = {"env": env, "tinker": config.tinker}
    dotted = {
        f"{section}.{name}": value
        for section, fields in sections.items()
        for name, value in fields.model_dump(mode="json").items()
    }
    values = trainer_values(dotted) | {
        "base_model": config.run.model,
        "name": run.run_id,
        "run_dir": run.folder,
        "base_url": config.run.engine_url,
        "api_patience": _API_PATIENCE_S,
        "env_patience": _ENV_PATIENCE_S,
        "max_staleness": env.max_batches_offpolicy + 1,
        "eval_folder": env.data_dir_to_save_evals or run.folder / "evals",
        "title": env.wandb_name or run.run_id,
        "openai_port": config.run.ports["trainer"] if config.run.service else None,
        "eval_every": env.steps_per_eval if evaluating else None,
        "eval_environments": tuple(environment.file for environment in evaluating),
        "eval_configs": tuple(environment.config_path(run.folder) for environment in evaluating),
        "extra_sinks": tuple(config.tinker.sinks),
    }
    return ("train", "grpo", *command_words(RlOptions, values))


def trainer_environ(config: RunConfig) -> dict[str, str]:
    """The key of a service is read by `hermes train` itself; the run's own engine accepts any."""
    key = {} if config.run.service else {"TINKER_API_KEY": LOCAL_KEY}
    return {**key, **wandb_environ(config)}


def wandb_environ(config: RunConfig) -> dict[str, str]:
    """Disables uploads if W&B is off, even if there is a key."""
    if "wandb-offline" in config.tinker.sinks:
        return {"WANDB_MODE": "offline"}
    return {} if config.env.use_wandb else {"WANDB_MODE": "disabled"}
