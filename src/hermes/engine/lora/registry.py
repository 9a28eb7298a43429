"""Which adapters and policies there are. Asked and changed from any thread."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass

import torch

from hermes.engine.info import PolicyInfo
from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.policy import Policy
from hermes.engine.lora.weights import LoraGroup, LoraPart, LoraWeights
from hermes.engine.types import EngineCapacityError, EngineUserError, LoraConfig


@dataclass(slots=True, eq=False)
class AdapterHandle:
    """An adapter from the moment it is asked for."""

    id: str
    config: LoraConfig
    made: Adapter | None = None
    """Set in the compute thread."""

    @property
    def adapter(self) -> Adapter:
        if self.made is None:
            raise EngineUserError(
                f"The adapter {self.id} could not be made.", "Look at what creating it said."
            )
        return self.made


@dataclass(frozen=True, slots=True, eq=False)
class HeldPolicy:
    policy: Policy
    config: LoraConfig
    adapter_id: str | None
    bytes: int

    @property
    def info(self) -> PolicyInfo:
        return PolicyInfo(self.policy.id or "", self.adapter_id, self.config)


class AdapterRegistry:
    def __init__(self, device: torch.device, dtype: torch.dtype, max_adapters: int) -> None:
        self._device, self._dtype = device, dtype
        self._max_adapters = max_adapters
        self._adapters: dict[str, AdapterHandle] = {}
        self._policies: dict[str, HeldPolicy] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._base = Policy(None, None, None)

    def new_adapter(self, config: LoraConfig) -> AdapterHandle:
        with self._lock:
            if len(self._adapters) >= self._max_adapters:
                raise EngineCapacityError(
                    f"The engine holds {self._max_adapters} adapters already, which is its limit.",
                    "Let go of one, or start it with more --max-adapters.",
                )
            held = AdapterHandle(f"adapter-{next(self._numbers)}", config)
            self._adapters[held.id] = held
            return held

    def adapter(self, adapter_id: str) -> AdapterHandle:
        held = self._adapters.get(adapter_id)
        if held is None:
            raise EngineUserError(f"There is no adapter '{adapter_id}'.")
        return held

    def drop_adapter(self, adapter_id: str) -> None:
        with self._lock:
            self._adapters.pop(adapter_id, None)

    def add_policy(self, weights: LoraWeights, config: LoraConfig, adapter_id: str | None) -> str:
        """Takes over weights that nobody will change any more."""
        here = _moved(weights, self._device)
        applied = here.cast(self._dtype)
        size = _bytes(here) + (_bytes(applied) if self._dtype != torch.float32 else 0)
        with self._lock:
            policy = Policy(f"policy-{next(self._numbers)}", here, applied)
            assert policy.id is not None
            self._policies[policy.id] = HeldPolicy(policy, config, adapter_id, size)
            return policy.id

    def policy(self, policy_id: str) -> HeldPolicy:
        held = self._policies.get(policy_id)
        if held is None:
            raise EngineUserError(f"There is no policy '{policy_id}'.")
        return held

    def to_sample(self, policy_id: str | None) -> Policy:
        return self._base if policy_id is None else self.policy(policy_id).policy

    def drop_policy(self, policy_id: str) -> Policy | None:
        with self._lock:
            held = self._policies.pop(policy_id, None)
            return held.policy if held else None

    @property
    def adapters(self) -> tuple[AdapterHandle, ...]:
        with self._lock:
            return tuple(self._adapters.values())

    @property
    def policies(self) -> tuple[HeldPolicy, ...]:
        with self._lock:
            return tuple(self._policies.values())


def adapter_bytes(adapter: Adapter | None) -> int:
    """Parameters, gradients and two moments."""
    return 4 * adapter.parameters.numel() * adapter.parameters.element_size() if adapter else 0


def _bytes(weights: LoraWeights) -> int:
    tensors = [t for g in weights.groups.values() for t in (g.a, *(p.b for p in g.parts if p is not None))]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _moved(weights: LoraWeights, device: torch.device) -> LoraWeights:
    return LoraWeights(
        {
            site: LoraGroup(
                group.a.to(device), tuple(p and LoraPart(p.b.to(device), p.scale) for p in group.parts)
            )
            for site, group in weights.groups.items()
        }
    )
