"""hermes-agent's one YAML file for environment and trainer, with the sections `env`, `openai` and `tinker`.

Every key is checked: an unknown one is refused by name, with the closest match. The base model is
`tinker.base_model`, or `env.tokenizer_name` as in hermes-agent. Keys of hermes-agent's files that have no
effect here are accepted (`openai.weight`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hermes.config import yaml_file
from hermes.core.names import did_you_mean, nearest
from hermes.disk.files import read_text
from hermes.errors import ConfigError
from hermes.rl.config.base_model import BASE_MODEL
from hermes.rl.config.fields import TrainerFields
from hermes.training.options import RlFields

if TYPE_CHECKING:
    from hermes.core import JSON

_ENV_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "env.rollout_server_url": "api_url",
        "env.total_steps": "num_steps",
        "env.batch_size": "batch_size",
        "env.wandb_name": "title",
        "env.data_dir_to_save_evals": "eval_folder",
    }
)
"""Field of an environment → field of `RlOptions`; those of the section `tinker` have the same name."""
_SECTIONS = ("env", "openai", "tinker")
_OTHERS = ("teacher", "run", "slurm", "testing", "max_n_completions", "proxy_url")
"""Top-level keys that the environment or the supervisor reads."""
_WITHOUT_EFFECT = ("openai.weight", "tinker.wandb_group")
_RUN_NAME = "tinker.wandb_run_name"


@dataclass(frozen=True, slots=True)
class RunFile:
    path: Path
    values: Mapping[str, JSON]
    """Dotted field → value; of several model servers the first."""
    wandb_group: str | None = None

    @property
    def base_model(self) -> str | None:
        model = self.values.get(BASE_MODEL)
        return str(model) if model else None


def read_run_file(path: Path, env_fields: Collection[str] | None = None) -> RunFile:
    """ConfigError names the file and the key that is wrong.

    `env_fields`: of the environment's settings. None: the environment is not known here and checks its own
    keys; only what looks like a misspelt common one is refused.
    """
    text = read_text(path)
    if text is None:
        raise ConfigError(f"{path} cannot be read: there is no such file", "check --config")
    data = yaml_file.parse(text, str(path)).data
    for name in data:
        if name not in (*_SECTIONS, *_OTHERS):
            raise _unknown_key(path, name, (*_SECTIONS, *_OTHERS))
    values: dict[str, Any] = {}
    for section in _SECTIONS:
        accepted = _accepted_keys(section, env_fields)
        for key, value in _section(path, section, data.get(section)).items():
            near = nearest(key, accepted, cutoff=0.8)
            if key not in accepted and (section != "env" or env_fields is not None or near):
                raise _unknown_key(path, f"{section}.{key}", [f"{section}.{name}" for name in accepted])
            values[f"{section}.{key}"] = value
    return _as_run_file(path, values)


def train_values(path: Path) -> dict[str, Any]:
    """The values of the file for `hermes train grpo`, by the fields of `RlOptions`."""
    file = read_run_file(path)
    values = trainer_values(file.values)
    offpolicy_batches = file.values.get("env.max_batches_offpolicy")
    values["max_staleness"] = None if offpolicy_batches is None else offpolicy_batches + 1
    values["no_wandb"] = file.values.get("env.use_wandb") is False or None
    values["wandb_group"] = file.wandb_group
    values["extra_sinks"] = file.values.get("tinker.sinks")
    values["sampling_url"] = file.values.get("openai.base_url")
    if (values.get("batch_size") or 0) < 1:
        values["batch_size"] = None  # -1 in an environment's settings means the trainer's default
    return {name: value for name, value in values.items() if value not in (None, "")}


def trainer_values(values: Mapping[str, JSON]) -> dict[str, Any]:
    """Fields of `RlOptions` from dotted fields of a run."""
    names = {**{f"tinker.{name}": name for name in RlFields.model_fields}, **_ENV_OPTIONS}
    return {option: values[field] for field, option in names.items() if field in values}


def _as_run_file(path: Path, values: dict[str, Any]) -> RunFile:
    group = values.get("tinker.wandb_group")
    run_name = values.pop(_RUN_NAME, None)
    for name in _WITHOUT_EFFECT:
        values.pop(name, None)
    if run_name and not values.get("env.wandb_name"):
        values["env.wandb_name"] = run_name
    model = values.get(BASE_MODEL) or values.get("env.tokenizer_name")
    if model:
        values[BASE_MODEL] = values["env.tokenizer_name"] = model
    policy = values.pop("openai.model_name", None)
    if policy not in (None, "policy", model):
        raise ConfigError(
            f"{path}: openai.model_name is {policy}, and the model that is trained is {model or 'not named'}",
            "name the same model under env.tokenizer_name and openai.model_name",
        )
    if values.get("tinker.save_checkpoint_interval") == 0:  # in hermes-agent: only at the end
        del values["tinker.save_checkpoint_interval"]
        if values.get("env.total_steps"):
            values["tinker.save_checkpoint_interval"] = values["env.total_steps"]
    return RunFile(path, MappingProxyType(values), group)


def _section(path: Path, name: str, written: Any) -> dict[str, Any]:
    if isinstance(written, list):
        written = written[0] if written else {}
    if not isinstance(written, dict | None):
        raise ConfigError(f"{path}: '{name}' is not a mapping", f"write {name}: and KEY: VALUE under it")
    return dict(written or {})


def _accepted_keys(section: str, env_fields: Collection[str] | None) -> list[str]:
    from hermes.envs.agent.config import HermesAgentEnvConfig
    from hermes.envs.servers.config import APIServerConfig

    fields: dict[str, Collection[str]] = {
        "env": env_fields if env_fields is not None else HermesAgentEnvConfig.model_fields,
        "openai": APIServerConfig.model_fields,
        "tinker": TrainerFields.model_fields,
    }
    aliases = [name.partition(".")[2] for name in (*_WITHOUT_EFFECT, _RUN_NAME) if name.startswith(section)]
    return [*fields[section], *aliases]


def _unknown_key(path: Path, name: str, accepted: Collection[str]) -> ConfigError:
    hint = did_you_mean(nearest(name, accepted)[:1], f"the keys are {', '.join(accepted)}")
    return ConfigError(f"{path}: unknown key '{name}'", hint)
