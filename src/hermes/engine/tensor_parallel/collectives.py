"""Sums and broadcasts between the ranks of a model, also as operations that autograd knows.

All ranks make the same calls in the same order. A rank that has died ends the call with an error on the
others.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_TIMEOUT = timedelta(minutes=10)
"""The ranks do the same work at the same time; one that takes so much longer hangs."""


def join_ranks(rank: int, size: int, meeting: Path, *, own_gpus: bool) -> None:
    """Connects this process with the other ranks; `meeting` is a file that all of them can write.

    With a GPU for each rank NCCL connects them. Otherwise gloo does, over the loopback interface.
    """
    if not own_gpus:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    store = dist.FileStore(str(meeting), size)  # type: ignore[attr-defined]
    backend = "nccl" if own_gpus else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT)


def broadcast(values: Tensor) -> Tensor:
    """The leader's values, on every rank; overwrites those of the others."""
    dist.broadcast(values, src=0)
    return values


def sum_in_place(values: Tensor) -> None:
    """The sum over the ranks, on every rank: gloo cannot send it to one rank alone from a GPU."""
    dist.all_reduce(values)


def sum_outputs(partial: Tensor) -> Tensor:
    """The sum over the ranks, whose gradient is that of each part. May overwrite `partial`."""
    if not partial.requires_grad:
        dist.all_reduce(partial)
        return partial
    total: Tensor = _SumOutputs.apply(partial)  # type: ignore[no-untyped-call]
    return total


def sum_gradients(x: Tensor) -> Tensor:
    """x, which every rank has, before each computes its own part from it: their gradients are summed."""
    same: Tensor = _SumGradients.apply(x)  # type: ignore[no-untyped-call]
    return same


class _SumOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor) -> Tensor:
        total = partial.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class _SumGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total
