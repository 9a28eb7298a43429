"""The stages of the feedback act: answers, ratings, DPO, each an ordinary command.

One engine process samples and trains. Every stage has its log in the output folder and can be repeated by
hand. bench/feedback_stages.py adds KTO, reward models and RLHF.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from hermes.core import JSONObject
from hermes.disk.files import atomic_write, ensure_dir
from hermes.envs.tasks.split import Split
from hermes.quickstart.act import MODEL
from hermes.quickstart.feedback import rule
from hermes.quickstart.feedback.answers import (
    PolicyAnswers,
    held_out_answers,
    rate_answers,
    record_answers,
)
from hermes.quickstart.feedback.recipe import FeedbackRecipe
from hermes.quickstart.generate import step_reporter
from hermes.quickstart.progress import StageMeter
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

    def _replay(self) -> tuple[str, ...]:
        weight, rows = self._recipe.replay_weight, self._start.replay
        return ("--replay", str(rows), "--replay-weight", str(weight)) if rows and weight else ()

    def _train(self, kind: str, steps: int, rate: float, arguments: tuple[str, ...]) -> JSONObject:
        folder = self._folder / kind
        meter = StageMeter("step", steps, self._progress, set_up=True)
        return self._processes.run(
            f"{kind}-{self._seed}",
            (
                *("train", kind, *self._loop(steps, arguments)),
                *self._common(kind, folder, rate, self._start.weights),
            ),
            step_reporter(folder, meter, {"train/loss": "loss", "rewards/accuracy": "accuracy"}),
        )

    def _loop(self, steps: int, arguments: tuple[str, ...]) -> tuple[str, ...]:
        """The rows of a trainer, and how it goes over them."""
        return (
            *(*arguments, "--max-steps", str(steps), "--epochs", str(steps)),
            *("--batch-size", str(self._recipe.batch)),
            *("--eval-every", str(max(1, steps // self._recipe.evaluations))),
            *("--max-tokens", str(self._recipe.max_tokens), "--schedule", "linear"),
        )

    def _common(self, label: str, folder: Path, rate: float, start: str | None) -> tuple[str, ...]:
        return (
            *("--base-model", MODEL, "--service", self._engine_url, "--rank", str(self._recipe.rank)),
            *("--name", f"{self._name}-{label}", "--run-dir", str(folder), "--seed", str(self._seed)),
            *("--learning-rate", str(rate), "--checkpoint-every", "10", "--json"),
            *(("--start", start) if start else ()),
        )


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
