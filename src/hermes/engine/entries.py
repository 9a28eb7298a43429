"""What a loss asks of one micro-batch: which tokens after which packed rows, with which inputs.

A position of a datum is one entry. Entries of shared rows repeat the row, not its computation. An entry that
the loss cannot have a gradient at is only scored, and equal ones (a shared prompt's) are scored once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hermes.engine.losses import ResolvedLoss, trained_mask
from hermes.engine.packing import Pack
from hermes.engine.types import Datum, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Those of a micro-batch with the same number of targets a position."""

    members: tuple[tuple[int, int], ...]
    """(datum, number of positions), in the order of the entries."""
    rows: Tensor
    targets: Tensor
    """[E] or [E, K]"""
    inputs: Mapping[str, Tensor]
    """Shaped like `targets`; `sequence` [E] numbers the data."""
    trained: Tensor
    """Indices of the entries that can have a gradient."""
    scored: Tensor
    """Indices of those whose logprobs are computed apart, without repetitions …"""
    scored_into: Tensor
    """… the indices they are for …"""
    scored_as: Tensor
    """… and which of `scored` each of these is."""


def gather_entries(
    data: Sequence[Datum], batch: Pack, loss: ResolvedLoss, device: torch.device, *, score_all: bool
) -> Iterator[Entries]:
    """With `score_all`, the trained entries are scored apart as well."""
    by_width: dict[tuple[int, ...], list[int]] = {}
    for place, member in enumerate(batch.members):
        by_width.setdefault(data[member].inputs["target_tokens"].shape[1:], []).append(place)
    for places in by_width.values():
        yield _gather(data, batch, places, loss, device, score_all)


def _gather(
    data: Sequence[Datum],
    batch: Pack,
    places: Sequence[int],
    loss: ResolvedLoss,
    device: torch.device,
    score_all: bool,
) -> Entries:
    chosen = [data[batch.members[place]] for place in places]
    rows = np.concatenate([batch.rows[place] for place in places])
    targets = np.concatenate([datum.inputs["target_tokens"].astype(np.int64) for datum in chosen])
    mask = np.concatenate([trained_mask(loss.name, datum.inputs) for datum in chosen])
    apart = np.arange(len(rows)) if score_all else np.flatnonzero(~mask)
    first, inverse = _distinct(rows[apart], targets[apart])
    indices = (rows, targets, np.flatnonzero(mask), apart[first], apart, inverse)
    rows_t, targets_t, *others = (torch.as_tensor(one, device=device) for one in indices)
    members = tuple((batch.members[place], len(batch.rows[place])) for place in places)
    return Entries(members, rows_t, targets_t, _inputs(chosen, loss, device), *others)


def _distinct(rows: Ints, targets: Ints) -> tuple[Ints, Ints]:
    """Where each different (row, target) occurs first, and which of these every entry is."""
    if targets.ndim > 1 or not len(rows):
        return np.arange(len(rows)), np.arange(len(rows))
    keys = rows * (int(targets.max()) + 1) + targets
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first, inverse


def _inputs(chosen: Sequence[Datum], loss: ResolvedLoss, device: torch.device) -> dict[str, Tensor]:
    names = [*loss.kind.inputs]
    names += [name for name in loss.kind.optional if any(name in datum.inputs for datum in chosen)]
    columns: dict[str, NDArray[np.generic]] = {
        name: np.concatenate([_column(datum, name, loss) for datum in chosen]) for name in names
    }
    columns["sequence"] = np.repeat(np.arange(len(chosen)), [len(datum.tokens) for datum in chosen])
    return {name: torch.as_tensor(values, device=device) for name, values in columns.items()}


def _column(datum: Datum, name: str, loss: ResolvedLoss) -> NDArray[np.float32]:
    if name in datum.inputs:
        return datum.inputs[name].astype(np.float32)
    return np.full(len(datum.tokens), loss.config[name], dtype=np.float32)
