"""Forward and backward pass over training data, which is validated, packed and split into micro-batches.

The result of a call is a sum over its data, independent of the micro-batches. Gradients are added to the
adapter only after the last micro-batch, so that a call that fails half-way has no effect. Between
micro-batches the generator yields, so that other work can use the device. A micro-batch itself pauses between
layers and between chunks of the loss, for work that needs neither the adapter nor much memory: sampling.

The inputs of a loss for one micro-batch: the target tokens of packed rows, and the loss's own inputs.

Each position of a datum is one entry. Entries of several data can refer to the same row of the pack, which is
computed once. An entry where the loss has no gradient is only scored, and equal entries (of a shared prompt)
are scored once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hermes.engine.attention.packing import Pack, pack
from hermes.engine.lora.adapter import Adapter, optim_step
from hermes.engine.lora.weights import LoraWeights
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.lm_head import Derivative, add_rows, logprobs_backward, token_logprobs
from hermes.engine.training.losses import (
    ResolvedLoss,
    losses_and_derivative,
    ratio_metrics,
    resolve,
    trained_mask,
)
from hermes.engine.training.passes import RunPass, can_pause, records_pass, run_pass
from hermes.engine.training.shared_prefix import MIN_TOKENS, SharedPrefix, common_prefix
from hermes.engine.training.validation import validate
from hermes.engine.transfer import to_device
from hermes.engine.types import Datum, Floats, Ints, Loss, TrainOutput


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


__all__ = ["forward_backward", "optim_step", "validate"]


def forward_backward(
    backbone: Backbone,
    adapter: Adapter,
    data: Sequence[Datum],
    loss: Loss,
    *,
    forward_only: bool = False,
    budget_tokens: int,
    pause: Callable[[], None] | None = None,
    run: RunPass = run_pass,
) -> Generator[None, None, TrainOutput]:
    """Adds the gradients of the loss to the adapter's; yields between micro-batches.

    Micro-batches have up to `budget_tokens` computed tokens. One that is larger, because a single sequence is
    longer, recomputes its layers in the backward pass instead of saving their activations. `pause` is called
    within a micro-batch, often, where the backbone allows it; what it raises ends the call. `run` computes
    the passes.
    """
    validate(data, loss, backbone.spec)
    gradient = None if forward_only else torch.zeros_like(adapter.gradient)
    resolved = resolve(loss)
    pause = pause if can_pause(backbone) else None
    return _ForwardBackward(backbone, adapter, data, resolved, budget_tokens, gradient, run, pause).run()


@dataclass(slots=True)
class _ForwardBackward:
    backbone: Backbone
    adapter: Adapter
    data: Sequence[Datum]
    loss: ResolvedLoss
    budget_tokens: int
    gradient: Tensor | None
    """The sum of this call; None if only logprobs are computed."""
    run_pass: RunPass
    pause: Callable[[], None] | None = None
    logprobs: list[tuple[LossInputs, Tensor]] = field(default_factory=list)
    """The logprobs of each micro-batch, on the device."""
    losses: list[Tensor] = field(default_factory=list)
    token_metrics: dict[str, list[Tensor]] = field(default_factory=dict)
    """Per metric and micro-batch: its values at trained tokens."""
    computed_tokens: int = 0
    trained_tokens: int = 0

    def run(self) -> Generator[None, None, TrainOutput]:
        longest = max((len(datum.tokens) for datum in self.data), default=0)
        # With a window shorter than a sequence, later tokens do not attend to all of a shared prefix.
        share = all(window is None or window >= longest for window in self.backbone.spec.windows)
        tokens = [datum.tokens for datum in self.data]
        size = self._shared_tokens(tokens) if share else 0
        # The prefix is in memory once, and beside it there is room for a part of a micro-batch at least.
        packs = pack(tokens, max(self.budget_tokens, size + self.budget_tokens // 4), share=share)
        prefix = self._shared_prefix(packs, tokens[0][:size]) if size else None
        for number, batch in enumerate(packs):
            if number:
                yield
            self._run_micro_batch(batch, prefix)
        if self.gradient is not None:
            if prefix is not None:
                prefix.backward(self.gradient)
            self.adapter.gradient.add_(self.gradient)
        return TrainOutput(self._logprobs(), self._metrics(), self.trained_tokens)

    def _shared_tokens(self, tokens: Sequence[Ints]) -> int:
        """The tokens of a prefix that can be computed once for all micro-batches; 0: there is none."""
        if self.gradient is None or self.run_pass is not run_pass or not records_pass(self.backbone):
            return 0
        size = min(common_prefix(tokens), min(map(len, tokens), default=1) - 1)  # each has a token of its own
        return size if size >= MIN_TOKENS else 0

    def _shared_prefix(self, packs: Sequence[Pack], prefix: Ints) -> SharedPrefix | None:
        """Computed, if the packs begin with it; None: there is one pack, or each has to compute it."""
        fits = all(len(batch.tokens) - len(prefix) <= self.budget_tokens for batch in packs)
        if not fits or (len(packs) == 1 and len(packs[0].tokens) <= self.budget_tokens):
            return None
        self.computed_tokens += len(prefix)
        return SharedPrefix(self.backbone, self.adapter, prefix).compute(self.pause)

    def _run_micro_batch(self, batch: Pack, prefix: SharedPrefix | None) -> None:
        train = self.gradient is not None
        self.computed_tokens += len(batch.tokens) - (0 if prefix is None else len(prefix.tokens))
        over_budget = train and len(batch.tokens) > self.budget_tokens
        if prefix is not None:
            training_pass = prefix.run(batch, self.pause)
        else:
            training_pass = self.run_pass(
                *(self.backbone, self.adapter, batch), train=train, checkpoint=over_budget, pause=self.pause
            )
        upstream = torch.zeros_like(training_pass.states) if train else None
        score_all = self.loss.kind.by_sequence or not train
        device = self.backbone.device
        for inputs in gather_loss_inputs(self.data, batch, self.loss, device, score_all=score_all):
            self._compute_loss(training_pass.states, inputs, training_pass.lora, upstream)
        if self.gradient is not None and upstream is not None:
            training_pass.backward(upstream, self.gradient)

    def _compute_loss(
        self, states: Tensor, inputs: LossInputs, lora: LoraWeights, upstream: Tensor | None
    ) -> None:
        """Logprobs and loss of all entries; with `upstream`, the gradients of the trained ones."""
        logprobs = torch.empty(inputs.targets.shape, dtype=torch.float32, device=states.device)
        if len(inputs.scored):
            rows, targets = inputs.rows[inputs.scored], inputs.targets[inputs.scored]
            scores = token_logprobs(states[rows], targets, self.backbone, lora, pause=self.pause)
            logprobs[inputs.score_targets] = scores[inputs.score_sources]
        if self.gradient is not None and upstream is not None and len(inputs.trained):
            rows, targets = inputs.rows[inputs.trained], inputs.targets[inputs.trained]
            derivative = self._derivative(inputs, logprobs)
            result = logprobs_backward(states[rows], targets, self.backbone, lora, derivative, self.pause)
            logprobs[inputs.trained] = result.logprobs
            add_rows(upstream, rows, result.hidden)
            if result.a is not None and result.b is not None:
                self.adapter.accumulate_head(self.gradient, result.a, result.b)
        self._record(logprobs, inputs)

    def _derivative(self, inputs: LossInputs, logprobs: Tensor) -> Derivative:
        kind, config = self.loss.kind, self.loss.config
        if kind.by_sequence:
            complete = losses_and_derivative(kind, logprobs, inputs.columns, config)[1][inputs.trained]
            return lambda _, rows: complete[rows]
        trained = {name: values[inputs.trained] for name, values in inputs.columns.items()}

        def derivative(chunk: Tensor, rows: slice) -> Tensor:
            chunk_inputs = {name: values[rows] for name, values in trained.items()}
            return losses_and_derivative(kind, chunk, chunk_inputs, config)[1]

        return derivative

    def _record(self, logprobs: Tensor, inputs: LossInputs) -> None:
        kind, config = self.loss.kind, self.loss.config
        self.losses.append(kind.per_token(logprobs, inputs.columns, config).double().sum())
        for name, values in ratio_metrics(kind, logprobs, inputs.columns, config).items():
            self.token_metrics.setdefault(name, []).append(values[inputs.trained])
        self.logprobs.append((inputs, logprobs))
        self.trained_tokens += len(inputs.trained)

    def _logprobs(self) -> tuple[Floats, ...]:
        """Per datum, in its order."""
        by_datum: dict[int, Floats] = {}
        for inputs, flat in self.logprobs:
            on_host, start = flat.cpu().numpy(), 0
            for index, length in inputs.data_lengths:
                by_datum[index] = on_host[start : start + length]
                start += length
        return tuple(by_datum[index] for index in range(len(self.data)))

    def _metrics(self) -> dict[str, float]:
        metrics = {"loss:sum": torch.stack(self.losses).sum() if self.losses else torch.zeros(())}
        for name, parts in self.token_metrics.items():
            values = torch.cat(parts)
            if len(values):
                metrics[f"{name}:mean"] = values.mean()
                if name != "clip_fraction":
                    metrics |= {f"{name}:min": values.min(), f"{name}:max": values.max()}
        values = torch.stack([value.double() for value in metrics.values()])
        on_host = values.tolist()  # one synchronisation with the device for all of them
        return {
            **dict(zip(metrics, on_host, strict=True)),
            "computed_tokens:sum": float(self.computed_tokens),
        }
