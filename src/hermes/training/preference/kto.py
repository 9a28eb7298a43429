"""Kahneman–Tversky optimisation (KTO): from single answers that are good or bad, as an offline objective.

The divergence from the reference is estimated, as in the paper and in TRL, on the prompts of the batch with
the completions of their neighbours; it has no gradient.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from hermes.training.offline import EVAL_LOSS, LOSS, rows_of_step
from hermes.training.preference.examples import (
    RenderedCompletion,
    RowSplit,
    UnpairedExample,
    digest_of,
    mismatched,
)
from hermes.training.preference.losses import (
    CompletionLogprob,
    KtoConfig,
    SequenceLoss,
    kto_divergence,
    kto_losses,
)
from hermes.training.preference.reference import (
    CROSS_ENTROPY,
    ReferencedObjective,
    completion_logprobs,
    gradient_datums,
    policy_logprobs,
)
from hermes.training.service.client import AdapterClient

KIND = "kto"


def balanced_weights(rows: Sequence[UnpairedExample]) -> tuple[float, float]:
    """Weights for good and bad answers, such that both classes count equally; the larger class has 1."""
    good = sum(row.desirable for row in rows)
    bad = len(rows) - good
    return max(1.0, bad / good), max(1.0, good / bad)


class KtoObjective(ReferencedObjective[UnpairedExample]):
    """Good answers become more likely and bad ones less likely, compared with the reference."""

    kind = KIND
    keeps_reference = True

    def __init__(
        self, rows: RowSplit[UnpairedExample], config: KtoConfig, reference: str, longest: int
    ) -> None:
        """`reference`: BASE, or weights that the service has. `longest`: tokens of a sequence."""
        super().__init__(rows, reference)
        self._config = config
        self._longest = longest
        self._mismatched_reference: dict[tuple[int, int], float] = {}

    @property
    def probe(self) -> Sequence[int]:
        return self.train[0].completion.contexts[0].tokens

    @property
    def identity(self) -> Mapping[str, object]:
        labels = "".join("+" if row.desirable else "-" for row in self.train)
        return {
            "data": f"{digest_of(row.completion for row in self.train)}{labels}",
            "loss": {**asdict(self._config), "reference": self.reference},
        }

    def completions(self, rows: Sequence[UnpairedExample]) -> list[RenderedCompletion]:
        return [row.completion for row in rows]

    def accumulate(self, client: AdapterClient, step: int, seed: int, batch_size: int) -> dict[str, float]:
        indices = rows_of_step(range(len(self.train)), step, batch_size, seed)
        rows = [self.train[index] for index in indices]
        completions = self.completions(rows)
        # TRL pairs the prompt of each row with the completion of the one before it.
        foreign = [(index, indices[position - 1]) for position, index in enumerate(indices)]
        crossed = [
            mismatched(self.train[prompt].completion, self.train[answered].completion, self._longest)
            for prompt, answered in foreign
        ]
        policy = policy_logprobs(client, [*completions, *crossed])
        reference = [self.train_reference[index] for index in indices]
        crossed_reference = self._crossed_reference(foreign, crossed)
        divergence = kto_divergence(
            completion_logprobs(policy[len(rows) :], crossed_reference, crossed) if len(rows) > 1 else ()
        )
        logprobs = completion_logprobs(policy[: len(rows)], reference, completions)
        losses = kto_losses(logprobs, [row.desirable for row in rows], divergence, self._config)
        gradients = [loss.gradient for loss in losses]
        client.forward_backward(gradient_datums(completions, gradients), CROSS_ENTROPY)
        tokens = sum(completion.trained_tokens for completion in completions)
        return {
            LOSS: sum(loss.value for loss in losses),
            "kl/estimate": divergence,
            "data/trained_tokens": float(tokens),
            **_reward_metrics(logprobs, rows, self._config),
        }

    def _crossed_reference(
        self, foreign: Sequence[tuple[int, int]], crossed: Sequence[RenderedCompletion]
    ) -> list[float]:
        """Computed once for two rows that meet in a batch."""
        missing = [key for key in dict.fromkeys(foreign) if key not in self._mismatched_reference]
        if missing:
            assert self.model is not None, "prepare comes first"
            by_key = dict(zip(foreign, crossed, strict=True))
            logprobs = self.model.logprobs([by_key[key] for key in missing])
            self._mismatched_reference |= dict(zip(missing, logprobs, strict=True))
        return [self._mismatched_reference[key] for key in foreign]

    def evaluate(self, client: AdapterClient) -> dict[str, float]:
        """With a divergence of 0, so that evaluations of one run can be compared."""
        rows = self.held_out
        completions = self.completions(rows)
        policy = policy_logprobs(client, completions)
        logprobs = completion_logprobs(policy, self.held_out_reference, completions)
        losses: list[SequenceLoss] = kto_losses(logprobs, [row.desirable for row in rows], 0.0, self._config)
        metrics = _reward_metrics(logprobs, rows, self._config)
        return {EVAL_LOSS: sum(loss.value for loss in losses)} | {
            f"eval/{name}": value for name, value in metrics.items()
        }

    def describe(self, metrics: Mapping[str, float]) -> str:
        text = f"kl {metrics['kl/estimate']:.3f}"
        if "rewards/margin" in metrics:
            text += f"  margin {metrics['rewards/margin']:+.3f}"
        return text


def _reward_metrics(
    logprobs: Sequence[CompletionLogprob], rows: Sequence[UnpairedExample], config: KtoConfig
) -> dict[str, float]:
    """The implicit rewards of good and bad answers; the margin where a batch has both."""
    rewards = [config.beta * (row.policy - row.reference) for row in logprobs]
    sides = {
        name: [reward for reward, row in zip(rewards, rows, strict=True) if row.desirable is label]
        for name, label in (("rewards/chosen", True), ("rewards/rejected", False))
    }
    metrics = {name: statistics.fmean(values) for name, values in sides.items() if values}
    if len(metrics) == len(sides):
        metrics["rewards/margin"] = metrics["rewards/chosen"] - metrics["rewards/rejected"]
    return metrics
