"""Rejects invalid training data before any work, with the datum and the field in the message."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hermes.engine.spec import ModelSpec
from hermes.engine.training.losses import LossKind, resolve
from hermes.engine.types import Datum, EngineUserError, Loss


def validate(data: Sequence[Datum], loss: Loss, spec: ModelSpec) -> None:
    """EngineUserError: the first invalid field."""
    kind = resolve(loss).kind
    with np.errstate(over="ignore"):
        if all(_has_valid_shape(datum, kind, spec) for datum in data) and _has_valid_values(data, kind, spec):
            return  # the usual case, far faster than checking each datum by itself
        for index, datum in enumerate(data):
            try:
                _check_tokens(datum, spec)
                _check_inputs(datum, loss.name, kind, spec)
            except ValueError as error:
                raise EngineUserError(f"Datum {index}: {error}.") from error


def _has_valid_shape(datum: Datum, kind: LossKind, spec: ModelSpec) -> bool:
    """Whether all inputs are present, with valid dtypes and shapes."""
    tokens, inputs = datum.tokens, datum.inputs
    targets = inputs.get("target_tokens")
    if targets is None or tokens.ndim != 1 or not 1 <= len(tokens) <= spec.max_length:
        return False
    shape = targets.shape
    if shape != tokens.shape and not (
        kind.several_targets and len(shape) == 2 and shape[0] == len(tokens) and shape[1] > 0
    ):
        return False
    if tokens.dtype.kind not in "iu" or targets.dtype.kind not in "iu":
        return False
    for name, values in inputs.items():
        if name != "target_tokens" and not (
            (name in kind.inputs or name in kind.optional)
            and values.dtype.kind in "fiu"
            and values.shape == shape
        ):
            return False
    return all(name in inputs for name in kind.inputs)


def _has_valid_values(data: Sequence[Datum], kind: LossKind, spec: ModelSpec) -> bool:
    """Whether all ids are in the vocabulary and all numbers are finite."""
    ids = [ids.ravel() for datum in data for ids in (datum.tokens, datum.inputs["target_tokens"])]
    if ids:
        tokens = np.concatenate(ids, dtype=np.int64, casting="unsafe")
        if int(tokens.min()) < 0 or int(tokens.max()) >= spec.vocab:
            return False
    for name in (*kind.inputs, *kind.optional):
        values = [datum.inputs[name].ravel() for datum in data if name in datum.inputs]
        if values and not np.isfinite(np.concatenate(values, dtype=np.float32, casting="unsafe")).all():
            return False
    return all(_is_ordered(datum, kind) for datum in data) if kind.optional else True


def _is_ordered(datum: Datum, kind: LossKind) -> bool:
    """Whether 0 ≤ low threshold ≤ high threshold, if the datum has both."""
    if not all(name in datum.inputs for name in kind.optional):
        return True
    low, high = (datum.inputs[name].astype(np.float64) for name in kind.optional)
    return bool((low >= 0).all() and (low <= high).all())


def _check_tokens(datum: Datum, spec: ModelSpec) -> None:
    tokens = datum.tokens
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise ValueError(f"tokens must be a list of integers, not {tokens.dtype} of shape {tokens.shape}")
    if not len(tokens):
        raise ValueError("it has no tokens")
    if len(tokens) > spec.max_length:
        raise ValueError(f"it has {len(tokens)} tokens; at most {spec.max_length} can be trained")
    _check_vocabulary("tokens", tokens, spec)


def _check_inputs(datum: Datum, loss_name: str, kind: LossKind, spec: ModelSpec) -> None:
    names = ("target_tokens", *kind.inputs, *kind.optional)
    missing = [name for name in names if name not in datum.inputs and name not in kind.optional]
    unknown = [name for name in datum.inputs if name not in names]
    if missing or unknown:
        fault = f"lacks {', '.join(missing)}" if missing else f"does not take {', '.join(unknown)}"
        raise ValueError(f"{loss_name} {fault}; its inputs are {', '.join(names)}")
    targets = datum.inputs["target_tokens"]
    _check_targets(targets, len(datum.tokens), loss_name, kind, spec)
    for field, values in datum.inputs.items():
        if field != "target_tokens":
            _check_reals(field, values, targets.shape)
    if kind.optional and not _is_ordered(datum, kind):
        raise ValueError(f"{kind.optional[0]} must be between 0 and {kind.optional[1]}")


def _check_targets(
    targets: NDArray[np.generic], length: int, loss_name: str, kind: LossKind, spec: ModelSpec
) -> None:
    if targets.dtype.kind not in "iu":
        raise ValueError(f"target_tokens must be integers, not {targets.dtype}")
    if targets.ndim == 2 and not kind.several_targets:
        raise ValueError(
            f"{loss_name} takes one target per position, not target_tokens of shape {targets.shape}"
        )
    if targets.ndim not in (1, 2) or len(targets) != length or 0 in targets.shape:
        raise ValueError(f"target_tokens has shape {targets.shape} for {length} tokens")
    _check_vocabulary("target_tokens", targets, spec)


def _check_reals(field: str, values: NDArray[np.generic], shape: tuple[int, ...]) -> None:
    if values.dtype.kind not in "fiu":
        raise ValueError(f"{field} must be numbers, not {values.dtype}")
    if values.shape != shape:
        raise ValueError(f"{field} has shape {values.shape}, target_tokens {shape}")
    finite = np.isfinite(values.astype(np.float32))
    if not finite.all():
        bad = np.argwhere(~finite)
        position = tuple(int(index) for index in bad[0])
        raise ValueError(f"{field} is not finite at position {position[0]} ({values[position]})")


def _check_vocabulary(field: str, values: NDArray[np.generic], spec: ModelSpec) -> None:
    ids = values.astype(np.int64, copy=False)
    if int(ids.min()) < 0 or int(ids.max()) >= spec.vocab:
        bad = np.argwhere((ids < 0) | (ids >= spec.vocab))
        position = tuple(int(index) for index in bad[0])
        raise ValueError(
            f"{field} holds {ids[position]} at position {position[0]}; the vocabulary has {spec.vocab} tokens"
        )
