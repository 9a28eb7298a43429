"""The inputs of a loss for one micro-batch: the target tokens of packed rows, and the loss's own inputs.

Each position of a datum is one entry. Entries of several data can refer to the same row of the pack, which is
computed once. An entry where the loss has no gradient is only scored, and equal entries (of a shared prompt)
are scored once.
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
from hermes.engine.transfer import to_device
from hermes.engine.types import Datum, Ints


@dataclass(frozen=True, slots=True, eq=False)
class LossInputs:
    """The entries of a micro-batch's data with the same number of targets per position."""

    data_lengths: tuple[tuple[int, int], ...]
    """(index of the datum, number of its positions), in the order of the entries."""
    rows: Tensor
    """[E]: the row of the pack."""
    targets: Tensor
    """[E] or [E, K]"""
    columns: Mapping[str, Tensor]
    """The loss's own inputs by name, shaped like `targets`; `sequence` [E] numbers the data."""
    trained: Tensor
    """Indices of the entries that can have a gradient."""
    scored: Tensor
    """Indices of the entries whose logprobs are computed without a gradient, each distinct one once."""
    score_targets: Tensor
    """Indices of all entries that receive these logprobs."""
    score_sources: Tensor
    """For each of `score_targets`, the index into `scored`."""


def gather_loss_inputs(
    data: Sequence[Datum], batch: Pack, loss: ResolvedLoss, device: torch.device, *, score_all: bool
) -> Iterator[LossInputs]:
    """With `score_all`, the trained entries are also scored without a gradient."""
    by_width: dict[tuple[int, ...], list[int]] = {}
    for index, member in enumerate(batch.members):
        by_width.setdefault(data[member].inputs["target_tokens"].shape[1:], []).append(index)
    for indices in by_width.values():
        yield _gather(data, batch, indices, loss, device, score_all)


def _gather(
    data: Sequence[Datum],
    batch: Pack,
    indices: Sequence[int],
    loss: ResolvedLoss,
    device: torch.device,
    score_all: bool,
) -> LossInputs:
    """The entries of the pack's members at `indices`."""
    members = [data[batch.members[index]] for index in indices]
    rows = np.concatenate([batch.rows[index] for index in indices])
    targets = _concatenate(members, "target_tokens", np.int64)
    columns = _columns(members, loss)
    mask = trained_mask(loss.name, columns)
    score_targets = np.arange(len(rows)) if score_all else np.flatnonzero(~mask)
    first, sources = _distinct(rows[score_targets], targets[score_targets])
    arrays = (rows, targets, np.flatnonzero(mask), score_targets[first], score_targets, sources)
    tensors = to_device((*arrays, *columns.values()), device)
    return LossInputs(
        data_lengths=tuple((batch.members[index], len(batch.rows[index])) for index in indices),
        rows=tensors[0],
        targets=tensors[1],
        columns=dict(zip(columns, tensors[6:], strict=True)),
        trained=tensors[2],
        scored=tensors[3],
        score_targets=tensors[4],
        score_sources=tensors[5],
    )


def _distinct(rows: Ints, targets: Ints) -> tuple[Ints, Ints]:
    """The index of one entry of each distinct (row, target), and for every entry the number of its own."""
    if targets.ndim > 1 or not len(rows):
        return np.arange(len(rows)), np.arange(len(rows))
    # Nearly all entries that share a row share its target: those are found without sorting.
    earliest = np.empty(int(rows.max()) + 1, np.int64)
    earliest[rows[::-1]] = np.arange(len(rows))[::-1]
    representative = earliest[rows]
    different = np.flatnonzero(targets[representative] != targets)
    keys = rows[different] * (int(targets.max()) + 1) + targets[different]
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    representative[different] = different[first][inverse]
    distinct = np.zeros(len(rows), np.bool_)
    distinct[representative] = True
    return np.flatnonzero(distinct), (np.cumsum(distinct) - 1)[representative]


def _columns(members: Sequence[Datum], loss: ResolvedLoss) -> dict[str, NDArray[np.generic]]:
    """The loss's inputs, concatenated over the data."""
    columns: dict[str, NDArray[np.generic]] = {}
    for name in loss.kind.inputs:
        columns[name] = _concatenate(members, name, np.float32)
    for name in loss.kind.optional:
        if any(name in datum.inputs for datum in members):
            columns[name] = np.concatenate([_column(datum, name, loss) for datum in members])
    columns["sequence"] = np.repeat(np.arange(len(members)), [len(datum.tokens) for datum in members])
    return columns


def _concatenate(members: Sequence[Datum], name: str, dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([datum.inputs[name] for datum in members], dtype=dtype, casting="unsafe")


def _column(datum: Datum, name: str, loss: ResolvedLoss) -> NDArray[np.float32]:
    if name in datum.inputs:
        return datum.inputs[name].astype(np.float32)
    return np.full(len(datum.tokens), loss.config[name], dtype=np.float32)
