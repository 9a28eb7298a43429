"""Resolves the configuration of a run from the selected environment.

Precedence: the environment's `config_init` < recipe < the settings of a person < edits. The agent cannot edit
locked fields. The selection and its edits are stored in `rl/selection.json` of the home; a started run has
its own copy, which does not change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.core.processors import usable_processors
from hermes.disk.files import atomic_write, read_text
from hermes.errors import ConfigError, HermesError, UsageError
from hermes.rl.config.base_model import BASE_MODEL, check_model, chosen_model, model_field
from hermes.rl.config.fields import (
    FIXED,
    UNCHANGEABLE,
    FieldInfo,
    TrainerFields,
    checked_value,
    fields_of,
    find_field,
)
from hermes.training.options import size_defaults

if TYPE_CHECKING:
    from pydantic import BaseModel

    from hermes.config.load import Config
    from hermes.core import JSON, JSONObject
    from hermes.envs.cli.discover import Discovery
    from hermes.rl.run_config import RunConfig

POLICY = "policy"
"""The engine's name of the newest weights of a run."""
_ENVIRONMENT_FIRST = ("group_size", "batch_size", "max_eval_workers")
"""Fields that the recipe sets only if the environment does not."""
_ROLLOUTS_A_PROCESS, _MOST_ENV_PROCESSES = 64, 8
_GPU_EVAL_WORKERS = 128


@dataclass(frozen=True, slots=True)
class EnvSelection:
    """The selected environment and the edits of its fields."""

    environment: str
    file_path: str
    edits: dict[str, JSON] = field(default_factory=dict)
    """Dotted field → value."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The configuration of a run, and how each field may be changed."""

    selection: EnvSelection
    model: str
    fields: dict[str, FieldInfo]
    values: dict[str, JSON]
    """Dotted field → value."""
    classes: dict[str, type[BaseModel]]
    """Section → the class that checks it."""
    toolsets: list[str] | None
    """The default toolsets of the environment; None: it has none."""
    evaluates: bool = False
    """Whether the environment has an evaluation."""

    def section(self, name: str) -> JSONObject:
        prefix = f"{name}."
        return {
            key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)
        }

    @property
    def trainer(self) -> TrainerFields:
        return TrainerFields.model_validate(self.section("tinker"))

    def run_config(self, run: JSONObject) -> RunConfig:
        """The configuration of a run; `run` is the supervisor's section."""
        from hermes.rl.run_config import RunConfig

        sections = {name: self.section(name) for name in ("env", "tinker")}
        env = sections["env"]
        if env["max_num_workers"] == -1 and not env["synchronous"]:
            # With fewer groups in progress than a batch has, a GPU waits for environments that wait for it.
            env["max_num_workers"] = max(
                env["max_num_workers_per_node"], env["batch_size"] // env["group_size"]
            )
        if sections["tinker"]["env_replicas"] == "auto":
            mixture = run.get("mixture") or [self.selection]
            sections["tinker"]["env_replicas"] = env_processes(
                env["batch_size"] // len(mixture), usable_processors(), env["synchronous"]
            )
        fixed = {name: self.values[name] for name in FIXED}
        return RunConfig.parse(
            {**sections, "openai": [self.section("openai")], **fixed, "run": run}, self.selection.file_path
        )


def env_processes(batch_size: int, cores: int, synchronous: bool) -> int:
    """How many processes of an environment a run has unless it says so.

    A process is one core, which makes some 200 model calls a second, and takes seconds to start. Half of the
    cores are left to the engine, the trainer and the trajectory API. Replicas cannot be synchronous."""
    if synchronous:
        return 1
    return max(1, min(_MOST_ENV_PROCESSES, cores // 2, batch_size // _ROLLOUTS_A_PROCESS))


def list_environments(config: Config) -> Discovery:
    from hermes.envs.cli.discover import environment_folders, find_environments

    return find_environments(environment_folders(config.home, _folders(config)))


def listed_environment(config: Config, reference: str) -> Path | None:
    """The file of a listed environment, by its name or its own path; None if it is not listed."""
    from hermes.envs.cli.discover import find_listed

    environments = list_environments(config).environments
    path = Path(reference).expanduser()
    if path.suffix == ".py":
        real = path.resolve()
        return real if any(env.path == real for env in environments) else None
    listed = find_listed(reference, environments)
    return None if listed is None else listed.path


def select(config: Config, name: str) -> EnvSelection:
    """Selects an environment by name or file, and discards the edits of the previous one."""
    selection = find_selection(config, name)
    save(config.home, selection)
    return selection


def find_selection(config: Config, name: str) -> EnvSelection:
    """The same without saving it."""
    from hermes.envs.cli.discover import environment_folders, locate

    path = locate(name, environment_folders(config.home, _folders(config))).resolve()
    names = [env.name for env in list_environments(config).environments if env.path == path]
    label = names[0] if names else path.stem
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    selection = EnvSelection(label, str(path), {"env.wandb_name": f"{label}-{stamp}"})
    resolve(config, selection)
    return selection


def save(home: Path, selection: EnvSelection) -> None:
    data = {
        "environment": selection.environment,
        "file_path": selection.file_path,
        "edits": selection.edits,
    }
    atomic_write(_selection_path(home), json.dumps(data, indent=1))


def current_selection(home: Path) -> EnvSelection:
    """The current selection; UsageError if there is none."""
    text = read_text(_selection_path(home))
    if text is None:
        raise UsageError(
            "no environment is selected",
            "select one first: hermes rl config --env NAME (the tool: rl_select_environment)",
        )
    try:
        data = json.loads(text)
        return EnvSelection(data["environment"], data["file_path"], data["edits"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{_selection_path(home)} is damaged: {error}", "hermes rl config --env NAME"
        ) from error


def edit(config: Config, name: str, value: Any, *, unlock: bool) -> Resolved:
    """Changes one field of the selection, and saves it. LockedFieldError unless `unlock`, if it is locked."""
    resolved = with_edit(config, current_selection(config.home), name, value, unlock=unlock)
    save(config.home, resolved.selection)
    return resolved


def with_edit(config: Config, selection: EnvSelection, name: str, value: Any, *, unlock: bool) -> Resolved:
    """The same for any selection, and nothing is saved."""
    current = resolve(config, selection)
    field = find_field(name, current.fields)
    section = field.name.partition(".")[0]
    if field.name == BASE_MODEL and isinstance(value, str):
        value = check_model(config.settings.rl, value, unlock=unlock)
    locked = LockedFieldError(field, current.values[field.name])
    if field.name in UNCHANGEABLE:
        raise locked
    try:
        checked = checked_value(field, value, current.classes[section], current.section(section))
    except UsageError as error:
        raise (error if field.lock is None or unlock else locked) from error
    if field.lock is not None and not unlock:
        if checked == current.values[field.name]:
            return current
        raise locked
    return resolve(config, replace(selection, edits={**selection.edits, field.name: checked}))


def with_run_file(config: Config, selection: EnvSelection, path: Path) -> Resolved:
    """The selection edited by hermes-agent's YAML file. A person names the file: locks do not apply.

    Fields that the run sets itself (addresses, the checkpoints' folder) are not read from the file.
    """
    from hermes.rl.config.run_file import read_run_file

    classes = resolve(config, selection).classes
    written = read_run_file(path, classes["env"].model_fields).values
    values = {name: value for name, value in written.items() if name not in UNCHANGEABLE}
    return _with_edits(config, selection, values)


def apply_values(config: Config, values: Mapping[str, JSON]) -> Resolved:
    """Changes several fields of the selection at once, as a person: dotted field → value."""
    resolved = _with_edits(config, current_selection(config.home), values)
    save(config.home, resolved.selection)
    return resolved


def _with_edits(config: Config, selection: EnvSelection, values: Mapping[str, JSON]) -> Resolved:
    changed = replace(selection, edits={**selection.edits, **values})
    resolved = resolve(config, changed)
    edits = {name: resolved.values[name] for name in changed.edits}
    return replace(resolved, selection=replace(changed, edits=edits))


class LockedFieldError(UsageError):
    """Only a person may change this field, or the run sets it itself."""

    def __init__(self, field: FieldInfo, value: JSON) -> None:
        short = field.name.rpartition(".")[2]
        unlock = (
            f"leave it at {value!r}; a person can unlock it (hermes config set rl.unlock '[{short}]', or "
            "--unlock)"
        )
        super().__init__(
            f"{field.name} is locked at {value!r}: {field.lock}",
            "it has no other value" if field.name in UNCHANGEABLE else unlock,
        )
        self.value = value


def resolve(config: Config, selection: EnvSelection) -> Resolved:
    """The selection with every value decided. Loads the environment's file."""
    from hermes.envs.config import BaseEnvConfig

    settings = config.settings.rl
    defaults, server, toolsets, evaluates = _load_defaults(Path(selection.file_path))
    classes: dict[str, type[BaseModel]] = {
        "env": type(defaults),
        "openai": type(server),
        "tinker": TrainerFields,
    }
    defaults_by_section = {
        "env": defaults.model_dump(mode="json"),
        "openai": server.model_dump(mode="json"),
        "tinker": TrainerFields().model_dump(mode="json"),
    }
    model = chosen_model(settings, selection.edits)
    recipe = _recipe(model, defaults_by_section["env"], wandb=bool(config.environ.get("WANDB_API_KEY")))
    on_cpu = _runs_on_cpu(config)
    recipe["env.synchronous"] = on_cpu
    # The trainer waits for an evaluation; 16 answers at once leave a GPU idle.
    recipe["env.max_eval_workers"] = defaults.max_eval_workers if on_cpu else _GPU_EVAL_WORKERS
    for name in _ENVIRONMENT_FIRST:
        declared = BaseEnvConfig.model_fields[name].default
        if name in defaults.model_fields_set or defaults_by_section["env"][name] != declared:
            del recipe[f"env.{name}"]
    fields = {
        name: info
        for section in classes
        for name, info in fields_of(section, classes[section], defaults_by_section[section]).items()
    }
    unlocked = {find_field(name, fields).name for name in settings.unlock} - UNCHANGEABLE
    fields = {
        name: replace(
            info, default=recipe.get(name, info.default), lock=None if name in unlocked else info.lock
        )
        for name, info in fields.items()
    }
    fields[BASE_MODEL] = model_field(settings, fields[BASE_MODEL])
    values: dict[str, JSON] = {
        f"{section}.{name}": value
        for section in defaults_by_section
        for name, value in defaults_by_section[section].items()
    }
    values |= {name: value for name, value in recipe.items() if name in fields}
    fields |= FIXED
    values |= {name: info.default for name, info in FIXED.items()}
    resolved = Resolved(selection, model, fields, values, classes, toolsets, evaluates)
    return _with_values(_with_values(resolved, settings.values), selection.edits)


def check_together(resolved: Resolved) -> None:
    """UsageError if fields contradict each other, before a run is started."""
    group, batch = resolved.values["env.group_size"], resolved.values["env.batch_size"]
    if batch % group:
        raise UsageError(
            f"batch_size {batch} is not a multiple of group_size {group}",
            f"set batch_size to {max(1, round(batch / group)) * group}",
        )


def _with_values(resolved: Resolved, changes: Mapping[str, Any]) -> Resolved:
    values = dict(resolved.values)
    for name, value in changes.items():
        field = find_field(name, resolved.fields)
        if field.name in UNCHANGEABLE:
            raise LockedFieldError(field, values[field.name])
        section = field.name.partition(".")[0]
        current = replace(resolved, values=values).section(section)
        values[field.name] = checked_value(field, value, resolved.classes[section], current)
    return replace(resolved, values=values)


def _recipe(model: str, env: JSONObject, *, wandb: bool) -> JSONObject:
    """hermes-agent's values, with the trainer's own defaults for the size of the model."""
    defaults = size_defaults(model)
    return {
        "env.tokenizer_name": model,
        "env.rollout_server_url": "http://127.0.0.1:8000",
        "env.use_wandb": wandb,
        "env.max_token_length": env["max_token_length"] if defaults.small else 8192,
        "env.max_num_workers": env["max_num_workers"] if defaults.small else 2048,
        "env.worker_timeout": 3600.0,
        "env.total_steps": defaults.num_steps,
        "env.steps_per_eval": 25,
        "env.max_batches_offpolicy": 3,
        "env.inference_weight": 1.0,
        "env.eval_limit_ratio": 0.1,
        "env.group_size": defaults.group_size,
        "env.batch_size": defaults.batch_size,
        # The trainer leaves such groups out and counts them; dropped by the environment, they stall a run.
        "env.ensure_scores_are_not_same": False,
        "openai.model_name": POLICY,
        "openai.base_url": "http://127.0.0.1:8001/v1",
        "openai.api_key": "x",
        "openai.num_requests_for_eval": 256,
        "openai.timeout": 3600,
        "openai.server_type": "sglang",
        "openai.tokenizer_name": model,
        BASE_MODEL: model,
        "tinker.learning_rate": defaults.learning_rate,
        "tinker.max_token_trainer_length": defaults.max_tokens,
    }


def _runs_on_cpu(config: Config) -> bool:
    """Whether the run's own engine samples and trains on the processor, one after the other anyway."""
    from hermes.rl.machine import has_gpu
    from hermes.rl.service import service_of

    device = config.settings.rl.device
    here = service_of(config.settings.rl, config.environ) is None
    return here and (device == "cpu" or (device == "auto" and not has_gpu()))


@cache
def _try(path: str, modified_ns: int) -> None:
    """Loads the file in a child process first: whatever it does there is one error here."""
    from hermes.sandbox.child_call import call_in_child

    problem = call_in_child(f"{__name__}:try_in_child", {"path": path}, Path(path)).problem
    if problem is not None:
        raise problem


def try_in_child(report: Callable[[JSON], None], path: str) -> None:
    """Loads an environment in this process, a child of a command that is about to load it itself."""
    _load_defaults(Path(path))
    report(None)


def _load_defaults(path: Path) -> tuple[Any, Any, list[str] | None, bool]:
    """The environment's own settings, its server's, its toolsets, and whether it has an evaluation."""
    from hermes.compat import atropos
    from hermes.envs.cli.discover import BUILT_IN
    from hermes.envs.cli.run import EnvironmentFileError, has_evaluation, load_class
    from hermes.envs.servers.config import APIServerConfig
    from hermes.safety.author_import import parent_watches

    if path.is_file() and not path.is_relative_to(BUILT_IN) and not parent_watches():
        _try(str(path), path.stat().st_mtime_ns)
    atropos.install()
    cls = load_class(path)
    try:
        defaults, _ = cls.config_init()
    except HermesError:
        raise
    except Exception as error:  # code of the environment's author
        raise EnvironmentFileError(
            f"config_init of {path} fails: {type(error).__name__}: {error}", f"hermes env check {path}"
        ) from error
    toolsets = getattr(cls, "default_toolsets", None)
    named_toolsets = None if toolsets is None else list(toolsets)
    return defaults, APIServerConfig(), named_toolsets, has_evaluation(cls)


def _folders(config: Config) -> list[Path]:
    return [Path(folder).expanduser() for folder in config.settings.rl.environments]


def _selection_path(home: Path) -> Path:
    return home / "rl" / "selection.json"
