"""The stages of learning from ratings that `hermes quickstart feedback` leaves out: KTO, rewards, RLHF."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import JSONObject
from hermes.disk.files import atomic_write
from hermes.quickstart.feedback import rule
from hermes.quickstart.feedback.recipe import FeedbackRecipe
from hermes.quickstart.feedback.stages import FeedbackStages, RatedFiles
from hermes.quickstart.generate import step_reporter
from hermes.quickstart.progress import StageMeter
from hermes.rl.run import read_metrics

if TYPE_CHECKING:
    from hermes.batch.reward import RewardContext


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRecipe(FeedbackRecipe):
    kto_steps: int
    kto_rate: float
    reward_steps: int
    reward_rate: float
    rl_steps: int
    rl_batch: int
    """Answers a step."""
    rl_group: int
    """Answers to each prompt."""
    rl_rate: float
    kto_beta: float = 0.1
    good_rating: float = 5.0
    """KTO: answers with at least as many stars are good ones, all others bad. With 4 as well, an answer that
    misses one of the three things that the person likes would be as good as one that has them all."""
    kl: float = 0.05
    environments: int = 1


CPU = BenchRecipe(
    *(32, 24, 2, 10, 1e-3),
    kto_steps=10,
    kto_rate=1e-3,
    reward_steps=12,
    reward_rate=1e-3,
    rl_steps=6,
    rl_batch=32,
    rl_group=8,
    rl_rate=5e-4,
)
FAST = BenchRecipe(
    *(8, 4, 2, 2, 1e-3),
    kto_steps=2,
    kto_rate=1e-3,
    reward_steps=2,
    reward_rate=1e-3,
    rl_steps=2,
    rl_batch=8,
    rl_group=4,
    rl_rate=5e-4,
    batch=4,
    answer_tokens=16,
)
CUDA = BenchRecipe(
    *(512, 256, 3, 50, 3e-4),
    kto_steps=60,
    kto_rate=3e-4,
    reward_steps=60,
    reward_rate=5e-4,
    rl_steps=25,
    rl_batch=128,
    rl_group=8,
    rl_rate=3e-4,
    batch=32,
    environments=4,
    at_once=256,
)


def stars(ctx: RewardContext) -> float:
    """The stars of the rule as a reward from 0 to 1: what the reward model stands for, for --true-reward."""
    return (rule.judge(ctx.answer).stars - 1.0) / 4.0


class BenchStages(FeedbackStages):
    """All stages for one seed."""

    _recipe: BenchRecipe

    def kto(self, files: RatedFiles) -> JSONObject:
        recipe = self._recipe
        return self._train(
            "kto",
            recipe.kto_steps,
            recipe.kto_rate,
            (
                *(str(files.unpaired), "--eval-share", "0", "--beta", str(recipe.kto_beta)),
                *("--good-rating", str(recipe.good_rating), *self._replay()),
            ),
        )

    def reward(self, files: RatedFiles, noise: float = 0.0, members: int = 1) -> JSONObject:
        """Trains a reward model; `noise`: the share of training pairs whose verdict is flipped."""
        recipe = self._recipe
        pairs = flip_labels(files.pairs, noise, self._seed) if noise else files.pairs
        label = f"reward-noise-{noise:g}"
        folder = self._folder / label
        arguments = (
            *(str(pairs), "--eval-file", str(files.held_out_pairs)),
            *("--members", str(members), "--margin", "0"),
        )
        meter = StageMeter("step", recipe.reward_steps, self._progress, set_up=True)
        return self._processes.run(
            f"{label}-{self._seed}",
            (
                *("train", "reward", *self._loop(recipe.reward_steps, arguments)),
                *self._common(label, folder, recipe.reward_rate, None),
            ),
            step_reporter(folder / "member-0", meter, {"train/loss": "loss", "rewards/accuracy": "accuracy"}),
        )

    def rlhf(
        self,
        files: RatedFiles,
        reward_model: str,
        *,
        kl: float,
        start: str | None = None,
        guarded: bool = True,
        label: str = "rlhf",
    ) -> tuple[JSONObject, list[JSONObject]]:
        """The trainer's result, and proxy, KL and true reward of every step.

        `start`: weights to train from and to measure the KL from; None: those of the start policy.
        """
        recipe, folder = self._recipe, self._folder / label
        prompts = self._folder / "answers" / "questions.jsonl"
        arguments = (
            *("train", "rlhf", "--reward-model", reward_model, "--prompts", str(prompts)),
            *("--true-reward", f"{__file__}:{stars.__name__}"),
            *("--num-steps", str(recipe.rl_steps), "--batch-size", str(recipe.rl_batch)),
            *("--rollouts-per-prompt", str(recipe.rl_group), "--env-replicas", str(recipe.environments)),
            *("--answer-tokens", str(recipe.answer_tokens), "--kl", str(kl)),
            *("--system-prompt", rule.SYSTEM_PROMPT),
            *("--preferences", str(files.held_out_pairs), "--epochs", "2"),
            *(() if guarded else ("--no-early-stop",)),
            *self._common(label, folder, recipe.rl_rate, start or self._start.weights),
        )
        meter = StageMeter("step", recipe.rl_steps, self._progress, set_up=True)
        on_poll = step_reporter(folder, meter, {"reward/mean": "reward", "reward/true": "true reward"})
        result = self._processes.run(f"{label}-{self._seed}", arguments, on_poll)
        return result, [rlhf_point(row) for row in read_metrics(folder / "metrics.jsonl")]


def rlhf_point(row: JSONObject) -> JSONObject:
    """Proxy, KL, true reward and held-out preference of one step, side by side."""
    names = {
        "step": "step",
        "reward/mean": "proxy",
        "reward/true": "true",
        "kl/reference": "kl",
        "eval/preference": "preference",
    }
    return {label: row[name] for name, label in names.items() if name in row}


def flip_labels(path: Path, share: float, seed: int) -> Path:
    """The pairs with that share of verdicts turned round, in a file beside them."""
    rng = random.Random(f"noise {seed}")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for row in rows:
        if rng.random() < share:
            row["chosen"], row["rejected"] = row["rejected"], row["chosen"]
    noisy = path.with_name(f"pairs-train-noise-{share:g}.jsonl")
    atomic_write(noisy, "".join(f"{json.dumps(row)}\n" for row in rows))
    return noisy
