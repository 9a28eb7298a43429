"""What a loss asks of one micro-batch: which tokens after which packed rows, with which inputs.

A position of a datum is one entry. Entries of shared rows repeat the row, not its computation. An entry that
the loss cannot have a gradient at is only scored, and equal ones (a shared prompt's) are scored once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hermes.engine.attention.packing import Pack
from hermes.engine.training.losses import ResolvedLoss, trained_mask
from hermes.engine.transfer import ship
from hermes.engine.types import Datum, Ints


@dataclass(frozen=True, slots=True, eq=False)
class LossInputs:
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
) -> Iterator[LossInputs]:
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
) -> LossInputs:
    chosen = [data[batch.members[place]] for place in places]
    rows = np.concatenate([batch.rows[place] for place in places])
    targets = _stacked(chosen, "target_tokens", np.int64)
    columns = _columns(chosen, loss)
    mask = trained_mask(loss.name, columns)
    apart = np.arange(len(rows)) if score_all else np.flatnonzero(~mask)
    first, inverse = _distinct(rows[apart], targets[apart])
    indices = (rows, targets, np.flatnonzero(mask), apart[first], apart, inverse)
    rows_t, targets_t, trained, scored, into, as_, *inputs = ship((*indices, *columns.values()), device)
    members = tuple((batch.members[place], len(batch.rows[place])) for place in places)
    named = dict(zip(columns, inputs, strict=True))
    return LossInputs(members, rows_t, targets_t, named, trained, scored, into, as_)


def _distinct(rows: Ints, targets: Ints) -> tuple[Ints, Ints]:
    """Where each different (row, target) occurs, and which of these every entry is."""
    if targets.ndim > 1 or not len(rows):
        return np.arange(len(rows)), np.arange(len(rows))
    # Nearly all that share a row share its target: those are found without sorting.
    earliest = np.empty(int(rows.max()) + 1, np.int64)
    earliest[rows[::-1]] = np.arange(len(rows))[::-1]
    same = earliest[rows]
    odd = np.flatnonzero(targets[same] != targets)
    keys = rows[odd] * (int(targets.max()) + 1) + targets[odd]
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    same[odd] = odd[first][which]
    chosen = np.zeros(len(rows), np.bool_)
    chosen[same] = True
    return np.flatnonzero(chosen), (np.cumsum(chosen) - 1)[same]


def _columns(chosen: Sequence[Datum], loss: ResolvedLoss) -> dict[str, NDArray[np.generic]]:
    """What the loss reads, of all data one after the other."""
    columns: dict[str, NDArray[np.generic]] = {}
    for name in loss.kind.inputs:
        columns[name] = _stacked(chosen, name, np.float32)
    for name in loss.kind.optional:
        if any(name in datum.inputs for datum in chosen):
            columns[name] = np.concatenate([_column(datum, name, loss) for datum in chosen])
    columns["sequence"] = np.repeat(np.arange(len(chosen)), [len(datum.tokens) for datum in chosen])
    return columns


def _stacked(chosen: Sequence[Datum], name: str, dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([datum.inputs[name] for datum in chosen], dtype=dtype, casting="unsafe")


def _column(datum: Datum, name: str, loss: ResolvedLoss) -> NDArray[np.float32]:
    if name in datum.inputs:
        return datum.inputs[name].astype(np.float32)
    return np.full(len(datum.tokens), loss.config[name], dtype=np.float32)
