"""Direct preference optimisation (DPO) and its relatives, as an objective of the offline loop.

Each step makes a forward pass over both sides of its pairs, computes the loss and its gradients (`losses`),
and a pass that accumulates them. The reference's log-probabilities are computed once, before the first step.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from hermes.training.offline import EVAL_LOSS, LOSS, rows_of_step
from hermes.training.preference.examples import PairExample, RenderedCompletion, RowSplit, digest_of
from hermes.training.preference.losses import CompletionLogprob, DpoConfig, PairLoss, dpo_losses
from hermes.training.preference.reference import (
    CROSS_ENTROPY,
    ReferencedObjective,
    completion_logprobs,
    gradient_datums,
    policy_logprobs,
)
from hermes.training.service.client import AdapterClient

KIND = "dpo"


class DpoObjective(ReferencedObjective[PairExample]):
    """Chosen completions become more likely than rejected ones, compared with the reference."""

    kind = KIND

    def __init__(self, rows: RowSplit[PairExample], config: DpoConfig, reference: str) -> None:
        """`reference`: BASE, or weights that the service has; not used by losses without one."""
        super().__init__(rows, reference if config.uses_reference else None)
        self._config = config

    @property
    def probe(self) -> Sequence[int]:
        return self.train[0].chosen.contexts[0].tokens

    @property
    def identity(self) -> Mapping[str, object]:
        return {
            "data": digest_of(_sides(self.train)),
            "loss": {**asdict(self._config), "reference": self.reference},
        }

    def completions(self, rows: Sequence[PairExample]) -> list[RenderedCompletion]:
        return _sides(rows)

    def accumulate(self, client: AdapterClient, step: int, seed: int, batch_size: int) -> dict[str, float]:
        indices = rows_of_step(range(len(self.train)), step, batch_size, seed)
        pairs = [self.train[index] for index in indices]
        reference = [self.train_reference[2 * index + side] for index in indices for side in (0, 1)]
        completions = _sides(pairs)
        logprobs, losses = self._losses(client, completions, reference)
        gradients = [
            gradient for loss in losses for gradient in (loss.chosen_gradient, loss.rejected_gradient)
        ]
        client.forward_backward(gradient_datums(completions, gradients), CROSS_ENTROPY)
        tokens = sum(completion.trained_tokens for completion in completions)
        metrics = {LOSS: sum(loss.value for loss in losses), "data/trained_tokens": float(tokens)}
        return metrics | _reward_metrics(logprobs, self._config)

    def evaluate(self, client: AdapterClient) -> dict[str, float]:
        completions = _sides(self.held_out)
        logprobs, losses = self._losses(client, completions, self.held_out_reference)
        metrics = _reward_metrics(logprobs, self._config)
        return {EVAL_LOSS: sum(loss.value for loss in losses)} | {
            f"eval/{name}": value for name, value in metrics.items()
        }

    def describe(self, metrics: Mapping[str, float]) -> str:
        text = f"accuracy {metrics['rewards/accuracy']:.2f}  margin {metrics['rewards/margin']:+.3f}"
        if "eval/rewards/accuracy" in metrics:
            text += f"  held-out accuracy {metrics['eval/rewards/accuracy']:.2f}"
        return text

    def _losses(
        self, client: AdapterClient, completions: Sequence[RenderedCompletion], reference: Sequence[float]
    ) -> tuple[list[CompletionLogprob], list[PairLoss]]:
        logprobs = completion_logprobs(policy_logprobs(client, completions), reference, completions)
        return logprobs, dpo_losses(list(zip(logprobs[::2], logprobs[1::2], strict=True)), self._config)


def _sides(pairs: Sequence[PairExample]) -> list[RenderedCompletion]:
    """Chosen, rejected, chosen, rejected …"""
    return [completion for pair in pairs for completion in (pair.chosen, pair.rejected)]


def _reward_metrics(logprobs: Sequence[CompletionLogprob], config: DpoConfig) -> dict[str, float]:
    """The implicit rewards β · log(policy/reference) of both sides."""
    rewards = [config.beta * (row.policy - row.reference) for row in logprobs]
    chosen, rejected = rewards[::2], rewards[1::2]
    margins = [better - worse for better, worse in zip(chosen, rejected, strict=True)]
    return {
        "rewards/chosen": statistics.fmean(chosen),
        "rewards/rejected": statistics.fmean(rejected),
        "rewards/margin": statistics.fmean(margins),
        "rewards/accuracy": sum(margin > 0 for margin in margins) / len(margins),
        "logprobs/chosen": statistics.fmean(row.policy for row in logprobs[::2]),
        "logprobs/rejected": statistics.fmean(row.policy for row in logprobs[1::2]),
    }
