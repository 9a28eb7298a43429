"""Base matrices with an adapter's deltas added: in fp32, rounded once to the model's dtype.

On a GPU one kernel merges the matrices of all layers; elsewhere torch's own products merge one after the
other. Sampling and training both merge here, so both get the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from hermes.engine.lora.weights import LoraGroup, merge_delta


@dataclass(frozen=True, slots=True)
class MergeSite:
    """A matrix to merge: `base` with the group's delta is written to `out`."""

    base: Tensor
    out: Tensor
    group: LoraGroup
    outputs: tuple[int, ...]
    """Rows of each member of the group."""

    @property
    def scales(self) -> tuple[float, ...]:
        return tuple(0.0 if part is None else part.scale for part in self.group.parts)

    @property
    def shape(self) -> tuple[object, ...]:
        """Equal for matrices that one launch merges."""
        ranks = tuple(part and part.b.shape[1] for part in self.group.parts)
        return self.base.shape, self.base.dtype, self.group.a.dtype, self.outputs, ranks, self.scales


@torch.no_grad()
def merge_sites(sites: Iterable[MergeSite]) -> None:
    alike: dict[tuple[object, ...], list[MergeSite]] = {}
    for site in sites:
        if site.base.is_cuda:
            alike.setdefault(site.shape, []).append(site)
        else:
            site.out.copy_(merge_delta(site.base, site.group, site.outputs))
    if not alike:
        return
    from hermes.engine.kernels.merge import merge

    for members in alike.values():
        matrices = [
            (
                site.base,
                site.out,
                site.group.a.contiguous(),
                tuple(None if part is None else part.b.contiguous() for part in site.group.parts),
            )
            for site in members
        ]
        merge(matrices, members[0].outputs, members[0].scales)


def merge_matrix(base: Tensor, group: LoraGroup, outputs: tuple[int, ...]) -> Tensor:
    """A new matrix: `base` with the group's delta."""
    if not base.is_cuda:
        return merge_delta(base, group, outputs)
    out = torch.empty_like(base)
    merge_sites([MergeSite(base, out, group, outputs)])
    return out
