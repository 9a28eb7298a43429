"""Forward and backward over training data: validated, packed, micro-batched, and exact.

The result of a call is a sum over its data, whatever the micro-batches. Gradients are added to the adapter
only once all of them are there, so that a call that fails half-way leaves no trace. Between micro-batches the
generator yields, and its driver may do something else with the device.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hermes.engine.attention.packing import Pack, pack
from hermes.engine.lora.adapter import Adapter, optim_step
from hermes.engine.lora.weights import LoraWeights
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.lm_head import Derivative, add_rows, logprobs_backward, token_logprobs
from hermes.engine.training.loss_inputs import LossInputs, gather_entries
from hermes.engine.training.losses import ResolvedLoss, health, losses_and_derivative, resolve
from hermes.engine.training.passes import run_pass
from hermes.engine.training.validation import validate
from hermes.engine.types import Datum, Floats, Loss, TrainOutput

__all__ = ["forward_backward", "optim_step", "validate"]


def forward_backward(
    backbone: Backbone,
    adapter: Adapter,
    data: Sequence[Datum],
    loss: Loss,
    *,
    forward_only: bool = False,
    budget_tokens: int,
) -> Generator[None, None, TrainOutput]:
    """Adds the gradients of the loss to the adapter's; yields between micro-batches.

    Micro-batches hold up to `budget_tokens` computed tokens. One that cannot be made that small, because a
    single sequence is longer, computes its layers a second time instead of keeping their activations.
    """
    validate(data, loss, backbone.spec)
    gradient = None if forward_only else torch.zeros_like(adapter.gradient)
    return _Call(backbone, adapter, data, resolve(loss), budget_tokens, gradient).run()


@dataclass(slots=True)
class _Call:
    backbone: Backbone
    adapter: Adapter
    data: Sequence[Datum]
    loss: ResolvedLoss
    budget_tokens: int
    gradient: Tensor | None
    """This call's own sum; None where only logprobs are wanted."""
    logprobs: list[tuple[LossInputs, Tensor]] = field(default_factory=list)
    """Of each micro-batch, on the device."""
    losses: list[Tensor] = field(default_factory=list)
    watched: dict[str, list[Tensor]] = field(default_factory=dict)
    """Per quantity and micro-batch: its values at trained tokens."""
    computed_tokens: int = 0

    def run(self) -> Generator[None, None, TrainOutput]:
        longest = max((len(datum.tokens) for datum in self.data), default=0)
        # A window narrower than a sequence hides part of a shared beginning from what follows it.
        share = all(window is None or window >= longest for window in self.backbone.spec.windows)
        tokens = [datum.tokens for datum in self.data]
        for number, batch in enumerate(pack(tokens, self.budget_tokens, share=share)):
            if number:
                yield
            self._micro_batch(batch)
        if self.gradient is not None:
            self.adapter.gradient.add_(self.gradient)
        return TrainOutput(self._logprobs(), self._metrics())

    def _micro_batch(self, batch: Pack) -> None:
        train = self.gradient is not None
        self.computed_tokens += len(batch.tokens)
        too_long = train and len(batch.tokens) > self.budget_tokens
        passed = run_pass(self.backbone, self.adapter, batch, train=train, checkpoint=too_long)
        upstream = torch.zeros_like(passed.states) if train else None
        score_all = self.loss.kind.by_sequence or not train
        device = self.backbone.device
        for entries in gather_entries(self.data, batch, self.loss, device, score_all=score_all):
            self._entries(passed.states, entries, passed.lora, upstream)
        if self.gradient is not None and upstream is not None:
            passed.backward(upstream, self.gradient)

    def _entries(
        self, states: Tensor, entries: LossInputs, lora: LoraWeights, upstream: Tensor | None
    ) -> None:
        """Logprobs and loss of all entries; with `upstream`, the gradients of the trained ones."""
        logprobs = torch.empty(entries.targets.shape, dtype=torch.float32, device=states.device)
        if len(entries.scored):
            rows, targets = entries.rows[entries.scored], entries.targets[entries.scored]
            found = token_logprobs(states[rows], targets, self.backbone, lora)
            logprobs[entries.scored_into] = found[entries.scored_as]
        if self.gradient is not None and upstream is not None and len(entries.trained):
            rows, targets = entries.rows[entries.trained], entries.targets[entries.trained]
            derivative = self._derivative(entries, logprobs)
            result = logprobs_backward(states[rows], targets, self.backbone, lora, derivative)
            logprobs[entries.trained] = result.logprobs
            add_rows(upstream, rows, result.hidden)
            if result.a is not None and result.b is not None:
                self.adapter.accumulate_head(self.gradient, result.a, result.b)
        self._note(logprobs, entries)

    def _derivative(self, entries: LossInputs, logprobs: Tensor) -> Derivative:
        kind, config = self.loss.kind, self.loss.config
        if kind.by_sequence:
            whole = losses_and_derivative(kind, logprobs, entries.inputs, config)[1][entries.trained]
            return lambda _, rows: whole[rows]
        chosen = {name: values[entries.trained] for name, values in entries.inputs.items()}

        def derivative(some: Tensor, rows: slice) -> Tensor:
            part = {name: values[rows] for name, values in chosen.items()}
            return losses_and_derivative(kind, some, part, config)[1]

        return derivative

    def _note(self, logprobs: Tensor, entries: LossInputs) -> None:
        kind, config = self.loss.kind, self.loss.config
        self.losses.append(kind.per_token(logprobs, entries.inputs, config).double().sum())
        for name, values in health(kind, logprobs, entries.inputs, config).items():
            self.watched.setdefault(name, []).append(values[entries.trained])
        self.logprobs.append((entries, logprobs))

    def _logprobs(self) -> tuple[Floats, ...]:
        """Per datum, in its order."""
        found: dict[int, Floats] = {}
        for entries, flat in self.logprobs:
            on_host, start = flat.cpu().numpy(), 0
            for member, length in entries.members:
                found[member] = on_host[start : start + length]
                start += length
        return tuple(found[index] for index in range(len(self.data)))

    def _metrics(self) -> dict[str, float]:
        found = {"loss:sum": torch.stack(self.losses).sum() if self.losses else torch.zeros(())}
        for name, parts in self.watched.items():
            values = torch.cat(parts)
            if len(values):
                found[f"{name}:mean"] = values.mean()
                if name != "clip_fraction":
                    found |= {f"{name}:min": values.min(), f"{name}:max": values.max()}
        told = torch.stack([one.double() for one in found.values()]).tolist()  # waits for the device, once
        return {**dict(zip(found, told, strict=True)), "computed_tokens:sum": float(self.computed_tokens)}
