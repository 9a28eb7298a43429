"""From ratings to a promoted policy: rows, training, comparison on held-out data, decision, report.

Training runs as `hermes train …` in processes of its own, against an engine that is started for it or a
service that is named. A candidate is promoted only if the sequential test on held-out ratings says that it is
better, and a rater of held-out answers, where one is named, does not say that it is worse. Else the old
policy stays.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.config.option import option
from hermes.config.paths import db_path
from hermes.core import JSONObject
from hermes.core.clock import now_ms
from hermes.core.names import policy_name, unused_name
from hermes.data.formats.base import ToolCallStyle
from hermes.data.formats.trl import preference_row, unpaired_row
from hermes.data.preference.pairs import PreferencePair
from hermes.disk.files import atomic_write, ensure_dir
from hermes.engine.server.options import EngineServeOptions
from hermes.errors import HermesError, UsageError
from hermes.policies.answers import AnswerPair, answer_both
from hermes.policies.report import ImprovementFacts, verdict_line, write_report
from hermes.policies.rows import (
    HeldOutComparison,
    ImprovementRows,
    Method,
    RatingsNeeded,
    answer_models,
    choose_method,
    gather_rows,
    held_out_comparisons,
    ratings_needed,
    split_watched,
)
from hermes.policies.scoring import ComparisonGain, compare_likelihoods
from hermes.policies.sequential import (
    DEFAULT_ERROR_RATE,
    SequentialDecision,
    SequentialTest,
    fewest_wins,
    run_test,
    spent_error_rate,
)
from hermes.rl.supervise import ports
from hermes.rl.supervise.process_group import ProcessGroup, sigterm_as_interrupt
from hermes.serving.fetch import fetch_json
from hermes.store import Reader
from hermes.training.options import PolicyFields, RatingFields, RowLoopFields
from hermes.training.policy_registry import PolicyRecord, PolicyRegistry, new_policy_id
from hermes.training.preference.prompts import pair_prompts

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.ratings.auto import AutoRater

_PARSER = "hermes"
_ANSWERS_PER_PROMPT = 8
"""In a step of RLHF."""
_NO_RLHF = "--method dpo, which learns from pairs of any form"


class ImproveSettings(RatingFields, RowLoopFields, PolicyFields):
    """The options of `hermes improve`, declared once (`config/option.py`)."""

    method: Method | None = option(None, "How to learn; chosen by the number of ratings if unset.")
    error_rate: float = option(
        DEFAULT_ERROR_RATE,
        "Chance of promoting one that is no better, over all candidates against one policy.",
        gt=0,
        le=0.5,
    )
    eval_share: float = option(
        0.3, "Share of tasks whose ratings are held out for the decision.", gt=0, le=0.9
    )
    everything: bool = option(False, "All ratings, not only those since the last time.", "--all")
    service: str | None = option(
        None, "An engine or service that runs already.", former=("--base-url",), metavar="URL"
    )
    device: str = option("auto", "Device of the engine that is started.", metavar="[auto|cpu|cuda]")
    epochs: int = option(3, "Passes over the ratings.", ge=1)
    max_tokens: int = option(2048, "Longest sequence.", ge=1)
    answer_tokens: int = option(200, "Longest answer that is compared.", ge=1)
    examples: int = option(
        16, "Most held-out tasks that both policies answer.", "--limit", former=("--examples",), ge=0
    )


@dataclass(frozen=True)
class Improvement:
    """The outcome of one run."""

    record: PolicyRecord
    promoted: bool
    sentence: str
    report: Path
    models: Collection[str] = ()
    """Whose answers it was learned from."""


Progress = Callable[[str], None]
Agree = Callable[[str, str], None]
"""Asks whether a base model is to learn from other models' answers: the fact, and the base model. It raises
if not."""


def new_ratings(config: Config) -> int:
    """Ratings since the last candidate was made."""
    last = max((record.ratings_until_ms for record in PolicyRegistry(config.home).policies()), default=0)
    with Reader(db_path(config.home)) as reader:
        return sum(rating.created_at_ms > last for rating in reader.all_ratings())


def rating_progress(home: Path, reader: Reader) -> RatingsNeeded:
    """How far the ratings are from what `hermes improve` needs, with its own defaults."""
    settings, registry = ImproveSettings(), PolicyRegistry(home)
    current = registry.current(settings.base_model)
    error_rate = spent_error_rate(settings.error_rate, registry.attempts(current.id) + 1)
    rows = gather_rows(reader, current.ratings_until_ms, settings.eval_share)
    return ratings_needed(rows, fewest_wins(error_rate), settings.eval_share)


def improve(
    config: Config, settings: ImproveSettings, rater: AutoRater | None, progress: Progress, agree: Agree
) -> Improvement:
    """UsageError if there is too little to learn from, or too little held out to decide anything."""
    registry, until_ms = PolicyRegistry(config.home), now_ms()
    current = registry.current(settings.base_model)
    rows, method, reason, comparisons, error_rate = _plan(config, settings, registry, current)
    _name_models(config, settings.base_model, answer_models(rows), agree, progress)
    progress(f"{reason}; {rows.groups}")
    policy_id = new_policy_id()
    folder = ensure_dir(registry.folder / policy_id)
    with _engine(config, settings, folder, progress) as (processes, url):
        trainer = _PolicyTrainer(settings, folder, processes, url, current, run_stem(config.home))
        result = trainer.train(method, rows, progress)
        record = PolicyRecord(
            policy_id,
            settings.base_model,
            str(result["weights"]),
            str(result["sampler"]),
            str(result["run_id"]),
            current.id,
            method.value,
            rows.ratings,
            until_ms,
            created_at_ms=until_ms,
            name=policy_name(str(result["run_id"]), int(result["step"])),
            texts=current.texts,
        )
        progress(
            f"comparing {record.label} with policy {current.label} on {len(comparisons)} held-out comparisons"
        )
        gains = _gains(config, settings, url, current, record, comparisons, folder)
        answers = _answers(config, settings, url, current, record, comparisons, rater, progress)
    improvement = _decide(registry, record, reason, rows, gains, answers, rater, error_rate, folder)
    return replace(improvement, models=tuple(answer_models(rows)))


def check_ready(config: Config, settings: ImproveSettings) -> None:
    """UsageError now, if `improve` would have too little to learn from or to decide with."""
    registry = PolicyRegistry(config.home)
    _plan(config, settings, registry, registry.current(settings.base_model))


def _plan(
    config: Config, settings: ImproveSettings, registry: PolicyRegistry, current: PolicyRecord
) -> tuple[ImprovementRows, Method, str, list[HeldOutComparison], float]:
    """The rows, the method and why, what decides, and the error rate that is left."""
    if current.base_model != settings.base_model:
        raise UsageError(
            f"the current policy stands on {current.base_model}, not on {settings.base_model}",
            f"--base-model {current.base_model}, or hermes policy promote base",
        )
    with Reader(db_path(config.home)) as reader:
        since_ms = 0 if settings.everything else current.ratings_until_ms
        rows = gather_rows(reader, since_ms, settings.eval_share, machines=settings.machine_ratings)
    error_rate = spent_error_rate(settings.error_rate, registry.attempts(current.id) + 1)
    needed = ratings_needed(rows, fewest_wins(error_rate), settings.eval_share)
    method, reason = choose_method(rows, settings.method, needed)
    comparisons = held_out_comparisons(rows, method, settings.seed)
    check_decidable(len(comparisons), error_rate, needed)
    return rows, method, reason, comparisons, error_rate


def run_stem(home: Path) -> str:
    """`improve-1118`; with a number if runs of this day have it already."""
    stems = [path.name.rpartition("-")[0] for path in (home / "runs").glob("*")]
    return unused_name(time.strftime("improve-%m%d"), stems)


def _name_models(
    config: Config, base_model: str, models: Counter[str], agree: Agree, progress: Progress
) -> None:
    """Says whose answers are learned from. `agree` is asked if they are not the base model's own."""
    from hermes.rl.weights.open import find_policy

    def base_of(model: str) -> str:
        try:
            policy = find_policy(config, model)
        except UsageError:  # a policy that is gone
            return model
        return model if policy is None else policy.base_model

    names = ", ".join(f"{model or 'an unknown model'} ({count})" for model, count in models.most_common(5))
    fact = f"{base_model} learns from rated answers of {names}"
    if any(base_of(model) != base_model for model in models):
        agree(fact, base_model)
    progress(fact)


def check_decidable(held_out: int, error_rate: float, needed: object) -> None:
    """UsageError if so few held-out tasks can never decide; `needed` says how many more ratings or tasks."""
    least = fewest_wins(error_rate)
    if held_out < least:
        raise UsageError(
            f"{held_out} held-out tasks can never show that a policy is better:"
            f" at an error rate of {error_rate:.2g} it takes at least {least}",
            f"{needed}; or hold out more (--eval-share), or accept a higher --error-rate",
        )


def _decide(
    registry: PolicyRegistry,
    record: PolicyRecord,
    reason: str,
    rows: ImprovementRows,
    gains: list[ComparisonGain],
    answers: list[AnswerPair],
    rater: AutoRater | None,
    error_rate: float,
    folder: Path,
) -> Improvement:
    test = run_test([gain.result for gain in gains], error_rate)
    results = [pair.result for pair in answers if pair.result is not None]
    answers_test = run_test(results, error_rate) if results else None
    promoted = should_promote(test, answers_test)
    record = replace(
        record,
        decision=test.decision.value,
        report=str(folder / "report.md"),
        facts=_figures(test, answers_test),
    )
    facts = ImprovementFacts(
        record,
        reason,
        rows,
        test,
        gains,
        answers,
        answers_test,
        rater.name if rater else None,
        promoted,
    )
    report = write_report(facts, folder)
    registry.add(record)
    sentence = verdict_line(facts)
    if promoted:
        registry.promote(record.id, sentence)
    return Improvement(record, promoted, sentence, report)


def should_promote(ratings: SequentialTest, answers: SequentialTest | None) -> bool:
    """Better on held-out ratings, and not worse on held-out tasks."""
    worse = answers is not None and answers.decision is SequentialDecision.WORSE
    return ratings.decision is SequentialDecision.BETTER and not worse


def _figures(test: SequentialTest, answers: SequentialTest | None) -> JSONObject:
    figures: JSONObject = {
        "wins": test.wins,
        "losses": test.losses,
        "ties": test.ties,
        "evidence": test.highest,
        "error_rate": test.error_rate,
    }
    if answers is not None:
        figures["tasks"] = {"wins": answers.wins, "losses": answers.losses, "ties": answers.ties}
    return figures


@contextmanager
def _engine(
    config: Config, settings: ImproveSettings, folder: Path, progress: Progress
) -> Iterator[tuple[ProcessGroup, str]]:
    """The processes of the run, and the address of the engine or service that trains."""
    from hermes.config.environment import without_stored

    environ = {**without_stored(os.environ), "HERMES_HOME": str(config.home)}
    with sigterm_as_interrupt(), ProcessGroup(folder / "logs", folder, environ) as processes:
        url = settings.service
        if url is None:
            port = ports.choose(0, reserved=(0,))  # any: 8001 is where others look for an engine
            url = f"http://127.0.0.1:{port}"
            progress(f"the engine loads {settings.base_model}")
            engine = EngineServeOptions(
                model=settings.base_model,
                device=settings.device,
                port=port,
                state_dir=config.home / "engine",
            )
            processes.serve("engine", engine.arguments(), lambda: fetch_json(f"{url}/health") is not None)
        yield processes, url


@dataclass(frozen=True)
class _PolicyTrainer:
    settings: ImproveSettings
    folder: Path
    processes: ProcessGroup
    url: str
    current: PolicyRecord
    stem: str
    """How the names of its training runs begin."""

    def train(self, method: Method, rows: ImprovementRows, progress: Progress) -> JSONObject:
        """The trainer's result: run_id, weights, sampler."""
        if method is Method.KTO:
            answers = self._write("answers", _unpaired(rows))
            progress(f"kto on {rows.good + rows.bad} answers")
            return self._run("kto", (str(answers), "--eval-share", "0"))
        if method is Method.DPO:
            progress(f"dpo on {len(rows.pairs)} pairs")
            return self._run("dpo", (str(self._write_pairs("pairs", rows.pairs)), "--eval-share", "0"))
        return self._rlhf(rows.pairs, progress)

    def _rlhf(self, pairs: Sequence[PreferencePair], progress: Progress) -> JSONObject:
        """Rows held out for the decision are used by neither trainer, not even to stop it: the error rate
        is stated for comparisons that the candidate was not selected by."""
        openings = pair_prompts(pairs)
        if not openings:
            raise UsageError("no rated pair begins with a question in text that rlhf could answer", _NO_RLHF)
        trained, watched = split_watched(pairs, self.settings.eval_share)
        rows = self._write_pairs("pairs", trained)
        evaluated = ("--eval-file", str(self._write_pairs("pairs-watched", watched)))
        progress(f"reward model on {len(trained)} pairs")
        reward = self._run("reward", (str(rows), *evaluated), start=False)
        prompts = self._write("prompts", openings)
        progress("rlhf against the reward model")
        steps = self.settings.max_steps or max(1, self.settings.epochs * len(pairs) // 64)
        return self._run(
            "rlhf",
            (
                *("--reward-model", str(reward["run_id"]), "--prompts", str(prompts)),
                *("--num-steps", str(steps), "--preferences", evaluated[1]),
                *("--batch-size", str(self.settings.batch_size * _ANSWERS_PER_PROMPT)),
                *("--rollouts-per-prompt", str(_ANSWERS_PER_PROMPT)),
                *("--answer-tokens", str(self.settings.answer_tokens)),
            ),
            offline=False,
        )

    def _run(
        self, kind: str, arguments: tuple[str, ...], *, start: bool = True, offline: bool = True
    ) -> JSONObject:
        settings = self.settings
        loop: tuple[str, ...] = ()
        if offline:
            loop = ("--epochs", str(settings.epochs), "--batch-size", str(settings.batch_size))
            if settings.max_steps is not None:
                loop += ("--max-steps", str(settings.max_steps))
        rate = settings.learning_rate
        return self.processes.run(
            kind,
            (
                *("train", kind, *arguments, *loop, "--base-model", settings.base_model),
                *("--service", self.url, "--rank", str(settings.lora_rank), "--seed", str(settings.seed)),
                *("--max-tokens", str(settings.max_tokens), "--name", f"{self.stem}-{kind}"),
                *(("--learning-rate", str(rate)) if rate is not None else ()),
                *(("--start", self.current.weights) if start and self.current.weights else ()),
                "--json",
            ),
        )

    def _write_pairs(self, name: str, pairs: Sequence[PreferencePair]) -> Path:
        return self._write(name, [pair_row(pair) for pair in pairs])

    def _write(self, name: str, rows: list[JSONObject]) -> Path:
        path = self.folder / f"{name}.jsonl"
        atomic_write(path, "".join(json.dumps(row) + "\n" for row in rows))
        return path


def pair_row(pair: PreferencePair) -> JSONObject:
    unseen = {"chosen_unseen": sorted(pair.chosen_unseen), "rejected_unseen": sorted(pair.rejected_unseen)}
    return preference_row(pair, ToolCallStyle.STRUCTURED) | unseen


def _unpaired(rows: ImprovementRows) -> list[JSONObject]:
    return [
        unpaired_row(
            span.trajectory_id,
            span.prompt,
            span.completion,
            span.desirable,
            span.score,
            span.tools,
            ToolCallStyle.STRUCTURED,
        )
        | {"completion_unseen": sorted(span.unseen)}
        for span in rows.spans
        if span.desirable is not None
    ]


def _gains(
    config: Config,
    settings: ImproveSettings,
    url: str,
    current: PolicyRecord,
    record: PolicyRecord,
    comparisons: list[HeldOutComparison],
    folder: Path,
) -> list[ComparisonGain]:
    from hermes.envs.tokenise import load_tokenizer
    from hermes.models.render.chat import ChatRenderer
    from hermes.training.service.client import LoraSpec, connection

    assert record.weights is not None
    renderer = ChatRenderer.of(load_tokenizer(settings.base_model), _PARSER, settings.max_tokens)
    return compare_likelihoods(
        comparisons,
        renderer,
        connection(url, config.environ),
        LoraSpec(settings.base_model, settings.lora_rank, settings.seed),
        current.weights,
        record.weights,
        folder,
        settings.max_tokens,
    )


def _answers(
    config: Config,
    settings: ImproveSettings,
    url: str,
    current: PolicyRecord,
    record: PolicyRecord,
    comparisons: list[HeldOutComparison],
    rater: AutoRater | None,
    progress: Progress,
) -> list[AnswerPair]:
    if not settings.examples:
        return []
    if fetch_json(f"{url}/health") is None:
        progress("the service has no OpenAI endpoint: no examples before and after")
        return []
    models = (current.sampler or settings.base_model, record.sampler or "")
    progress(f"both policies answer {min(settings.examples, len(comparisons))} held-out tasks")
    chosen = comparisons[: settings.examples]
    try:
        return asyncio.run(answer_both(config, url, models, chosen, rater, settings.answer_tokens))
    except HermesError as error:
        if rater is not None:
            raise
        progress(f"no examples before and after: {error.message}")
        return []
