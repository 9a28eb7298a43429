"""What a front and its workers send each other: pickled tuples over a private socket pair.

Only a process that the front itself started has the other end. A call has a number, a name and arguments;
it is answered once with a result or an error, after any number of sampled tokens. Errors are sent as type,
message and hint, because some of them cannot be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from hermes.engine.info import EngineClosedError, EngineOptions, EngineStats
from hermes.engine.lora.weights import LoraGroup, LoraPart, LoraWeights
from hermes.engine.sampling.request import SamplerLimits
from hermes.engine.spec import ModelSpec, Site
from hermes.engine.types import EngineCapacityError, EngineUserError, Floats, NotFiniteError
from hermes.errors import HermesError, HostError

_ERRORS: dict[str, type[HermesError]] = {
    error.__name__: error
    for error in (EngineUserError, EngineCapacityError, EngineClosedError, HostError, HermesError)
}

WeightArrays = dict[Site, tuple[Floats, tuple[tuple[Floats, float] | None, ...]]]
"""`LoraWeights` as numpy arrays."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    engine: EngineOptions
    threads: int
    """Of the pool that computes on a CPU."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    spec: ModelSpec
    limits: SamplerLimits
    base_bytes: int
    device: str


@dataclass(frozen=True, slots=True)
class Call:
    number: int
    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    number: int
    kind: Literal["result", "error", "token"]
    value: Any
    stats: EngineStats | None = None
    """Of the worker, with every result and error."""


def encode_error(error: BaseException) -> tuple[str, str, str]:
    if isinstance(error, HermesError):
        return type(error).__name__, error.message, error.hint
    return "", f"{type(error).__name__}: {error}", ""


def decode_error(encoded: tuple[str, str, str]) -> HermesError:
    name, message, hint = encoded
    if name == NotFiniteError.__name__:
        return NotFiniteError()
    return _ERRORS.get(name, HermesError)(message, hint)


def encode_weights(weights: LoraWeights) -> WeightArrays:
    return {
        site: (
            group.a.cpu().numpy(),
            tuple(part and (part.b.cpu().numpy(), part.scale) for part in group.parts),
        )
        for site, group in weights.groups.items()
    }


def decode_weights(arrays: WeightArrays) -> LoraWeights:
    return LoraWeights(
        {
            site: LoraGroup(
                torch.from_numpy(a),
                tuple(part and LoraPart(torch.from_numpy(part[0]), part[1]) for part in parts),
            )
            for site, (a, parts) in arrays.items()
        }
    )
