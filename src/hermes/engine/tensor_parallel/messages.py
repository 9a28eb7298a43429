"""The leader's messages to its followers: the calls to repeat, in order, pickled over a private socket pair.

A policy is sent once, before the first call that uses it, and referred to by its id from then on. Followers
answer only once, when they have loaded their parts; after that their work meets the leader's in the
collectives.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes.engine.lora.weights import Policy, WeightArrays

Command = tuple[str, tuple[Any, ...]]
"""The name of the call and its arguments."""


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    model: str
    rank: int
    size: int
    device: str
    dtype: str
    threads: int
    """The threads of the pool that computes on a CPU; 0: torch's own choice."""
    meeting: Path
    """The file by which ranks with GPUs of their own find each other."""
    own_gpus: bool
    """Whether each rank has a GPU of its own."""


@dataclass(frozen=True, slots=True)
class PolicyArrays:
    """A policy's weights, whole: each rank takes its part of them."""

    id: str
    arrays: WeightArrays


def encode_command(command: Command) -> tuple[bytes, list[Policy]]:
    """The command with ids in place of policies, and the policies that it refers to."""
    stream, policies = io.BytesIO(), dict[int, Policy]()
    pickler = _CommandPickler(stream, policies)
    pickler.dump(command)
    return stream.getvalue(), list(policies.values())


def decode_command(data: bytes, policy: Callable[[str | None], Policy]) -> Command:
    """`policy` returns the one with this id; that of the base model is None."""
    command: Command = _CommandUnpickler(io.BytesIO(data), policy).load()
    return command


class _CommandPickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, policies: dict[int, Policy]) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._policies = policies

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, Policy):
            return None
        self._policies[id(value)] = value
        return ("policy", value.id)


class _CommandUnpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, policy: Callable[[str | None], Policy]) -> None:
        super().__init__(stream)
        self._policy = policy

    def persistent_load(self, reference: Any) -> Policy:
        return self._policy(reference[1])
