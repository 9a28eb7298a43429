"""The low-rank deltas that a backbone adds to its frozen weights, as immutable tensors.

`LoraWeights` applies to every token; `LoraSpans` has different weights for contiguous spans of tokens, so
that one forward pass serves several adapters. Both are `LoraView`s, the interface that a backbone uses.
Linears with the same input share one matrix product with their stacked A matrices.

A `Policy` is the base model, or one frozen version of an adapter. Between processes an adapter's weights are
numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from hermes.engine.spec import Site
from hermes.engine.types import Floats

RANK_MULTIPLE = 16
"""Ranks that a GPU multiplies without a remainder."""


class LoraDelta(Protocol):
    """The delta of one group of linears."""

    def add(self, x: Tensor, outs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The outputs [T, out] of the group's linears for input x [T, in], with the deltas added."""
        ...


class LoraView(Protocol):
    def at(self, group: Site) -> LoraDelta | None:
        """None if the group has no delta."""
        ...

    def apply(self, group: Site, x: Tensor, outs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The group's outputs with its delta added, if it has one."""
        delta = self.at(group)
        return outs if delta is None else delta.add(x, outs)


@dataclass(frozen=True, slots=True)
class LoraPart:
    """One linear of a group."""

    b: Tensor
    """[out, rank]"""
    scale: float


@dataclass(frozen=True, slots=True)
class LoraGroup:
    a: Tensor
    """[sum of ranks, in]: the members' A matrices, stacked."""
    parts: tuple[LoraPart | None, ...]
    """One per member of the group; None if the adapter does not change that linear."""

    def spans(self) -> Iterator[tuple[slice, LoraPart | None]]:
        """Each member with its rows of `a`."""
        start = 0
        for part in self.parts:
            rank = part.b.shape[1] if part else 0
            yield slice(start, start + rank), part
            start += rank

    def add(self, x: Tensor, outs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        lora_down = functional.linear(x, self.a.to(x.dtype))
        return tuple(
            out
            if part is None
            else torch.addmm(
                out, lora_down[:, rows].to(out.dtype), part.b.to(out.dtype).t(), alpha=part.scale
            )
            for out, (rows, part) in zip(outs, self.spans(), strict=True)
        )


@dataclass(frozen=True, slots=True, eq=False)
class LoraWeights(LoraView):
    """One adapter's weights, which are never changed."""

    groups: Mapping[Site, LoraGroup]

    def at(self, group: Site) -> LoraGroup | None:
        return self.groups.get(group)

    def cast(self, dtype: torch.dtype) -> LoraWeights:
        """The same weights in the dtype of the forward pass, which saves the cast at every use."""
        return self._converted(lambda matrix: matrix.to(dtype))

    def to(self, device: torch.device) -> LoraWeights:
        return self._converted(lambda matrix: matrix.to(device))

    def aligned(self) -> LoraWeights:
        """The same weights as the kernels of a GPU read them.

        Ranks are multiples of `RANK_MULTIPLE`, with zeros added, and addresses are multiples of 16 bytes.
        """
        return LoraWeights({site: _aligned_group(group) for site, group in self.groups.items()})

    @property
    def rank(self) -> int:
        """The highest rank of a linear."""
        return max(
            (part.b.shape[1] for group in self.groups.values() for part in group.parts if part), default=0
        )

    def _converted(self, convert: Callable[[Tensor], Tensor]) -> LoraWeights:
        return LoraWeights(
            {
                site: LoraGroup(
                    convert(group.a),
                    tuple(part and LoraPart(convert(part.b), part.scale) for part in group.parts),
                )
                for site, group in self.groups.items()
            }
        )


@dataclass(frozen=True, slots=True, eq=False)
class LoraSpans(LoraView):
    """Several adapters over one packed batch: [(start, end, weights or None for the base)], without gaps."""

    spans: tuple[tuple[int, int, LoraView | None], ...]

    def at(self, group: Site) -> _SpanDelta | None:
        deltas = tuple(
            (start, end, None if weights is None else weights.at(group)) for start, end, weights in self.spans
        )
        return _SpanDelta(deltas) if any(delta for _, _, delta in deltas) else None


@dataclass(frozen=True, slots=True, eq=False)
class _SpanDelta:
    spans: tuple[tuple[int, int, LoraDelta | None], ...]

    def add(self, x: Tensor, outs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        outputs = [
            delta.add(x[start:end], tuple(out[start:end] for out in outs))
            if delta
            else tuple(out[start:end] for out in outs)
            for start, end, delta in self.spans
        ]
        return tuple(torch.cat(column) for column in zip(*outputs, strict=True))


def _aligned_group(group: LoraGroup) -> LoraGroup:
    ranks = [part.b.shape[1] for part in group.parts if part]
    if any(rank % RANK_MULTIPLE for rank in ranks):
        stacked, parts = [], []
        for rows, part in group.spans():
            missing = -(rows.stop - rows.start) % RANK_MULTIPLE
            stacked.append(functional.pad(group.a[rows], (0, 0, 0, missing)))
            parts.append(part and LoraPart(functional.pad(part.b, (0, missing)), part.scale))
        group = LoraGroup(torch.cat(stacked), tuple(parts))
    return LoraGroup(
        _aligned(group.a), tuple(part and LoraPart(_aligned(part.b), part.scale) for part in group.parts)
    )


def _aligned(matrix: Tensor) -> Tensor:
    return matrix if matrix.is_contiguous() and matrix.data_ptr() % 16 == 0 else matrix.contiguous().clone()


def merge_delta(base: Tensor, group: LoraGroup, outputs: tuple[int, ...]) -> Tensor:
    """Stacked weights [sum of outputs, in] with the group's delta, added in fp32, in the dtype of `base`."""
    merged = base.to(torch.float32, copy=True)
    members = zip(torch.split(merged, list(outputs)), group.spans(), strict=True)
    for member, (rows, part) in members:
        if part is not None:
            member.addmm_(part.b.float(), group.a[rows].float(), alpha=part.scale)
    return merged.to(base.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """Weights to sample from, which never change."""

    id: str | None
    """None: the base model."""
    weights: LoraWeights | None
    """fp32; None for the base model."""
    applied: LoraWeights | None
    """The same weights in the dtype of the base model."""


WeightArrays = dict[Site, tuple[Floats, tuple[tuple[Floats, float] | None, ...]]]
"""`LoraWeights` as numpy arrays."""


def encode_weights(weights: LoraWeights) -> WeightArrays:
    return {
        site: (
            group.a.cpu().numpy(),
            tuple(None if part is None else (part.b.cpu().numpy(), part.scale) for part in group.parts),
        )
        for site, group in weights.groups.items()
    }


def decode_weights(arrays: WeightArrays) -> LoraWeights:
    return LoraWeights(
        {
            site: LoraGroup(
                torch.from_numpy(a),
                tuple(
                    None if part is None else LoraPart(torch.from_numpy(part[0]), part[1]) for part in parts
                ),
            )
            for site, (a, parts) in arrays.items()
        }
    )
