"""The state of the running rows on a GPU, which decode steps read and advance without the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
    """The tokens that the last step sampled."""
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
