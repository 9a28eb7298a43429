"""Packed attention on CUDA: one call of torch's variable-length kernel a layer.

Each node is a sequence of queries whose keys are the nodes above it and its own; the kernel aligns causality
to the end of the keys. Where nothing is shared, keys and values go in as they are; where something is, only
they are repeated, and their gradients are summed in a fixed order, so that results repeat bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hermes.engine.backbone import Attend
from hermes.engine.packing import Node, Pack
from hermes.engine.types import Ints
from hermes.engine.varlen import offsets, varlen


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """Which rows to repeat, and how to sum their gradients."""

    source: Tensor
    """[repeated rows]: the pack's row each one is a copy of."""
    own: Tensor
    """[T]: the copy of each row that belongs to its own node."""
    shared: Tensor
    """The rows that have more than one copy."""
    others: Tensor
    """[shared rows, most copies]: their other copies; the number of repeated rows where there are fewer."""


def varlen_attend(pack: Pack, windows: Sequence[int | None], device: torch.device) -> Attend:
    own = np.array([node.end - node.start for node in pack.nodes])
    paths = key_rows(pack.nodes)
    seen = np.array([len(path) for path in paths])
    repeat = plan_repeat(pack.nodes, paths, device) if len(paths) and (seen > own).any() else None
    cu_q, cu_k = offsets(own, device), offsets(seen, device)
    longest = int(own.max()), int(seen.max())

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if repeat is not None:
            k, v = repeat_rows(k, repeat), repeat_rows(v, repeat)
        return varlen(q, k, v, cu_q, cu_k, longest, windows[layer])

    return attend


def key_rows(nodes: Sequence[Node]) -> list[Ints]:
    """Per node, the rows of its keys in order: those of the nodes above it, then its own."""
    paths: list[Ints] = []
    above: list[Node] = []
    for node in nodes:
        above = [one for one in above if one.below >= node.below and one.end <= node.start]
        above.append(node)
        paths.append(np.concatenate([np.arange(one.start, one.end) for one in above]))
    return paths


def plan_repeat(nodes: Sequence[Node], paths: Sequence[Ints], device: torch.device) -> Repeat:
    source = np.concatenate(paths)
    ends = np.cumsum([len(path) for path in paths])
    own = np.concatenate(
        [np.arange(end - (node.end - node.start), end) for node, end in zip(nodes, ends, strict=True)]
    )
    repeated = np.ones(len(source), np.bool_)
    repeated[own] = False
    extra = np.flatnonzero(repeated)
    order = extra[np.argsort(source[extra], kind="stable")]
    shared, first, counts = np.unique(source[order], return_index=True, return_counts=True)
    others = np.full((len(shared), counts.max(initial=0)), len(source))
    number = np.arange(len(order)) - np.repeat(first, counts)
    others[np.repeat(np.arange(len(shared)), counts), number] = order
    tensors = (torch.as_tensor(one, device=device) for one in (source, own, shared, others))
    return Repeat(*tensors)


def repeat_rows(x: Tensor, repeat: Repeat) -> Tensor:
    out: Tensor = _Repeat.apply(x, repeat)  # type: ignore[no-untyped-call]
    return out


class _Repeat(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, repeat: Repeat) -> Tensor:
        ctx.repeat = repeat
        return x.index_select(0, repeat.source)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        repeat: Repeat = ctx.repeat
        out = grad.index_select(0, repeat.own)
        padded = torch.cat((grad, grad.new_zeros(1, *grad.shape[1:])))
        extra = padded[repeat.others]
        out[repeat.shared] += extra.sum(1, dtype=torch.float32).to(grad.dtype)
        return out, None
