"""What a backbone applies on top of its frozen weights: low-rank deltas, as immutable tensors.

`LoraWeights` acts on every token; `LoraSpans` gives each contiguous run of tokens its own weights, so that
one forward pass serves several adapters. Both are `LoraView`s, which is all a backbone asks for.
Linears that read the same input share one product with their stacked A matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from hermes.engine.spec import Site


class LoraDelta(Protocol):
    """What is added at one group of linears."""

    def add(self, x: Tensor, outs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The outputs [T, out] of the group's linears for input x [T, in], with the deltas added."""
        ...


class LoraView(Protocol):
    def at(self, group: Site) -> LoraDelta | None:
        """None where nothing is added."""
        ...

    def apply(self, group: Site, x: Tensor, outs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The group's outputs with whatever is added to them."""
        delta = self.at(group)
        return outs if delta is None else delta.add(x, outs)


@dataclass(frozen=True, slots=True)
class LoraPart:
    """One linear's share of a group."""

    b: Tensor
    """[out, rank]"""
    scale: float


@dataclass(frozen=True, slots=True)
class LoraGroup:
    a: Tensor
    """[sum of ranks, in]: the members' A matrices, stacked."""
    parts: tuple[LoraPart | None, ...]
    """One per member of the group; None where the adapter leaves that linear alone."""

    def spans(self) -> Iterator[tuple[slice, LoraPart | None]]:
        """Each member with its rows of `a`."""
        start = 0
        for part in self.parts:
            rank = part.b.shape[1] if part else 0
            yield slice(start, start + rank), part
            start += rank

    def add(self, x: Tensor, outs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        low = functional.linear(x, self.a.to(x.dtype))
        return tuple(
            out if part is None else torch.addmm(out, low[:, rows], part.b.to(x.dtype).t(), alpha=part.scale)
            for out, (rows, part) in zip(outs, self.spans(), strict=True)
        )


@dataclass(frozen=True, slots=True, eq=False)
class LoraWeights(LoraView):
    """One adapter's weights. Never written to after they are made."""

    groups: Mapping[Site, LoraGroup]

    def at(self, group: Site) -> LoraGroup | None:
        return self.groups.get(group)

    def cast(self, dtype: torch.dtype) -> LoraWeights:
        """The same weights in the dtype they will be applied in, to spare the cast at every use."""
        return LoraWeights(
            {
                site: LoraGroup(
                    group.a.to(dtype),
                    tuple(part and LoraPart(part.b.to(dtype), part.scale) for part in group.parts),
                )
                for site, group in self.groups.items()
            }
        )


@dataclass(frozen=True, slots=True, eq=False)
class LoraSpans(LoraView):
    """Several adapters over one packed batch: [(start, end, weights or None for the base)], without gaps."""

    spans: tuple[tuple[int, int, LoraWeights | None], ...]

    def at(self, group: Site) -> _SpanDelta | None:
        found = tuple(
            (start, end, None if weights is None else weights.at(group)) for start, end, weights in self.spans
        )
        return _SpanDelta(found) if any(delta for _, _, delta in found) else None


@dataclass(frozen=True, slots=True, eq=False)
class _SpanDelta:
    spans: tuple[tuple[int, int, LoraGroup | None], ...]

    def add(self, x: Tensor, outs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        pieces = [
            delta.add(x[start:end], tuple(out[start:end] for out in outs))
            if delta
            else tuple(out[start:end] for out in outs)
            for start, end, delta in self.spans
        ]
        return tuple(torch.cat(column) for column in zip(*pieces, strict=True))


def with_delta(base: Tensor, group: LoraGroup, outputs: tuple[int, ...]) -> Tensor:
    """Stacked weights [sum of outputs, in] with the group's part, added in fp32, in their own dtype."""
    merged = base.to(torch.float32, copy=True)
    members = zip(torch.split(merged, list(outputs)), group.spans(), strict=True)
    for member, (rows, part) in members:
        if part is not None:
            member.addmm_(part.b.float(), group.a[rows].float(), alpha=part.scale)
    return merged.to(base.dtype)
