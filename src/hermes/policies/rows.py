"""The rows that an improvement learns from and is judged by: rows of ratings, split by task.

Tasks that ask the same, in whichever run, are one task here (data/export/split.py): trained on, or held out.
Held-out comparisons decide about a promotion, so they must be independent of each other: one for each task. A
pair is one by itself. Where there are only single verdicts, a good answer of a task meets a bad one of the
same task, or of another task if it has none.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil

from hermes.core import JSONObject, Message
from hermes.data.export.split import NO_GROUPS, Side, TaskGroups, side_of, store_groups
from hermes.data.preference.pairs import PreferencePair, PreferenceSource
from hermes.data.preference.rows import RATED, RatedSpan, read_rows
from hermes.errors import UsageError
from hermes.store import Reader

_ORIGINS = (PreferenceSource.CHOICE, PreferenceSource.RATING)
MIN_PAIRS = 16
MIN_EACH_CLASS = 8
RLHF_PAIRS = 1000
_WATCHED_SHARE = 0.1


class Method(StrEnum):
    DPO = "dpo"
    KTO = "kto"
    RLHF = "rlhf"


@dataclass(frozen=True, slots=True)
class RatedAnswerText:
    """Messages that are scored: what the model saw, and what it wrote."""

    prompt: tuple[Message, ...]
    completion: tuple[Message, ...]
    tools: tuple[JSONObject, ...]
    unseen: frozenset[tuple[int, int]] = frozenset()
    """Thinking in the completion that its later calls were not shown: `Example.unseen_within`."""


@dataclass(frozen=True, slots=True)
class HeldOutComparison:
    """Two answers of which people said which is better."""

    better: RatedAnswerText
    worse: RatedAnswerText
    task: str


@dataclass
class ImprovementRows:
    pairs: list[PreferencePair] = field(default_factory=list)
    """To train on."""
    spans: list[RatedSpan] = field(default_factory=list)
    held_out_pairs: list[PreferencePair] = field(default_factory=list)
    held_out_spans: list[RatedSpan] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    ratings: tuple[str, ...] = ()
    """The events behind the rows to train on."""
    groups: TaskGroups = NO_GROUPS
    """All tasks of the store; a group is trained on or held out as a whole."""

    @property
    def good(self) -> int:
        return sum(span.desirable is True for span in self.spans)

    @property
    def bad(self) -> int:
        return sum(span.desirable is False for span in self.spans)


def gather_rows(
    reader: Reader, since_ms: int, eval_share: float, *, machines: bool = False
) -> ImprovementRows:
    """Rows with at least one rating that is newer than `since_ms`; `machines`: theirs beside people's."""
    groups = store_groups(reader)
    selection = replace(RATED, machine_ratings=machines)
    rows = read_rows(reader, selection, origins=_ORIGINS, groups=groups)
    fresh = {rating.id for rating in reader.all_ratings() if rating.created_at_ms > since_ms}
    split = ImprovementRows(left_out=rows.left_out, groups=groups)
    used: set[str] = set()
    for pair in rows.pairs:
        if fresh.isdisjoint(pair.ratings):
            split.left_out["used by an earlier improvement"] += 1
        elif side_of(pair.task, eval_share) is Side.EVAL:
            split.held_out_pairs.append(pair)
        else:
            split.pairs.append(pair)
            used.update(pair.ratings)
    for span in rows.spans:
        if fresh.isdisjoint(span.ratings):
            continue
        if side_of(span.task, eval_share) is Side.EVAL:
            split.held_out_spans.append(span)
        else:
            split.spans.append(span)
            used.update(span.ratings)
    split.ratings = tuple(sorted(used))
    return split


def split_watched(
    pairs: Sequence[PreferencePair], eval_share: float
) -> tuple[list[PreferencePair], list[PreferencePair]]:
    """Pairs to train on, and a share of them, by task, by which trainers choose and stop; never empty.

    `pairs` are those that `gather_rows` gave with this share, so their tasks are not held out.
    """
    share = eval_share + _WATCHED_SHARE * (1 - eval_share)
    watched = [pair for pair in pairs if side_of(pair.task, share) is Side.EVAL] or list(pairs[-1:])
    tasks = {pair.task for pair in watched}
    return [pair for pair in pairs if pair.task not in tasks], watched


@dataclass(frozen=True, slots=True)
class RatingsNeeded:
    """About how many more ratings of other tasks an improvement needs: pairs, or good and bad answers."""

    pairs: int
    good: int
    bad: int

    @property
    def enough(self) -> bool:
        return self.pairs == 0 or self.good == self.bad == 0

    def __str__(self) -> str:
        if self.enough:
            return "enough to improve"
        singles = [
            f"{count} more {word}" for word, count in (("good", self.good), ("bad", self.bad)) if count
        ]
        return (
            f"an improvement needs about {' and '.join(singles)} answers, or {self.pairs} more pairs"
            " (/retry in a chat answers again: rate both)"
        )


def ratings_needed(rows: ImprovementRows, least_comparisons: int, eval_share: float) -> RatingsNeeded:
    """How many more are needed if `eval_share` of what is rated next is held out and the rest trained on."""
    comparisons = _single_verdicts(rows.held_out_spans)

    def more(trained: int, least: int, held_out: int, decidable: bool) -> int:
        missing = 0 if decidable else least_comparisons - held_out
        return ceil(max(0.0, (least - trained) / (1 - eval_share), missing / eval_share))

    def single(desirable: bool, trained: int) -> int:
        held_out = {span.task for span in rows.held_out_spans if span.desirable is desirable}
        return more(trained, MIN_EACH_CLASS, len(held_out), len(comparisons) >= least_comparisons)

    held_out_pairs = len(_pairs(rows.held_out_pairs))
    pairs = more(len(rows.pairs), MIN_PAIRS, held_out_pairs, held_out_pairs >= least_comparisons)
    return RatingsNeeded(pairs, single(True, rows.good), single(False, rows.bad))


def answer_models(rows: ImprovementRows) -> Counter[str]:
    """Whose answers are learned from: model → rated answers."""
    models = Counter(span.model for span in rows.spans)
    for pair in rows.pairs:
        models.update((pair.chosen_model, pair.rejected_model))
    return models


def choose_method(
    rows: ImprovementRows, forced: Method | None = None, needed: RatingsNeeded | None = None
) -> tuple[Method, str]:
    """The method and the reason for it; UsageError if there is too little for any, with what is `needed`."""
    enough_pairs = len(rows.pairs) >= MIN_PAIRS
    enough_spans = min(rows.good, rows.bad) >= MIN_EACH_CLASS
    counts = f"{len(rows.pairs)} pairs, {rows.good} good and {rows.bad} bad answers to train on"
    if forced is not None:
        if not (enough_spans if forced is Method.KTO else enough_pairs):
            raise UsageError(f"there is too little for {forced.value}: {counts}", _needs(needed))
        return forced, f"{forced.value}, as asked: {counts}"
    if len(rows.pairs) >= RLHF_PAIRS:
        return Method.RLHF, f"rlhf: {counts}, enough for a reward model ({RLHF_PAIRS} pairs)"
    if enough_pairs and not (needed and needed.pairs and needed.enough):  # else single verdicts decide
        return Method.DPO, f"dpo: {counts}; too few for a reward model, which needs {RLHF_PAIRS} pairs"
    if enough_spans:
        return Method.KTO, f"kto: {counts}; too few pairs for dpo, which needs {MIN_PAIRS}, and more held out"
    if not (rows.spans or rows.pairs or rows.held_out_spans or rows.held_out_pairs):
        raise UsageError("there are no new ratings to learn from", "rate something: hermes rate queue")
    if rows.spans and 0 in (rows.good, rows.bad):
        missing = "bad" if rows.bad == 0 else "good"
        raise UsageError(f"there is no {missing} answer among {counts}", _needs(needed))
    raise UsageError(f"there is too little to learn from: {counts}", _needs(needed))


def _needs(needed: RatingsNeeded | None) -> str:
    if needed is not None and not needed.enough:
        return f"{needed}; rate more: hermes rate queue"
    return (
        f"{MIN_PAIRS} pairs, or {MIN_EACH_CLASS} good and {MIN_EACH_CLASS} bad answers, are the least;"
        " rate more: hermes rate queue"
    )


def held_out_comparisons(rows: ImprovementRows, method: Method, seed: int = 0) -> list[HeldOutComparison]:
    """One for each held-out task, in an order that depends on the seed only."""
    comparisons = (
        _single_verdicts(rows.held_out_spans) if method is Method.KTO else _pairs(rows.held_out_pairs)
    )
    random.Random(seed).shuffle(comparisons)
    return comparisons


def _pairs(pairs: Sequence[PreferencePair]) -> list[HeldOutComparison]:
    by_task: dict[str, PreferencePair] = {}
    for pair in sorted(pairs, key=lambda entry: (entry.task, entry.chosen_id, entry.rejected_id)):
        by_task.setdefault(pair.task, pair)
    return [
        HeldOutComparison(
            RatedAnswerText(pair.prompt, pair.chosen, pair.tools, pair.chosen_unseen),
            RatedAnswerText(pair.prompt, pair.rejected, pair.tools, pair.rejected_unseen),
            task,
        )
        for task, pair in by_task.items()
    ]


def _single_verdicts(spans: Sequence[RatedSpan]) -> list[HeldOutComparison]:
    """Every task is in one comparison only: with itself if it has a good and a bad answer."""
    by_task: dict[str, list[RatedSpan]] = defaultdict(list)
    for span in sorted(spans, key=lambda entry: (entry.task, entry.trajectory_id)):
        if span.desirable is not None:
            by_task[span.task].append(span)
    comparisons: list[HeldOutComparison] = []
    good: list[RatedSpan] = []
    bad: list[RatedSpan] = []
    for task, group in by_task.items():
        better = next((span for span in group if span.desirable), None)
        worse = next((span for span in group if not span.desirable), None)
        if better is not None and worse is not None:
            comparisons.append(HeldOutComparison(_text(better), _text(worse), task))
        elif better is not None:
            good.append(better)
        elif worse is not None:
            bad.append(worse)
    return comparisons + [
        HeldOutComparison(_text(better), _text(worse), f"{better.task} | {worse.task}")
        for better, worse in zip(good, bad, strict=False)
    ]


def _text(span: RatedSpan) -> RatedAnswerText:
    return RatedAnswerText(span.prompt, span.completion, span.tools, span.unseen)
