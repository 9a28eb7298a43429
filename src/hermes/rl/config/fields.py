"""The configuration fields of a run: their types and ranges, and which are locked and why.

A locked field is infrastructure, or decides what a run costs. A person may set it, or unlock it for the agent
(settings rl.values, rl.unlock); the agent may not.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, field_validator

from hermes.config.option import split_words
from hermes.config.settings import http_url
from hermes.core.names import did_you_mean, nearest
from hermes.errors import UsageError
from hermes.training.options import RlFields

if TYPE_CHECKING:
    from hermes.core import JSON, JSONObject

_SERVERS = "the run's own servers are found by the supervisor"
_COST = "it decides how long a run takes and what it costs"
_POLICY = "policy, tokenizer and engine have to be one model"
_COMPARABLE = "results are comparable only under the same value"
_LENGTH = "engine memory is planned for it"
_WRITES = "it names a file or folder that a run writes on this machine; a person names it"
_ADDRESS = "keys and answers are sent to it; a person names it"

LOCKS: Mapping[str, str] = MappingProxyType(
    {
        "env.tokenizer_name": _POLICY,
        "env.rollout_server_url": _SERVERS,
        "env.sampling_seed": "it is the run's own (tinker.seed)",
        "env.reward": "it names code that runs on this machine; a person names it",
        "env.terminal_backend": "it decides whether the policy's commands are isolated; a person sets it",
        "env.data_path_to_save_groups": _WRITES,
        "env.data_dir_to_save_evals": _WRITES,
        "env.judge_cache": _WRITES,
        "env.judge_base_url": _ADDRESS,
        "env.reward_model_url": _ADDRESS,
        "env.use_wandb": "it follows the key: W&B is used where WANDB_API_KEY is set",
        "env.max_token_length": _LENGTH,
        "env.max_num_workers": "the engine's own limits pace the environment",
        "env.worker_timeout": "a slow group is waited for, not paid for twice",
        "env.total_steps": _COST,
        "env.steps_per_eval": _COMPARABLE,
        "env.max_batches_offpolicy": "older groups than this teach the wrong policy",
        "env.inference_weight": "the run has one environment",
        "env.eval_limit_ratio": _COMPARABLE,
        "openai.model_name": "it is the trained policy's own name",
        "openai.base_url": _SERVERS,
        "openai.api_key": _SERVERS,
        "openai.num_requests_for_eval": _COMPARABLE,
        "openai.timeout": "a slow answer is waited for, not paid for twice",
        "openai.server_type": "only this one gives exact tokens and logprobs",
        "tinker.base_model": "a person decides which models may be trained (settings rl.model, rl.models)",
        "tinker.lora_rank": _LENGTH,
        "tinker.lora_alpha": "it scales every update, as the learning rate does",
        "tinker.lora_targets": _LENGTH,
        "tinker.learning_rate": "the default fits the model's size; a wrong one wastes the run",
        "tinker.max_token_trainer_length": _LENGTH,
        "tinker.teacher_url": "rollouts are sent there; a person names it",
        "tinker.teacher_model": "rollouts are sent there; a person names it",
        "tinker.engine_memory_gib": _LENGTH,
        "tinker.engine_kv_gib": _LENGTH,
        "tinker.engine_quantize": "it changes the base model that is trained and sampled",
        "tinker.engine_replicas": "each replica has a copy of the base model in memory",
        "tinker.engine_tensor_parallel_size": "it decides how many devices the base model needs",
        "tinker.env_replicas": "it decides how many processes a run has",
        "tinker.sampling_servers": "rollouts are sent there; a person names it",
        "tinker.sampling_server_type": "it belongs to the sampling servers",
        "tinker.sampling_folder": _WRITES,
        "tinker.checkpoint_dir": "checkpoints belong to the run's folder",
        "tinker.save_checkpoint_interval": "a run that is killed resumes from here",
    }
)
"""Dotted field → why it is locked."""

_RANGES: Mapping[str, tuple[float | None, float | None]] = MappingProxyType(
    {
        "env.group_size": (2, 1024),
        "env.batch_size": (2, 65_536),
        "env.max_token_length": (1, 1 << 20),
        "env.total_steps": (1, 1_000_000),
        "env.steps_per_eval": (1, 1_000_000),
        "env.max_batches_offpolicy": (1, 100),
        "env.eval_limit_ratio": (0, 1),
        "env.agent_temperature": (0, 2),
        "env.max_eval_workers": (1, 4096),
        "tinker.env_replicas": (1, 256),
    }
)
"""Bounds that the settings classes of environments do not declare, or only for one of several types."""


class TrainerFields(RlFields):
    """The section `tinker`: what the trainer takes, the run's engine and the sampling servers."""

    checkpoint_dir: str = Field(default="checkpoints", description="In the run's folder.")
    engine_exact: bool = Field(
        default=False,
        description="Sampler and trainer of the run's engine agree bit for bit; slower, GPU in bfloat16.",
    )
    engine_quantize: typing.Literal["none", "nf4", "int8"] = Field(
        default="none", description="The base model's layers in 4 or 8 bits, in the run's engine."
    )
    engine_replicas: int = Field(
        default=1, ge=1, le=64, description="Worker processes of the run's engine, each with the base model."
    )
    engine_tensor_parallel_size: int = Field(
        default=1, ge=1, le=64, description="Processes that divide one copy of the base model's layers."
    )
    env_replicas: typing.Annotated[int, Field(ge=1, le=256)] | typing.Literal["auto"] = Field(
        default="auto",
        description="Environment processes that make the rollouts together; auto: one for every 64 rollouts "
        "of a batch, at most half as many as there are cores, and one for a synchronous run.",
    )
    sampling_servers: typing.Annotated[list[str], BeforeValidator(split_words)] = Field(
        default_factory=list,
        description="vLLM or SGLang servers that sample for the environment; empty: the engine does.",
    )
    sampling_server_type: typing.Literal["vllm", "sglang"] = Field(
        default="vllm", description="What the sampling servers are."
    )
    sampling_folder: str = Field(
        default="",
        description="Where they read the adapters, under the same path as here; empty: in the run's folder.",
    )
    sinks: list[typing.Literal["wandb-offline", "tensorboard", "trackio"]] = Field(
        default_factory=list, description="More places for the metrics; W&B itself is on by use_wandb."
    )

    @field_validator("sampling_servers")
    @classmethod
    def _check_addresses(cls, value: list[str]) -> list[str]:
        return [http_url(address) for address in value]


@dataclass(frozen=True, slots=True)
class FieldInfo:
    name: str
    """Dotted: env.group_size, tinker.lora_rank."""
    type: str
    default: JSON
    """The environment's, or the recipe's."""
    description: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[JSON, ...] = ()
    lock: str | None = None
    """Why only a person may change it; None: it is not locked."""

    def to_json(self, value: JSON) -> JSONObject:
        data: JSONObject = {
            "name": self.name,
            "type": self.type,
            "default": self.default,
            "description": self.description,
            "current_value": value,
        }
        bounds = {"minimum": self.minimum, "maximum": self.maximum, "choices": list(self.choices) or None}
        data |= {key: bound for key, bound in bounds.items() if bound is not None}
        if self.lock is not None:
            data |= {"locked_value": value, "reason": self.lock}
        return data


FIXED: Mapping[str, FieldInfo] = MappingProxyType(
    {
        name: FieldInfo(name, "boolean", False, description, lock=why)
        for name, description, why in (
            ("slurm", "Find the servers on the nodes of a Slurm job.", "the run has servers of its own"),
            ("testing", "Answer from a table instead of a model.", "a run trains on real answers"),
        )
    }
)
"""Fields of hermes-agent that have only one value here."""
UNCHANGEABLE = frozenset({*FIXED, "env.rollout_server_url", "openai.base_url", "tinker.checkpoint_dir"})
"""Fields that nobody can change: the run sets them itself."""


def fields_of(section: str, model: type[BaseModel], defaults: Mapping[str, Any]) -> dict[str, FieldInfo]:
    """The fields of one section, by dotted name."""
    fields = {}
    for name, info in model.model_fields.items():
        dotted = f"{section}.{name}"
        low, high = _bounds(info.metadata, _RANGES.get(dotted, (None, None)))
        fields[dotted] = FieldInfo(
            dotted,
            _type_name(info.annotation),
            defaults.get(name),
            info.description or "",
            low,
            high,
            _choices(info.annotation),
            LOCKS.get(dotted) or (_WRITES if "Path" in str(info.annotation) else None),
        )
    return fields


def find_field(name: str, fields: Mapping[str, FieldInfo]) -> FieldInfo:
    """By its dotted name, or by the last part of it: the environment's field comes first."""
    for candidate in (name, f"env.{name}", f"tinker.{name}", f"openai.{name}"):
        if candidate in fields:
            return fields[candidate]
    short_names = [field.rpartition(".")[2] for field in fields]
    otherwise = "'hermes rl config' lists the fields (the tool: rl_get_current_config)"
    hint = did_you_mean(nearest(name.rpartition(".")[2], short_names), otherwise)
    raise UsageError(f"there is no field '{name}'", hint)


def checked_value(field: FieldInfo, value: Any, model: type[BaseModel], section: Mapping[str, Any]) -> Any:
    """The value converted to the field's type. UsageError with the allowed values if it is not valid.

    `section`: the values of the other fields."""
    name = field.name.partition(".")[2]
    if isinstance(value, bool) and field.type in ("integer", "number"):
        raise UsageError(f"{field.name} is a {field.type}, not {value}", field.description)
    try:
        settings = model.model_validate({**section, name: value})
    except ValidationError as error:
        problems = [problem for problem in error.errors() if problem["loc"][:1] == (name,)] or error.errors()
        message = problems[0]["msg"].lower()
        raise UsageError(f"{field.name} = {value!r}: {message}", _allowed_values(field)) from error
    converted = getattr(settings, name)
    if isinstance(converted, int | float) and not isinstance(converted, bool):
        low = -math.inf if field.minimum is None else field.minimum
        high = math.inf if field.maximum is None else field.maximum
        if not math.isfinite(converted) or not low <= converted <= high:
            raise UsageError(f"{field.name} = {value!r} is out of range", _allowed_values(field))
    return settings.model_dump(mode="json")[name]


def _allowed_values(field: FieldInfo) -> str:
    if field.choices:
        return f"one of {', '.join(map(str, field.choices))}"
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (("at least", field.minimum), ("at most", field.maximum))
        if bound is not None
    ]
    return f"{field.type}{', ' if bounds else ''}{' and '.join(bounds)}: {field.description}"


def _bounds(
    metadata: Iterable[Any], declared: tuple[float | None, float | None]
) -> tuple[float | None, float | None]:
    """The tightest bounds of the settings class and of `declared`."""
    constraints = list(metadata)
    lows = [declared[0], *(getattr(limit, key, None) for limit in constraints for key in ("ge", "gt"))]
    highs = [declared[1], *(getattr(limit, key, None) for limit in constraints for key in ("le", "lt"))]
    low = max((bound for bound in lows if bound is not None), default=None)
    return low, min((bound for bound in highs if bound is not None), default=None)


def _type_name(annotation: Any) -> str:
    parts = [part for part in typing.get_args(annotation) if part is not type(None)]
    if typing.get_origin(annotation) is typing.Literal or hasattr(annotation, "__members__"):
        return "choice"
    if typing.get_origin(annotation) in (list, tuple, dict):
        return "array" if typing.get_origin(annotation) is not dict else "object"
    if parts:
        return _type_name(parts[0])
    return {bool: "boolean", int: "integer", float: "number", str: "string"}.get(annotation, "any")


def _choices(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)
    if isinstance(annotation, type) and hasattr(annotation, "__members__"):
        return tuple(member.value for member in annotation.__members__.values())
    return ()
