"""The adapters and policies of the engine, by id. May be used from any thread."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass

import torch

from hermes.engine.info import PolicyInfo
from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.weights import LoraWeights, Policy
from hermes.engine.types import EngineCapacityError, EngineUserError, LoraConfig


@dataclass(slots=True, eq=False)
class AdapterHandle:
    """An adapter, whose weights are created later in the compute thread."""

    id: str
    config: LoraConfig
    adapter: Adapter | None = None
    """Set by the compute thread."""

    def require_adapter(self) -> Adapter:
        """EngineUserError: creating it failed."""
        if self.adapter is None:
            raise EngineUserError(
                f"The adapter {self.id} could not be created.", "See the error of the call that created it."
            )
        return self.adapter


@dataclass(frozen=True, slots=True, eq=False)
class PolicyHandle:
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
        self._policies: dict[str, PolicyHandle] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._base = Policy(None, None, None)

    def new_adapter(self, config: LoraConfig) -> AdapterHandle:
        with self._lock:
            if len(self._adapters) >= self._max_adapters:
                raise EngineCapacityError(
                    f"The engine holds {self._max_adapters} adapters already, which is its limit.",
                    "Drop one, or start the engine with more --max-adapters.",
                )
            handle = AdapterHandle(f"adapter-{next(self._numbers)}", config)
            self._adapters[handle.id] = handle
            return handle

    def adapter(self, adapter_id: str) -> AdapterHandle:
        handle = self._adapters.get(adapter_id)
        if handle is None:
            raise EngineUserError(f"There is no adapter '{adapter_id}'.")
        return handle

    def drop_adapter(self, adapter_id: str) -> None:
        with self._lock:
            self._adapters.pop(adapter_id, None)

    def add_policy(self, weights: LoraWeights, config: LoraConfig, adapter_id: str | None) -> str:
        """Adds a policy with weights that are not changed any more; returns its id."""
        on_device = weights.to(self._device)
        applied = on_device.cast(self._dtype)
        if self._device.type == "cuda":
            applied = applied.aligned()
        size = _bytes(on_device) + (_bytes(applied) if self._dtype != torch.float32 else 0)
        with self._lock:
            policy = Policy(f"policy-{next(self._numbers)}", on_device, applied)
            assert policy.id is not None
            self._policies[policy.id] = PolicyHandle(policy, config, adapter_id, size)
            return policy.id

    def policy(self, policy_id: str) -> PolicyHandle:
        handle = self._policies.get(policy_id)
        if handle is None:
            raise EngineUserError(f"There is no policy '{policy_id}'.")
        return handle

    def sampling_policy(self, policy_id: str | None) -> Policy:
        """The policy with this id; the base model for None."""
        return self._base if policy_id is None else self.policy(policy_id).policy

    def drop_policy(self, policy_id: str) -> Policy | None:
        with self._lock:
            handle = self._policies.pop(policy_id, None)
            return handle.policy if handle else None

    @property
    def adapters(self) -> tuple[AdapterHandle, ...]:
        with self._lock:
            return tuple(self._adapters.values())

    @property
    def policies(self) -> tuple[PolicyHandle, ...]:
        with self._lock:
            return tuple(self._policies.values())


def adapter_bytes(adapter: Adapter | None) -> int:
    """Size of parameters, gradients and the optimizer's two moments."""
    return 4 * adapter.parameters.numel() * adapter.parameters.element_size() if adapter else 0


def _bytes(weights: LoraWeights) -> int:
    tensors = [t for g in weights.groups.values() for t in (g.a, *(p.b for p in g.parts if p is not None))]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
