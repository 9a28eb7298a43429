"""Copies of the model with an adapter merged in, so that LoRA costs nothing in a decode step.

A copy keeps its memory addresses and the decode graphs captured over them; adapters are merged into it one
after another. A few policies have a copy at the same time: while new weights are taken up, sequences of the
previous ones are still running. The least recently used copy is replaced, but never one of a running policy.
Fewer copies are made where the model leaves little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hermes.engine.lora.policy import Policy
from hermes.engine.memory import is_out_of_memory
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.model.merged import clone_matrices, copy_bytes, merge_into

MAX_COPIES = 3

_FREE_FACTOR = 4
"""A second copy is made only if this many times its size is free, since training needs memory too."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRows:
    """The state of running rows on the device, [rows] each, at addresses that never change.

    The integers are views of one tensor, so that they are loaded in one copy.
    """

    packed: Tensor
    """[6, rows] int64: the next six fields, in their order."""
    tokens: Tensor
    """The last sampled token, which is not in the cache yet."""
    slot_starts: Tensor
    lengths: Tensor
    """Tokens in the cache."""
    seeds: Tensor
    counts: Tensor
    """Tokens sampled so far."""
    length_steps: Tensor
    """How far a decode step advances the length: 1, and 0 for a row that is padding."""
    temperature: Tensor
    sampled_tokens: Tensor
    """What the last step sampled."""
    sampled_logprobs: Tensor

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> DeviceRows:
        return cls._from_packed(
            torch.zeros(6, rows, dtype=torch.int64, device=device),
            temperature=torch.ones(rows, device=device),
            sampled_tokens=torch.zeros(rows, dtype=torch.int64, device=device),
            sampled_logprobs=torch.zeros(rows, device=device),
        )

    def first(self, rows: int) -> DeviceRows:
        """Views of the first rows."""
        return self._from_packed(
            self.packed[:, :rows],
            temperature=self.temperature[:rows],
            sampled_tokens=self.sampled_tokens[:rows],
            sampled_logprobs=self.sampled_logprobs[:rows],
        )

    @classmethod
    def _from_packed(
        cls, packed: Tensor, *, temperature: Tensor, sampled_tokens: Tensor, sampled_logprobs: Tensor
    ) -> DeviceRows:
        tokens, slot_starts, lengths, seeds, counts, length_steps = packed.unbind()
        return cls(
            packed=packed,
            tokens=tokens,
            slot_starts=slot_starts,
            lengths=lengths,
            seeds=seeds,
            counts=counts,
            length_steps=length_steps,
            temperature=temperature,
            sampled_tokens=sampled_tokens,
            sampled_logprobs=sampled_logprobs,
        )


@dataclass(slots=True, eq=False)
class MergedCopy:
    """The model with one policy's adapter merged in, and the decode graphs captured over it."""

    backbone: LlamaBackbone
    state: DeviceRows
    policy: Policy | None = None
    """Whose adapter is merged in now."""
    graphs: dict[int, torch.cuda.CUDAGraph] = field(default_factory=dict)
    """A decode step, by its number of rows."""
    logits: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = field(default_factory=dict)
    """A decode step up to its logits [rows, vocab], by its number of rows; the tensor is the graph's
    output."""


class MergedCopies:
    def __init__(
        self, base: LlamaBackbone, rows: int, free_bytes: Callable[[], int], max_copies: int = MAX_COPIES
    ) -> None:
        self._plain = MergedCopy(base, DeviceRows.empty(rows, base.device))
        self._rows = rows
        self._free_bytes = free_bytes
        """Free memory of the device."""
        self._copies: list[MergedCopy] = []
        """Least recently used first."""
        self._max_copies = max_copies

    def get(self, policy: Policy) -> MergedCopy | None:
        if policy.weights is None:
            return self._plain
        return next((copy for copy in self._copies if copy.policy is policy), None)

    @torch.inference_mode()
    def merge(self, policy: Policy, running: Sequence[Policy]) -> MergedCopy | None:
        """The policy's copy, new or reused from a policy that is not `running`; None: no memory for one."""
        copy = self.get(policy) or self._merge_new(policy, running)
        if copy in self._copies:
            self._copies.remove(copy)
            self._copies.append(copy)
        return copy

    def _merge_new(self, policy: Policy, running: Sequence[Policy]) -> MergedCopy | None:
        copy = self._unused_copy(running)
        if copy is None:
            return None
        copy.policy = None  # after a failure half-way it holds no policy's weights
        try:
            assert policy.weights is not None
            merge_into(copy.backbone, self._plain.backbone, policy.weights)
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

    def _unused_copy(self, running: Sequence[Policy]) -> MergedCopy | None:
        unused = [copy for copy in self._copies if copy.policy is None]
        return next(iter(unused), None) or self._create() or self._least_recently_used(running)

    def _least_recently_used(self, running: Sequence[Policy]) -> MergedCopy | None:
        return next(
            (copy for copy in self._copies if all(copy.policy is not policy for policy in running)), None
        )

    def _create(self) -> MergedCopy | None:
        base = self._plain.backbone
        if base.is_quantized:  # a copy would be as large as the model was before
            return None
        if len(self._copies) >= self._max_copies:
            return None
        if self._copies and self._free_bytes() < _FREE_FACTOR * copy_bytes(base):
            return None
        try:
            self._copies.append(MergedCopy(clone_matrices(base), DeviceRows.empty(self._rows, base.device)))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._max_copies = len(self._copies)
            return None
        return self._copies[-1]
