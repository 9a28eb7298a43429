"""Rows for training from ratings: preference pairs and rated spans, from the store.

`read_rows` is what trainers use; `hermes export` writes the same pairs and spans in the shape of a format.
The prompt is what the model saw: with `as_seen` the recorded input of the call that began the completion,
examples and remembered facts included; without it the dataset's version of the same messages. Of imported
trajectories, whose calls have no recorded input, the conversation itself is the prompt.

Trajectories stream: the verdicts on all of them are read first, and the messages of a pair when it is made.
What gives no row is counted with its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from hermes.core import JSONObject, Message, RaterSource, StepKind
from hermes.data.diff import message_content
from hermes.data.example import Example, UnfitError, load
from hermes.data.export.select import LeftOut, TrajectorySelection, select
from hermes.data.export.split import NO_GROUPS, TaskGroups
from hermes.data.preference.pairs import (
    Claim,
    PairCandidate,
    PreferencePair,
    PreferenceSource,
    candidate,
    find_claims,
    make_pair,
)
from hermes.data.preference.verdicts import SpanVerdict, conversation_steps, rated_spans
from hermes.errors import UsageError
from hermes.store import Reader
from hermes.store.query import Evidence
from hermes.store.record import ModelInput

_KEPT_IN_MEMORY = 64
_EVIDENCE = {
    PreferenceSource.CHOICE: Evidence.RATING,
    PreferenceSource.RATING: Evidence.RATING,
    PreferenceSource.REWARD: Evidence.REWARD,
    PreferenceSource.RETRY: Evidence.RETRY,
}
RATED = TrajectorySelection(only_completed=False)
"""Every trajectory, also one that a limit ended: its answers were rated all the same."""


@dataclass(frozen=True, slots=True)
class RatedSpan:
    """Some messages of the assistant and the verdict on them."""

    prompt: tuple[Message, ...]
    """All that the model saw before them."""
    completion: tuple[Message, ...]
    """The rated messages: a turn, or one step of it."""
    score: float
    """1 to 5; a thumb is 5 or 1."""
    desirable: bool | None
    """Above or below 3; None: neither, or the raters contradict each other."""
    trajectory_id: str
    step_index: int | None
    """The rated step; None: the verdict is on the whole trajectory, which means its last turn."""
    task: str
    """Spans of one task belong on the same side of a split."""
    tools: tuple[JSONObject, ...] = ()
    rater_source: RaterSource = RaterSource.PERSON
    raters: tuple[str, ...] = ()
    ratings: tuple[str, ...] = ()
    """Ids of the rating events that the score is made of."""
    model: str = ""
    """The model that gave the answer, as its trajectory names it."""
    unseen: frozenset[tuple[int, int]] = frozenset()
    """Thinking in the completion that its later calls were not shown: `Example.unseen_within`."""


@dataclass(frozen=True)
class PreferenceRows:
    pairs: tuple[PreferencePair, ...] = ()
    spans: tuple[RatedSpan, ...] = ()
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason → trajectories, or pairs, that gave no row."""


Clean = Callable[[Example], Example]


@dataclass
class RowSource:
    """One pass over the store: spans while it reads, pairs afterwards."""

    reader: Reader
    selection: TrajectorySelection = RATED
    origins: Sequence[PreferenceSource] = tuple(PreferenceSource)
    """The kinds of evidence that make pairs, in order of precedence."""
    min_margin: float = 0.0
    as_seen: bool = True
    sources: Collection[RaterSource] | None = None
    """Whose verdicts count; None: those of people where there are any, else all."""
    clean: Clean = lambda example: example
    """Applied to an example before its messages are used: redaction."""
    left_out: LeftOut = field(default_factory=LeftOut)
    groups: TaskGroups = NO_GROUPS
    """Tasks that belong on one side of a split: rows of a group have the same task."""
    rule: str = "preference"
    """Name of the format or consumer in the list of what was left out."""

    def spans(self) -> Iterator[RatedSpan]:
        """Oldest trajectory first; those whose ratings say nothing about an answer are left out."""
        for example in select(self.reader, self._with_evidence((PreferenceSource.RATING,)), self.left_out):
            yield from self._spans(example)

    def pairs(self) -> Iterator[PreferencePair]:
        """In the order of the evidence."""
        chosen = self._with_evidence(self.origins)
        yield from self._pairs(
            [candidate(example, self.sources) for example in select(self.reader, chosen, self.left_out)]
        )

    def rows(self) -> PreferenceRows:
        """Both, from one pass."""
        candidates: list[PairCandidate] = []
        spans: list[RatedSpan] = []
        chosen = self._with_evidence((*self.origins, PreferenceSource.RATING))
        for example in select(self.reader, chosen, self.left_out):
            candidates.append(candidate(example, self.sources))
            spans.extend(self._spans(example))
        return PreferenceRows(tuple(self._pairs(candidates)), tuple(spans), self.left_out.reasons)

    def _with_evidence(self, origins: Sequence[PreferenceSource]) -> TrajectorySelection:
        """Only trajectories that can take part: most have no verdict at all."""
        evidence = tuple(sorted({_EVIDENCE[origin] for origin in origins}))
        return replace(self.selection, filters=replace(self.selection.filters, evidence=evidence))

    def _spans(self, example: Example) -> Iterator[RatedSpan]:
        verdicts = rated_spans(example, self.sources)
        if not verdicts:
            return
        clean = self.clean(example)
        for verdict in verdicts:
            yield self._span(clean, verdict, self.groups.key(example.task))

    def _span(self, example: Example, verdict: SpanVerdict, task: str) -> RatedSpan:
        context = self._context(example, verdict.start)
        return RatedSpan(
            context.messages,
            example.messages[verdict.start : verdict.stop],
            verdict.score,
            verdict.desirable,
            example.id,
            verdict.step_index,
            task,
            context.tools,
            verdict.ratings[-1].source,
            tuple(rating.rater for rating in verdict.ratings),
            tuple(rating.id for rating in verdict.ratings),
            example.trajectory.header.model,
            example.unseen_within(verdict.start, verdict.stop),
        )

    def _pairs(self, candidates: Sequence[PairCandidate]) -> Iterator[PreferencePair]:
        claims, undecided = find_claims(candidates, self.origins, self.min_margin)
        self.left_out.reasons.update(undecided)
        fetch = lru_cache(_KEPT_IN_MEMORY)(
            lambda trajectory_id: load(self.reader, self.reader.get(trajectory_id))
        )
        for claim in claims:
            try:
                yield self._pair(fetch(claim.better), fetch(claim.worse), claim)
            except UnfitError as error:
                self.left_out.add(f"{claim.better} > {claim.worse}", self.rule, str(error))

    def _pair(self, better: Example, worse: Example, claim: Claim) -> PreferencePair:
        clean_better, clean_worse = self.clean(better), self.clean(worse)
        pair = replace(make_pair(clean_better, clean_worse, claim), task=self.groups.key(better.task))
        if not self.as_seen:
            return pair
        start = len(pair.prompt)
        left, right = self._context(clean_better, start), self._context(clean_worse, start)
        if left.tools != right.tools or not _equal(left.messages, right.messages):
            raise UnfitError("the two models did not see the same context")
        return replace(pair, prompt=left.messages, tools=left.tools)

    def _context(self, example: Example, start: int) -> ModelInput:
        """The messages before the one at `start` when the model wrote it."""
        recorded = ModelInput(example.before(start), example.tools)
        step = conversation_steps(example)[start]
        if not self.as_seen or step.kind is not StepKind.MODEL:
            return recorded
        try:
            messages, tools = self.reader.model_input(example.id, step)
        except UsageError:
            return recorded  # imported: there is no other record of the input
        return ModelInput(messages, tuple(tools))


def read_rows(
    reader: Reader,
    selection: TrajectorySelection = RATED,
    *,
    origins: Sequence[PreferenceSource] = tuple(PreferenceSource),
    min_margin: float = 0.0,
    as_seen: bool = True,
    sources: Collection[RaterSource] | None = None,
    groups: TaskGroups = NO_GROUPS,
) -> PreferenceRows:
    """All pairs and rated spans of the selection."""
    return RowSource(reader, selection, origins, min_margin, as_seen, sources, groups=groups).rows()


def _equal(left: Sequence[Message], right: Sequence[Message]) -> bool:
    """But for the ids of calls, which are random."""
    return len(left) == len(right) and all(
        message_content(a) == message_content(b) for a, b in zip(left, right, strict=True)
    )
