"""Sums and broadcasts between the ranks of a model, also as operations that autograd knows.

All ranks make the same calls in the same order. A rank that has died ends the call with an error on the
others. No other process can take part: without a GPU for each rank they are connected by socket pairs that
they inherit, and NCCL listens on loopback for peers that know the random number in the ranks' private folder.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_TIMEOUT = timedelta(minutes=10)
"""The ranks do the same work at the same time; one that takes so much longer hangs."""

_PIECE = 1 << 20
"""Elements that the leader receives at once."""
_peers: list[socket.socket] = []
"""The leader's connections to the followers, or a follower's one to the leader; none with NCCL."""
_leads = False


def join_by_sockets(rank: int, peers: Sequence[socket.socket]) -> None:
    """Connects this process with the other ranks: rank 0 has a socket for each of them, they have one."""
    global _leads
    for peer in peers:
        peer.settimeout(_TIMEOUT.total_seconds())
    _peers[:], _leads = peers, rank == 0


def join_by_nccl(rank: int, size: int, meeting: Path) -> None:
    """Connects ranks that have a GPU each; `meeting` is a file that all of them can write."""
    os.environ["NCCL_SOCKET_IFNAME"] = "=lo"  # it would choose an interface that other machines reach
    store = dist.FileStore(str(meeting), size)  # type: ignore[attr-defined]
    dist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=_TIMEOUT)


def broadcast(values: Tensor) -> Tensor:
    """The leader's values, on every rank; overwrites those of the others."""
    if not _peers:
        dist.broadcast(values, src=0)
        return values
    flat = values.cpu().view(-1)
    for peer in _peers:
        _send(peer, flat) if _leads else _receive(peer, flat)
    return values.copy_(flat.view_as(values)) if values.is_cuda else values


def sum_in_place(values: Tensor) -> None:
    """The sum over the ranks, on every rank."""
    if not _peers:
        dist.all_reduce(values)
        return
    flat = values.cpu().view(-1)
    if _leads:
        for peer in _peers:
            for piece in torch.split(flat, _PIECE):  # a second copy of the whole may not fit
                part = torch.empty_like(piece)
                _receive(peer, part)
                piece += part
    for peer in _peers:
        _send(peer, flat)
    if not _leads:
        _receive(_peers[0], flat)
    if values.is_cuda:
        values.copy_(flat.view_as(values))


def _send(peer: socket.socket, flat: Tensor) -> None:
    peer.sendall(_bytes_of(flat))


def _receive(peer: socket.socket, flat: Tensor) -> None:
    room = _bytes_of(flat)
    while room:
        count = peer.recv_into(room)
        if not count:
            raise ConnectionError("another rank of the model has ended")
        room = room[count:]


def _bytes_of(flat: Tensor) -> memoryview:
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def sum_outputs(partial: Tensor) -> Tensor:
    """The sum over the ranks, whose gradient is that of each part. May overwrite `partial`."""
    if not partial.requires_grad:
        sum_in_place(partial)
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
        sum_in_place(total)
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
        sum_in_place(total)
        return total
