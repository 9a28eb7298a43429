"""What each metric means that a trainer writes, and each that environments send to W&B.

The page of metrics in the docs is made from this table, and the tests compare it with what runs write: a name
without a meaning fails them. The metrics of the servers have their meanings beside the servers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricMeaning:
    name: str
    """As it is written; a part in capitals stands for any name."""
    meaning: str

    def matches(self, name: str) -> bool:
        return bool(re.fullmatch(re.sub(r"[A-Z]+", ".+", re.escape(self.name)), name))


TRAINER = (
    MetricMeaning(
        "train/loss", "The loss that was minimised. Of group-relative losses it is about 0 by construction."
    ),
    MetricMeaning("train/learning_rate", "The learning rate of the step, after warm-up and decay."),
    MetricMeaning("optim/grad_norm", "The norm of the gradient before clipping."),
    MetricMeaning("optim/clip_scale", "The factor that clipping applied; 1 if the gradient was not clipped."),
    MetricMeaning("optim/optimizer_step", "Optimizer steps that the adapter has made in its life."),
    MetricMeaning(
        "optim/peak_bytes",
        "The engine's peak memory so far: of tensors on a GPU, of its process on a CPU. Not with replicas.",
    ),
    MetricMeaning("optim/NAME", "Any other number that the Tinker service reports about an optimizer step."),
    MetricMeaning("time/step_s", "Seconds that the step took, without the wait for its batch."),
    MetricMeaning("time/wait_s", "RL: seconds that the trainer waited for the step's batch."),
    MetricMeaning("data/trained_tokens", "Tokens that the loss is a mean over."),
    MetricMeaning("eval/loss", "The loss on held-out rows."),
)
RL = (
    MetricMeaning(
        "reward/mean", "The mean reward of the rollouts in the batch. This is the curve to look at."
    ),
    MetricMeaning("reward/std", "The standard deviation of those rewards."),
    MetricMeaning("reward/min", "The lowest reward in the batch."),
    MetricMeaning("reward/max", "The highest reward in the batch."),
    MetricMeaning("reward/p10", "The reward that a tenth of the rollouts stay below."),
    MetricMeaning("reward/p50", "The median reward."),
    MetricMeaning("reward/p90", "The reward that nine tenths of the rollouts stay below."),
    MetricMeaning("reward/positive", "The share of rollouts with a reward above 0."),
    MetricMeaning(
        "reward/true", "The mean of the measure that a learned reward stands for; never trained on."
    ),
    MetricMeaning("reward_part/NAME", "The mean of one named part of the rewards."),
    MetricMeaning(
        "success/mean", "The share of rollouts that succeeded strictly, where the environment reports it."
    ),
    MetricMeaning("success/KIND", "The same for one kind of task."),
    MetricMeaning("env/NAME/reward", "The mean reward of one environment, in a run with several."),
    MetricMeaning("env/NAME/rollouts", "Rollouts of that environment in the batch."),
    MetricMeaning("stop/REASON", "The share of sequences whose rollout ended for this reason."),
    MetricMeaning("data/groups", "Groups in the batch."),
    MetricMeaning("data/rollouts", "Rollouts in the batch."),
    MetricMeaning("data/sequences", "Sequences in the batch; a rollout has one or more."),
    MetricMeaning("data/sequence_tokens", "The mean length of a sequence, in tokens."),
    MetricMeaning("data/too_long", "Sequences that were left out because they are longer than the limit."),
    MetricMeaning("data/refused", "Sequences that were left out because they cannot be trained on."),
    MetricMeaning(
        "sequences/branches",
        "Sequences beyond the first of a rollout (compaction, edits, forks, sub-agents), mean over rollouts.",
    ),
    MetricMeaning("tokens/dropped", "Sampled tokens of the batch that are not trained on, for any reason."),
    MetricMeaning(
        "tokens/dropped/REASON",
        "The same by reason: `side` (calls beside the task), `forced` (another distribution was asked for), "
        "`stale`, `too_long`, `foreign` (weights of another run).",
    ),
    MetricMeaning("data/lease_id", "The batch's number at the trajectory API."),
    MetricMeaning("advantages/mean", "The mean advantage of the trained tokens."),
    MetricMeaning("advantages/std", "The standard deviation of the advantages of the trained tokens."),
    MetricMeaning(
        "logprobs/mean", "The mean log-probability of the trained tokens, as the sampler reported it."
    ),
    MetricMeaning("logprobs/mean_training", "The same, computed by the trainer before the update."),
    MetricMeaning("logprobs/diff", "The sampler's log-probability minus the trainer's, mean over tokens."),
    MetricMeaning("kl/reference", "The estimated KL divergence of the policy from the reference, per token."),
)
CRITIC = (
    MetricMeaning("critic/loss", "PPO with a critic: the loss of the value model."),
    MetricMeaning("critic/value", "The mean value that it predicts for the trained tokens."),
    MetricMeaning("critic/grad_norm", "The norm of its gradient before clipping."),
    MetricMeaning(
        "critic/explained_variance", "The share of the variance of returns that its values explain."
    ),
)
HEALTH = (
    MetricMeaning("health/group_signal", "The share of groups whose rollouts were not all scored alike."),
    MetricMeaning("health/zero_variance_groups", "Groups without signal; nothing is learned from them."),
    MetricMeaning(
        "health/entropy", "The mean of -log p over trained tokens. Near 0: the policy has collapsed."
    ),
    MetricMeaning(
        "health/logprob_gap", "The mean absolute difference between the sampler's and the trainer's logprobs."
    ),
    MetricMeaning("health/ratio_max", "The largest importance ratio of a trained token."),
    MetricMeaning("health/ratio_min", "The smallest importance ratio of a trained token."),
    MetricMeaning(
        "health/k3", "An estimate of the KL divergence between the sampling policy and the trained one."
    ),
    MetricMeaning("health/clip_fraction", "The share of tokens whose ratio the loss clipped."),
    MetricMeaning(
        "health/staleness", "How many steps older than the trained weights the sampling weights were; mean."
    ),
    MetricMeaning("health/staleness_max", "The same, for the oldest sequence of the batch."),
    MetricMeaning(
        "health/stale_dropped", "Sequences that were left out because they were sampled too many steps ago."
    ),
    MetricMeaning(
        "health/duplicates",
        "The share of sequences whose tokens equal those of an earlier sequence of their group.",
    ),
    MetricMeaning("health/truncated", "The share of sequences that a token or context limit cut off."),
    MetricMeaning("health/tool_errors", "The share of tool calls that failed."),
    MetricMeaning(
        "health/forbidden_paths",
        "The share of rollouts whose tool calls name a path that no task needs (forbidden_paths).",
    ),
)
PROOF = (
    MetricMeaning(
        "probe/gap", "Trainer against sampler on a fixed sequence after the update: mean difference in nats."
    ),
    MetricMeaning("probe/moved", "How far the update moved the trainer on that sequence, in nats."),
    MetricMeaning(
        "probe/followed",
        "The share of that movement that the sampler has made; about 1 if it serves the new weights.",
    ),
    MetricMeaning(
        "proof/gap",
        "Stated against recomputed logprobs of a sample of the batch: median difference, in logits.",
    ),
    MetricMeaning("proof/gap_p90", "The same: the 90th percentile over tokens."),
    MetricMeaning(
        "proof/bias", "The signed difference; far from 0 means that a temperature or a weight is wrong."
    ),
    MetricMeaning("proof/limit", "The difference from which a batch counts as wrong."),
    MetricMeaning("proof/tokens", "Tokens that were compared."),
    MetricMeaning("proof/strike", "1 if this batch counts as wrong. Two of the last six end the run."),
    MetricMeaning(
        "proof/warning",
        "1 if the proof found something that did not end the run; the trainer's log says what.",
    ),
    MetricMeaning(
        "proof/unchecked", "Chosen sequences that could not be checked because their weights are gone."
    ),
)
EVALUATION = (
    MetricMeaning("eval/mean_reward", "The mean reward on held-out tasks."),
    MetricMeaning("eval/mean_reward_low", "The lower end of its 95 % interval."),
    MetricMeaning("eval/mean_reward_high", "The upper end of its 95 % interval."),
    MetricMeaning("eval/success_rate", "The share of held-out tasks that were solved."),
    MetricMeaning("eval/success_rate_low", "The lower end of its 95 % interval."),
    MetricMeaning("eval/success_rate_high", "The upper end of its 95 % interval."),
    MetricMeaning("eval/turns", "Model calls per rollout."),
    MetricMeaning("eval/samples", "Rollouts that were scored."),
    MetricMeaning("eval/failed_to_run", "Rollouts that infrastructure failed; they are not scored."),
    MetricMeaning("eval/failed", "1 if the evaluation itself failed."),
    MetricMeaning("eval/step", "The step whose weights an environment's own evaluation measured."),
    MetricMeaning("eval/preference", "The share of held-out human preferences that the policy agrees with."),
    MetricMeaning("eval/NAME", "Any other number that an evaluation or an environment reports."),
)
PREFERENCE = (
    MetricMeaning("rewards/chosen", "DPO, KTO: the implicit reward of the preferred answers."),
    MetricMeaning("rewards/rejected", "DPO, KTO: the implicit reward of the rejected answers."),
    MetricMeaning("rewards/margin", "The reward of preferred answers minus that of rejected ones."),
    MetricMeaning("rewards/accuracy", "The share of pairs in which the preferred answer scores higher."),
    MetricMeaning("rewards/mean", "Reward models: the mean score."),
    MetricMeaning("rewards/error", "Reward models trained on stars: the mean error on a scale from 0 to 1."),
    MetricMeaning("logprobs/chosen", "DPO: the log-probability of the preferred answers."),
    MetricMeaning("logprobs/rejected", "DPO: the log-probability of the rejected answers."),
    MetricMeaning("kl/estimate", "KTO: the divergence from the reference that the loss is relative to."),
    MetricMeaning("replay/loss", "The cross-entropy of the replayed rows of an earlier skill (`--replay`)."),
    MetricMeaning("eval/rewards/NAME", "The same measures on held-out rows."),
    MetricMeaning("eval/logprobs/NAME", "The same measures on held-out rows."),
)
SINKS = (
    MetricMeaning("sinks/failures", "Writes to W&B, TensorBoard or trackio that failed so far."),
    MetricMeaning(
        "sinks/not_finite", "Values of this step that were infinite or not a number, and were left out."
    ),
)
ENVIRONMENT = (
    MetricMeaning("train/mean_reward", "The mean reward of the rollouts since the last report."),
    MetricMeaning("train/curriculum_level", "The level of difficulty that the curriculum has reached."),
    MetricMeaning("train/turns", "Model calls per rollout."),
    MetricMeaning("train/tool_errors", "Failed tool calls per rollout."),
    MetricMeaning("train/forbidden_paths", "Forbidden paths that the tool calls of a rollout name."),
    MetricMeaning(
        "program/COUNT", "A count of a program's rollouts (`calls`, `answers_edited`, `tokens_side` …), mean."
    ),
    MetricMeaning("train/dropped/REASON", "Rollouts that were not sent to the trainer, by reason."),
    MetricMeaning("train/rollouts", "A table of rollouts with their scores."),
    MetricMeaning("train/items_sent_to_api", "Groups that were sent to the trajectory API."),
    MetricMeaning("train/items_rejected", "Groups that were dropped."),
    MetricMeaning("train/completion_lengths", "The mean length of an answer, in tokens."),
    MetricMeaning("train/completion_lengths_std", "The standard deviation of the lengths."),
    MetricMeaning("train/completion_lengths_max", "The longest answer."),
    MetricMeaning("train/completion_lengths_min", "The shortest answer."),
    MetricMeaning(
        "train/completion_lengths_p95", "The share of answers longer than 95 % of the trainer's limit."
    ),
    MetricMeaning(
        "train_perf/TIMING", "Mean, standard deviation, maximum and minimum of a duration in seconds."
    ),
)
SECTIONS = {
    "Every trainer": TRAINER,
    "RL: rewards and data": RL,
    "RL: health": HEALTH,
    "RL: critic": CRITIC,
    "Proof of training": PROOF,
    "Evaluation": EVALUATION,
    "DPO, KTO and reward models": PREFERENCE,
    "Sinks": SINKS,
    "Environments, at W&B": ENVIRONMENT,
}
"""By heading of the page."""


def undescribed(names: set[str]) -> set[str]:
    """Those of `names` that the table does not have."""
    table = [entry for entries in SECTIONS.values() for entry in entries]
    return {name for name in names if not any(entry.matches(name) for entry in table)}
