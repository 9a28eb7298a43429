"""Answers of the model for the feedback act: recorded in the store, rated by the rule, and held-out ones."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from hermes.batch.spec import RunSpec
from hermes.batch.tasks import read_dataset
from hermes.config.load import load
from hermes.config.paths import db_path
from hermes.core import JSONObject, RaterSource
from hermes.core.rating import RatingDraft
from hermes.core.stats import Interval, interval
from hermes.data.export.select import LeftOut, TrajectorySelection, select
from hermes.disk.files import atomic_write, ensure_dir
from hermes.errors import HermesError
from hermes.quickstart.act import MODEL
from hermes.quickstart.feedback.rule import SYSTEM_PROMPT, RuleVerdict, examples, judge
from hermes.quickstart.generate import run_batch
from hermes.quickstart.progress import StageMeter
from hermes.serving.fetch import fetch
from hermes.store import Filter, Reader, Writer
from hermes.training.session import ProgressCallback

RATER = "rule: short, polite, figure first"
_PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How many answers of which style are recorded."""

    samples: int
    """Answers to each question, of each style."""
    answer_tokens: int
    temperature: float
    at_once: int
    seed: int


def record_answers(
    questions: list[str],
    plan: AnswerPlan,
    engine_url: str,
    weights: str,
    folder: Path,
    run_name: str,
    progress: ProgressCallback,
) -> int:
    """Answers each question with and without examples before it; how many answers there are."""
    path = ensure_dir(folder) / "questions.jsonl"
    atomic_write(path, "".join(json.dumps({"prompt": text}) + "\n" for text in questions))
    dataset = read_dataset(str(path))
    answered = 0
    for style, prefill in (("plain", ()), ("shown", examples())):
        spec = RunSpec(
            name=run_name,
            dataset=str(path),
            dataset_digest=dataset.digest,
            model=weights,
            base_url=f"{engine_url}/v1",
            toolsets=("none",),
            samples_per_prompt=plan.samples,
            seed=plan.seed + len(prefill),
            settings={
                "system_prompt": SYSTEM_PROMPT,
                "limits.max_turns": 1,
                "sampling.temperature": plan.temperature,
                "sampling.max_tokens": plan.answer_tokens,
            },
            prefill=tuple(message.to_json() for message in prefill),
        )
        meter = StageMeter(f"answers, {style}", len(dataset.rows) * plan.samples, progress)
        answered += run_batch(folder / style, spec, dataset, plan.at_once, meter)
    return answered


def rate_answers(run_name: str) -> dict[str, RuleVerdict]:
    """Rates every answer of the run by the rule, as rating events in the store; by trajectory id."""
    path = db_path(load().home)
    selection = TrajectorySelection(Filter(run_id=run_name), only_completed=False)
    with Reader(path) as reader:
        answers = {example.id: example.trajectory.answer for example in select(reader, selection, LeftOut())}
    verdicts = {trajectory_id: judge(text) for trajectory_id, text in answers.items()}
    with Writer(path) as writer:
        for trajectory_id, verdict in verdicts.items():
            draft = RatingDraft(trajectory_id, f"{verdict.stars:.0f}", RATER, source=RaterSource.REWARD)
            writer.add_rating(draft.build())
    return verdicts


@dataclass(frozen=True, slots=True)
class PolicyAnswers:
    """The answers of one policy to the held-out questions, greedy."""

    texts: tuple[str, ...]

    @property
    def verdicts(self) -> list[RuleVerdict]:
        return [judge(text) for text in self.texts]

    @property
    def stars(self) -> float:
        return fmean(verdict.stars for verdict in self.verdicts)

    @property
    def words(self) -> float:
        return fmean(len(text.split()) for text in self.texts)

    def wins_against(self, base: PolicyAnswers) -> Interval:
        """1 where the rule gives more stars, 0.5 for as many; the mean with its interval."""
        return interval(
            [
                1.0 if mine.stars > theirs.stars else 0.5 if mine.stars == theirs.stars else 0.0
                for mine, theirs in zip(self.verdicts, base.verdicts, strict=True)
            ]
        )

    def summary(self, base: PolicyAnswers) -> JSONObject:
        verdicts = self.verdicts
        return {
            "stars": self.stars,
            "words": self.words,
            "figure_first": fmean(verdict.figure_first for verdict in verdicts),
            "short": fmean(verdict.short for verdict in verdicts),
            "polite": fmean(verdict.polite for verdict in verdicts),
            "wins": asdict(self.wins_against(base)),
            "examples": list(self.texts[:3]),
        }


def held_out_answers(
    questions: list[str], engine_url: str, weights: str, answer_tokens: int, at_once: int
) -> PolicyAnswers:
    """Greedy answers of these weights: the base model's name, or a tinker:// path."""
    with ThreadPoolExecutor(at_once) as threads:
        texts = threads.map(lambda text: _ask(engine_url, weights, text, answer_tokens), questions)
        return PolicyAnswers(tuple(texts))


def _ask(engine_url: str, weights: str, text: str, answer_tokens: int) -> str:
    body = {
        "model": weights or MODEL,
        "messages": [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": answer_tokens,
    }
    try:
        response = fetch(f"{engine_url}/v1/chat/completions", body, timeout_s=_PATIENCE_S)
        content = json.loads(response)["choices"][0]["message"]["content"]
    except OSError as error:
        raise HermesError(f"the engine at {engine_url} does not answer: {error}", "see its log") from error
    return str(content or "")
