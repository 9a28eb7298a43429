"""Copies of the model with an adapter merged in, so that LoRA costs nothing where tokens are drawn.

A copy keeps its place in memory and the decode graphs captured over it; adapters come and go in it. There is
one for each of the few policies that are sampled at a time: while a new one is handed over, sequences of the
last one are still running. Who was used longest ago makes room, but never for the sake of others what is
running now. A model that leaves little memory gets fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hermes.engine.lora.policy import Policy
from hermes.engine.memory import is_out_of_memory
from hermes.engine.model.llama import LlamaBackbone, merge_head, merge_layer

MOST_COPIES = 3

_SPARE = 4
"""A copy beyond the first is made only where so many times its size is free: training needs memory too."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRows:
    """Running rows on the device, at addresses that never change; [rows] each."""

    ints: Tensor
    """[6, rows]: tokens, cells, lengths, seeds, counts, and 1 where the row is real (0: padding)."""
    temperature: Tensor
    tokens: Tensor
    """What the last step drew, and under which logprob."""
    logprobs: Tensor

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> DeviceRows:
        return cls(
            torch.zeros(6, rows, dtype=torch.int64, device=device),
            torch.ones(rows, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
            torch.zeros(rows, device=device),
        )


@dataclass(slots=True, eq=False)
class Copy:
    """The model with one policy's weights, and what decodes on it."""

    backbone: LlamaBackbone
    state: DeviceRows
    policy: Policy | None = None
    """Whose weights are in it now."""
    graphs: dict[int, torch.cuda.CUDAGraph] = field(default_factory=dict)
    """A decode step, by its number of rows."""
    logits: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = field(default_factory=dict)
    """A decode step up to its logits [rows, vocab], which the graph leaves there."""


class MergedCopies:
    def __init__(self, base: LlamaBackbone, rows: int, free_bytes: Callable[[], int]) -> None:
        self._plain = Copy(base, DeviceRows.empty(rows, base.device))
        self._rows = rows
        self._free_bytes = free_bytes
        """What the device has left."""
        self._copies: list[Copy] = []
        """Longest unused first."""
        self._most = MOST_COPIES

    def of(self, policy: Policy) -> Copy | None:
        if policy.weights is None:
            return self._plain
        return next((copy for copy in self._copies if copy.policy is policy), None)

    @torch.inference_mode()
    def merge(self, policy: Policy, running: Sequence[Policy]) -> Copy | None:
        """The policy's copy, made if need be at the cost of any that is not `running`; None: no room."""
        copy = self.of(policy) or self._made(policy, running)
        if copy in self._copies:
            self._copies.remove(copy)
            self._copies.append(copy)
        return copy

    def _made(self, policy: Policy, running: Sequence[Policy]) -> Copy | None:
        copy = self._room(running)
        if copy is None:
            return None
        copy.policy = None  # a failure half-way leaves nobody's weights
        try:
            _merge_into(copy.backbone, self._plain.backbone, policy)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return None
        copy.policy = policy
        return copy

    def drop(self, policy: Policy) -> None:
        for copy in self._copies:
            if copy.policy is policy:
                copy.policy = None

    def _room(self, running: Sequence[Policy]) -> Copy | None:
        unused = [copy for copy in self._copies if copy.policy is None]
        return next(iter(unused), None) or self._new() or self._longest_unused(running)

    def _longest_unused(self, running: Sequence[Policy]) -> Copy | None:
        return next((copy for copy in self._copies if all(copy.policy is not one for one in running)), None)

    def _new(self) -> Copy | None:
        base = self._plain.backbone
        if len(self._copies) >= self._most:
            return None
        if self._copies and self._free_bytes() < _SPARE * _bytes(base):
            return None
        try:
            self._copies.append(Copy(_clone(base), DeviceRows.empty(self._rows, base.device)))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._most = len(self._copies)
            return None
        return self._copies[-1]


def _bytes(backbone: LlamaBackbone) -> int:
    """Of what a copy has for itself."""
    layers = sum(
        one.qkv.nbytes + one.o.nbytes + one.gate_up.nbytes + one.down.nbytes for one in backbone.layers
    )
    return layers + backbone.head_weight.nbytes


def _clone(base: LlamaBackbone) -> LlamaBackbone:
    """A backbone whose matrices are its own; embedding and norms are shared."""
    layers = tuple(
        replace(
            layer,
            qkv=layer.qkv.clone(),
            o=layer.o.clone(),
            gate_up=layer.gate_up.clone(),
            down=layer.down.clone(),
        )
        for layer in base.layers
    )
    return replace(base, layers=layers, head_weight=base.head_weight.clone())


def _merge_into(buffers: LlamaBackbone, base: LlamaBackbone, policy: Policy) -> None:
    """The policy's weights into buffers that keep their place, layer by layer."""
    assert policy.weights is not None
    for index, into in enumerate(buffers.layers):
        layer = merge_layer(base, index, policy.weights)
        into.qkv.copy_(layer.qkv)
        into.o.copy_(layer.o)
        into.gate_up.copy_(layer.gate_up)
        into.down.copy_(layer.down)
    buffers.head_weight.copy_(merge_head(base, policy.weights))
