"""The bodies that clients send. Names, types and coercions are a contract with third-party clients.

Numbers are coerced ("7" is 7, true is 1, 1 is 1.0 where a float is expected) and must be finite. Unknown
keys are dropped. Lists may differ in length: clients rely on that.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from hermes.core.json import JSON, JSONObject

MAX_LIST = 2_000
"""Groups in one post: as many as can be stored without delaying other requests."""
MIN_LEASE_S, MAX_LEASE_S = 0.001, 7 * 24 * 3600.0
MAX_RENEWED = 10_000
"""Leases in one renewal."""
_MAX_ERRORS = 20
_MAX_INPUT_CHARS = 200


Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Registration(_Body):
    """A trainer registers its run."""

    wandb_group: str
    wandb_project: str
    batch_size: int = Field(ge=1, le=10_000_000, description="sequences in a batch")
    max_token_len: Int64
    checkpoint_dir: str
    save_checkpoint_interval: Int64
    starting_step: Int64
    num_steps: Int64


class EnvRegistration(_Body):
    """An environment registers with the run."""

    max_token_length: Int64
    desired_name: str
    weight: float = Field(
        ge=-1e9, le=1e9, description="share of the rollouts, relative to the other environments"
    )
    group_size: int = Field(ge=1, le=100_000, description="sequences in one of its groups")
    min_batch_allocation: float | None = Field(
        default=None, ge=0, le=1, description="least share of every batch"
    )


class EnvReference(_Body):
    env_id: int


class LeaseReference(_Body):
    lease_id: int


class LeaseRenewal(_Body):
    """A trainer extends the leases of batches it is still using."""

    lease_ids: Annotated[list[Int64], Field(max_length=MAX_RENEWED)]
    lease_s: float = Field(ge=MIN_LEASE_S, le=MAX_LEASE_S, description="seconds from now until they expire")


def _check_message(message: JSONObject) -> JSONObject:
    if "role" not in message or "content" not in message:
        raise PydanticCustomError("message_incomplete", "a message needs 'role' and 'content'")
    return message


def _check_finite(value: JSON) -> JSON:
    """Free-form values are stored unchanged, but NaN and infinities are not JSON."""
    waiting: list[tuple[JSON, tuple[str | int, ...]]] = [(value, ())]
    while waiting:
        item, path = waiting.pop()
        if isinstance(item, float) and not math.isfinite(item):
            raise PydanticCustomError("finite_number", "Input should be a finite number", {"path": path})
        if isinstance(item, dict):
            waiting.extend((inner, (*path, key)) for key, inner in item.items())
        elif isinstance(item, list):
            waiting.extend((inner, (*path, index)) for index, inner in enumerate(item))
    return value


Free = Annotated[Any, AfterValidator(_check_finite)]
FreeObject = Annotated[dict[str, Any], AfterValidator(_check_finite)]
Message = Annotated[
    FreeObject,
    AfterValidator(_check_message),
    WithJsonSchema({"type": "object", "required": ["role", "content"], "additionalProperties": True}),
]


class _FirstErrorOnly(FailFast):
    """A long list of wrong values gives one error, not one each. Hashable, for the union with None."""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


Ints = Annotated[list[Annotated[list[int], _FirstErrorOnly()]], _FirstErrorOnly()]
Floats = Annotated[list[Annotated[list[float], _FirstErrorOnly()]], _FirstErrorOnly()]


class ScoredData(_Body):
    """One group of scored sequences. Dumped, it is what trainers receive: every key, null where absent."""

    tokens: Ints
    masks: Ints = Field(description="token id where trained, -100 elsewhere")
    scores: Annotated[list[float], _FirstErrorOnly()]
    advantages: Floats | None = None
    ref_logprobs: Floats | None = None
    messages: Annotated[list[Annotated[list[Message], _FirstErrorOnly()]], _FirstErrorOnly()] | None = None
    generation_params: FreeObject | None = None
    inference_logprobs: Floats | None = Field(default=None, description="1.0 where masked")
    overrides: Annotated[list[FreeObject], _FirstErrorOnly()] | None = None
    group_overrides: FreeObject | None = None
    images: Free = None
    env_id: int | None = None
    distill_token_ids: Annotated[list[Ints], _FirstErrorOnly()] | None = None
    distill_logprobs: Annotated[list[Floats], _FirstErrorOnly()] | None = None


def error_details(error: ValidationError) -> list[JSONObject]:
    """The errors as `detail` of a 422 response; long inputs and long lists of errors are truncated."""
    return [
        {
            "type": problem["type"],
            "loc": ["body", *problem["loc"], *problem.get("ctx", {}).get("path", ())],
            "msg": problem["msg"],
            "input": _shorten(problem["input"]),
        }
        for problem in error.errors(include_url=False)[:_MAX_ERRORS]
    ]


def _shorten(value: JSON) -> JSON:
    if isinstance(value, dict | list):
        return f"({type(value).__name__} of {len(value)})"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        value = value[: 4 * _MAX_INPUT_CHARS].decode(errors="replace")
    if isinstance(value, str) and len(value) > _MAX_INPUT_CHARS:
        return value[:_MAX_INPUT_CHARS] + "…"
    return value
