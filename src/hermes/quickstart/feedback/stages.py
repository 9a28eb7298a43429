"""The stages of the feedback act: answers, ratings, DPO, KTO, reward model, RLHF, each an ordinary command.

One engine process samples and trains. Every stage has its log in the output folder and can be repeated by
hand. The benchmark runs the same stages with other sizes and seeds.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from hermes.core import JSONObject
from hermes.disk.files import atomic_write, ensure_dir
from hermes.envs.tasks.split import Split
from hermes.quickstart.act import MODEL
from hermes.quickstart.feedback import rule, true_reward
from hermes.quickstart.feedback.answers import (
    PolicyAnswers,
    held_out_answers,
    rate_answers,
    record_answers,
)
from hermes.quickstart.feedback.recipe import FeedbackRecipe
from hermes.quickstart.progress import StageMeter
from hermes.quickstart.warm_start import step_reporter
from hermes.rl.run import read_metrics
from hermes.rl.supervise.process_group import ProcessGroup
from hermes.training.session import ProgressCallback


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """The policy that answers, and that training starts from."""

    sampler: str = MODEL
    """The base model's name, or a tinker:// path to sample from."""
    weights: str | None = None
    """A tinker:// path to train from; None: the base model."""
    replay: Path | None = None
    """SFT rows of what this policy can do already; None: the base model has nothing to keep."""


@dataclass(frozen=True, slots=True)
class RatedFiles:
    """The verdicts of the rule as rows."""

    pairs: Path
    held_out_pairs: Path
    unpaired: Path
    answers: int
    stars: float


class FeedbackStages:
    """The stages for one seed; their folder is `folder`."""

    def __init__(
        self,
        processes: ProcessGroup,
        engine_url: str,
        folder: Path,
        name: str,
        recipe: FeedbackRecipe,
        progress: ProgressCallback,
        start: StartPolicy | None = None,
        seed: int = 0,
    ) -> None:
        self._processes = processes
        self._engine_url = engine_url
        self._folder = ensure_dir(folder)
        self._name = name
        self._recipe = recipe
        self._progress = progress
        self._start = start or StartPolicy()
        self._seed = seed
        self.held_out = rule.questions(Split.EVAL, recipe.held_out, seed)

    def evaluate(self, sampler: str | None = None) -> PolicyAnswers:
        """Greedy answers to the held-out questions; None: of the policy that training starts from."""
        recipe = self._recipe
        weights = sampler or self._start.sampler
        return held_out_answers(
            self.held_out, self._engine_url, weights, recipe.answer_tokens, recipe.at_once
        )

    def collect(self) -> RatedFiles:
        """Answers to the training questions, rated by the rule, as pairs and as single answers."""
        run_name, folder = f"{self._name}-answers", self._folder
        questions = rule.questions(Split.TRAIN, self._recipe.questions, self._seed)
        count = record_answers(
            questions,
            self._recipe.answers(self._seed),
            self._engine_url,
            self._start.sampler,
            folder / "answers",
            run_name,
            self._progress,
        )
        verdicts = rate_answers(run_name)
        pairs, unpaired = folder / "pairs.jsonl", folder / "unpaired.jsonl"
        for path, form in ((pairs, "trl-preference"), (unpaired, "trl-unpaired")):
            self._processes.run(
                f"export-{form}",
                (
                    *("export", "--run", run_name, "--format", form, "--all", "--pairs-from", "rating"),
                    *("--output", str(path), "--json"),
                ),
            )
        trained, held_out = split_pairs(pairs, self._recipe.eval_share)
        stars = sum(verdict.stars for verdict in verdicts.values()) / max(1, len(verdicts))
        return RatedFiles(trained, held_out, unpaired, count, stars)

    def dpo(self, files: RatedFiles) -> JSONObject:
        recipe = self._recipe
        return self._train(
            "dpo",
            recipe.dpo_steps,
            recipe.dpo_rate,
            (
                *(str(files.pairs), "--eval-file", str(files.held_out_pairs)),
                *("--beta", str(recipe.beta), "--sft-weight", str(recipe.sft_weight)),
                *self._replay(),
            ),
        )

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
        return self._train(
            "reward",
            recipe.reward_steps,
            recipe.reward_rate,
            (
                *(str(pairs), "--eval-file", str(files.held_out_pairs)),
                *("--members", str(members), "--margin", "0"),
            ),
            label=f"reward-noise-{noise:g}",
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
            *("--true-reward", f"{true_reward.__file__}:{true_reward.stars.__name__}"),
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

    def _replay(self) -> tuple[str, ...]:
        weight, rows = self._recipe.replay_weight, self._start.replay
        return ("--replay", str(rows), "--replay-weight", str(weight)) if rows and weight else ()

    def _train(
        self, kind: str, steps: int, rate: float, arguments: tuple[str, ...], label: str | None = None
    ) -> JSONObject:
        name = label or kind
        folder = self._folder / name
        metrics = folder / "member-0" if kind == "reward" else folder  # of an ensemble, the first one's steps
        meter = StageMeter("step", steps, self._progress, set_up=True)
        return self._processes.run(
            f"{name}-{self._seed}",
            (
                *("train", kind, *arguments, "--max-steps", str(steps), "--epochs", str(steps)),
                *("--batch-size", str(self._recipe.batch)),
                *("--eval-every", str(max(1, steps // self._recipe.evaluations))),
                *("--max-tokens", str(self._recipe.max_tokens), "--schedule", "linear"),
                *self._common(name, folder, rate, self._start.weights if kind != "reward" else None),
            ),
            step_reporter(metrics, meter, {"train/loss": "loss", "rewards/accuracy": "accuracy"}),
        )

    def _common(self, label: str, folder: Path, rate: float, start: str | None) -> tuple[str, ...]:
        return (
            *("--base-model", MODEL, "--service", self._engine_url, "--rank", str(self._recipe.rank)),
            *("--name", f"{self._name}-{label}", "--run-dir", str(folder), "--seed", str(self._seed)),
            *("--learning-rate", str(rate), "--checkpoint-every", "10", "--json"),
            *(("--start", start) if start else ()),
        )


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


def split_pairs(path: Path, share: float) -> tuple[Path, Path]:
    """By prompt, as everywhere: no held-out pair has a question that is trained on."""
    from hermes.data.export.split import Side, side_of

    sides: dict[Side, list[str]] = {Side.TRAIN: [], Side.EVAL: []}
    for line in path.read_text("utf-8").splitlines():
        sides[side_of(json.dumps(json.loads(line)["prompt"]), share)].append(line)
    if not sides[Side.EVAL]:  # a handful of questions: the last pair is better than none
        sides[Side.EVAL].append(sides[Side.TRAIN].pop())
    files = path.with_name("pairs-train.jsonl"), path.with_name("pairs-held-out.jsonl")
    for file, side in zip(files, (Side.TRAIN, Side.EVAL), strict=True):
        atomic_write(file, "".join(f"{line}\n" for line in sides[side]))
    return files


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
