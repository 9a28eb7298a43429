"""Preference pairs: two ways to go on from the same point, one better than the other.

The prompt is an exact shared prefix of both trajectories, the longest after which both go on with the
assistant. Where they first differ is recorded too; it can be further on (the same call got another
result). Candidates that make no pair are counted with the reason.

Pairs come from four kinds of evidence: choices between the two, ratings of both, rewards of attempts at one
task, and a second attempt at an answer that was not good enough. Ratings are of answers, not of
trajectories: two of them make a pair only if both answer the same context, and the pair is made of those
answers. A choice that names steps is one between the turns of those steps; one that names none is between the
turns in which the two part. Of several choices between the same answers the newest of each rater counts, and
most of those who prefer one have to prefer the same one. How ratings compare two answers is in `verdicts`.
Within a task (for ratings: answers to a context that comparisons connect) each try is paired with the best
one and with the worst one only, so that n tries give at most 2n pairs, not n².
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from hermes.core import (
    JSONObject,
    Message,
    RaterSource,
    Rating,
    RatingKind,
    Relation,
    Role,
    canonical_json,
    content_hash,
)
from hermes.core.rating import PAIRWISE_KINDS
from hermes.data.diff import message_content
from hermes.data.example import Example, UnfitError
from hermes.data.preference.verdicts import (
    RatedAnswer,
    compare,
    context_of,
    counting,
    last_turn,
    majority,
    rated_answers,
    rated_step,
    rated_turn,
    turn_end,
)


class PreferenceSource(StrEnum):
    """The evidence that one is better."""

    CHOICE = "choice"
    RATING = "rating"
    REWARD = "reward"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class PreferencePair:
    prompt: tuple[Message, ...]
    """As the chosen side has it; the other side's differs in the random ids of calls at most."""
    chosen: tuple[Message, ...]
    """The rest of the turn: up to the next user message."""
    rejected: tuple[Message, ...]
    chosen_id: str
    rejected_id: str
    divergence_step: int
    """Index of the first message that differs."""
    origin: PreferenceSource
    margin: float
    """Difference of ratings or rewards, strength of a choice; 1 for a retry."""
    task: str
    """Pairs of one task belong on the same side of a split."""
    tools: tuple[JSONObject, ...] = ()
    ratings: tuple[str, ...] = ()
    """Ids of the rating events that made the pair; none for rewards and retries."""
    chosen_model: str = ""
    """The model that gave the chosen answer, as its trajectory names it."""
    rejected_model: str = ""
    chosen_unseen: frozenset[tuple[int, int]] = frozenset()
    """Thinking in the chosen turn that its later calls were not shown: `Example.unseen_within`."""
    rejected_unseen: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class PairCandidate:
    """The verdicts on a trajectory, without its messages: many fit in memory."""

    id: str
    task: str
    answers: tuple[RatedAnswer, ...]
    """Its rated turns."""
    reward: float | None
    choices: tuple[tuple[Rating, int | None], ...]
    """Its pairwise ratings, from either side, with the start of its turn; None: where the two part."""
    retry_of: str | None
    last_context: str | None
    """The context of its last turn, which is the one that a retry does again."""
    last_start: int | None

    def answer(self, context: str | None) -> RatedAnswer | None:
        """Its rated answer to this context."""
        return next((answer for answer in self.answers if answer.context == context), None)


@dataclass(frozen=True, slots=True)
class Claim:
    """One piece of evidence that a trajectory is better than another."""

    better: str
    worse: str
    origin: PreferenceSource
    margin: float
    start: int | None = None
    """Index of the first message of the turn it is about, in both; None: where the two first differ."""
    ratings: tuple[str, ...] = ()
    """Ids of the rating events behind it."""
    problem: str | None = None
    """Why it cannot become a pair, where the evidence itself says so."""


def candidate(example: Example, sources: Collection[RaterSource] | None = None) -> PairCandidate:
    """`sources`: only verdicts of these count; None: of people where there are any, else of all."""
    header, start = example.trajectory.header, last_turn(example)
    return PairCandidate(
        example.id,
        content_hash(canonical_json(example.task)),
        rated_answers(example, sources),
        example.reward,
        tuple(
            (rating, None if rated_step(example, rating) is None else rated_turn(example, rating))
            for rating in example.ratings
            if rating.kind in PAIRWISE_KINDS and (sources is None or rating.source in sources)
        ),
        header.parent_id if header.relation is Relation.RETRY else None,
        None if start is None else context_of(example, start),
        start,
    )


def find_claims(
    candidates: Sequence[PairCandidate], origins: Sequence[PreferenceSource], min_margin: float = 0.0
) -> tuple[list[Claim], Counter[str]]:
    """The claims that the evidence supports, at most one for two answers; and the reasons for those it does
    not.

    The first kind of `origins` that has evidence on two trajectories decides.
    """
    by_id = {candidate.id: candidate for candidate in candidates}
    claims: list[Claim] = []
    left_out: Counter[str] = Counter()
    decided: dict[frozenset[str], tuple[PreferenceSource, set[int | None]]] = {}
    for origin in origins:
        for claim in _EVIDENCE[origin](by_id):
            both = frozenset((claim.better, claim.worse))
            by, turns = decided.setdefault(both, (origin, set()))
            if len(both) < 2 or by is not origin or claim.start in turns:
                continue
            turns.add(claim.start)
            if not both <= by_id.keys():
                left_out["the other trajectory is not part of the selection"] += 1
            elif claim.problem is not None:
                left_out[f"{origin.value}: {claim.problem}"] += 1
            elif claim.margin <= 0 or claim.margin < min_margin:
                left_out[f"{origin.value}: no clear difference"] += 1
            else:
                claims.append(claim)
    return claims, left_out


def make_pair(better: Example, worse: Example, claim: Claim) -> PreferencePair:
    """The pair that a claim gives; `UnfitError` if it gives none."""
    if better.tools != worse.tools:
        raise UnfitError("the two had different tools")
    left, right = better.messages, worse.messages
    if claim.start is not None:
        left, right = _up_to_turn(left, claim.start), _up_to_turn(right, claim.start)
    shared = shared_prefix(left, right)
    if shared == len(left) == len(right):
        raise UnfitError("the two are equal")
    if claim.start is not None and shared < claim.start:
        raise UnfitError("the two do not answer the same context")
    start = _decision_point(left, right, shared)
    if start is None:
        raise UnfitError("the two have no common point where the assistant speaks")
    chosen, rejected = rest_of_turn(left[start:]), rest_of_turn(right[start:])
    if [message_content(message) for message in chosen] == [message_content(message) for message in rejected]:
        raise UnfitError("the two differ only in what the user said later")
    prompt = better.before(start)
    if shared_prefix(prompt, worse.before(start)) < start:
        raise UnfitError("the two models did not see the same context")
    return PreferencePair(
        prompt,
        chosen,
        rejected,
        better.id,
        worse.id,
        shared,
        claim.origin,
        claim.margin,
        better.task,
        better.tools,
        claim.ratings,
        better.trajectory.header.model,
        worse.trajectory.header.model,
        better.unseen_within(start, start + len(chosen)),
        worse.unseen_within(start, start + len(rejected)),
    )


def shared_prefix(left: Sequence[Message], right: Sequence[Message]) -> int:
    """Number of leading messages that are equal; ids of calls, which are random, do not count."""
    shared = 0
    for a, b in zip(left, right, strict=False):
        if message_content(a) != message_content(b):
            break
        shared += 1
    return shared


def rest_of_turn(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The assistant's messages and the results of its calls, up to the next user message."""
    return tuple(messages[: turn_end(messages, 0)])


def _up_to_turn(messages: tuple[Message, ...], start: int) -> tuple[Message, ...]:
    """The trajectory without the messages after the turn."""
    return messages[:start] + rest_of_turn(messages[start:])


def _decision_point(left: Sequence[Message], right: Sequence[Message], shared: int) -> int | None:
    """The last place up to `shared` where both go on with the assistant, after at least one message."""
    for start in range(min(shared, len(left) - 1, len(right) - 1), 0, -1):
        if left[start].role is Role.ASSISTANT and right[start].role is Role.ASSISTANT:
            return start
    return None


def _choices(candidates: Mapping[str, PairCandidate]) -> Iterator[Claim]:
    """Between two turns, whichever of their trajectories the choice is stored under."""
    groups: dict[tuple[str, str, int | None], dict[str, Rating]] = defaultdict(dict)
    starts: dict[str, set[int]] = defaultdict(set)
    for trajectory in candidates.values():
        for rating, start in trajectory.choices:
            if start is not None:
                starts[rating.id].add(start)
    for trajectory in candidates.values():
        for rating, _ in trajectory.choices:
            first, second = sorted((rating.trajectory_id, rating.other_id or ""))
            start = min(starts[rating.id], default=None)
            groups[first, second, start][rating.id] = rating
    for (first, second, start), events in groups.items():
        ratings = counting(sorted(events.values(), key=lambda r: (r.created_at_ms, r.id)))
        values = [_preference(rating, first) for rating in ratings]
        margin, problem = majority(values)
        better, worse = (first, second) if margin >= 0 else (second, first)
        if any(len(starts[rating.id]) > 1 for rating in ratings):
            problem = "the two answers are not at the same place of one conversation"
        elif not any(values) and any(rating.kind is RatingKind.BOTH_BAD for rating in ratings):
            problem = "both are bad"
        ids = tuple(rating.id for rating in ratings)
        yield Claim(better, worse, PreferenceSource.CHOICE, abs(margin), start, ids, problem)


def _preference(rating: Rating, first: str) -> float:
    """How much the event prefers `first`."""
    if rating.kind is RatingKind.BOTH_BAD:
        return 0.0
    return rating.value if rating.trajectory_id == first else -rating.value


def _ratings(candidates: Mapping[str, PairCandidate]) -> Iterator[Claim]:
    """Between answers to one context."""
    contexts: dict[tuple[str, int], dict[str, RatedAnswer]] = defaultdict(dict)
    for trajectory in candidates.values():
        for answer in trajectory.answers:
            contexts[answer.context, answer.start][trajectory.id] = answer
    for answers in contexts.values():
        yield from _compared_claims(answers)


def _compared_claims(answers: Mapping[str, RatedAnswer]) -> Iterator[Claim]:
    """Every answer against the best and the worst of those that comparisons connect it with.

    An answer that is compared with nothing gives one claim, with the reason.
    """
    claims = [_rating_claim(*two) for two in combinations(sorted(answers.items()), 2)]
    decided = [claim for claim in claims if claim.problem is None]
    surplus: Counter[str] = Counter()
    for claim in decided:
        surplus.update({claim.better: claim.margin > 0, claim.worse: -(claim.margin > 0)})
    extremes: set[str] = set()
    for group in _connected(decided):
        ranked = sorted(group, key=lambda trajectory_id: (-surplus[trajectory_id], trajectory_id))
        extremes |= {ranked[0], ranked[-1]}
    compared = {side for claim in decided for side in (claim.better, claim.worse)}
    for claim in claims:
        sides = {claim.better, claim.worse}
        if claim.problem is None and not sides.isdisjoint(extremes):
            yield claim
        elif claim.problem is not None and not sides <= compared:
            compared |= sides
            yield claim


def _rating_claim(first: tuple[str, RatedAnswer], second: tuple[str, RatedAnswer]) -> Claim:
    margin, problem = compare(first[1], second[1])
    (better, left), (worse, right) = (first, second) if margin >= 0 else (second, first)
    ids = tuple(rating.id for rating in (*left.ratings, *right.ratings))
    return Claim(better, worse, PreferenceSource.RATING, abs(margin), left.start, ids, problem)


def _connected(claims: Sequence[Claim]) -> list[set[str]]:
    """The trajectories that claims connect, directly or over others."""
    groups: dict[str, set[str]] = {}
    for claim in claims:
        left, right = groups.get(claim.better, {claim.better}), groups.get(claim.worse, {claim.worse})
        if left is not right:
            joined = left | right
            groups |= dict.fromkeys(joined, joined)
    return list({id(group): group for group in groups.values()}.values())


def _rewards(candidates: Mapping[str, PairCandidate]) -> Iterator[Claim]:
    """Between attempts at one task."""
    tasks: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for trajectory in candidates.values():
        if trajectory.reward is not None:
            tasks[trajectory.task].append((trajectory.reward, trajectory.id))
    for scores in tasks.values():
        yield from _ranked_claims(scores, PreferenceSource.REWARD)


def _ranked_claims(scores: Sequence[tuple[float, str]], origin: PreferenceSource) -> Iterator[Claim]:
    """The best against every other, and every other against the worst."""
    ranked = sorted(scores, key=lambda item: (-item[0], item[1]))
    (best, best_id), (worst, worst_id) = ranked[0], ranked[-1]
    for value, trajectory_id in ranked[1:]:
        yield Claim(best_id, trajectory_id, origin, best - value)
    for value, trajectory_id in ranked[1:-1]:
        yield Claim(trajectory_id, worst_id, origin, value - worst)


def _retries(candidates: Mapping[str, PairCandidate]) -> Iterator[Claim]:
    """A second attempt is better than the first, unless the verdicts on both contradict it."""
    for candidate in candidates.values():
        if candidate.retry_of is None:
            continue
        first = candidates.get(candidate.retry_of)
        if first is None:
            yield Claim(candidate.id, candidate.retry_of, PreferenceSource.RETRY, 1.0)
        elif _improved(first, candidate):
            yield Claim(candidate.id, candidate.retry_of, PreferenceSource.RETRY, 1.0, first.last_start)


def _improved(first: PairCandidate, second: PairCandidate) -> bool:
    """By the verdicts on the answer that was tried again; later turns of the second try do not count."""
    before, after = first.answer(first.last_context), second.answer(first.last_context)
    if before is not None and after is not None:
        return compare(after, before).margin > 0
    if first.reward is not None and second.reward is not None:
        return second.reward > first.reward
    bad_again = after is not None and after.score <= 2
    liked_first = before is not None and before.score >= 4
    return not bad_again and not liked_first


_EVIDENCE: dict[PreferenceSource, Callable[[Mapping[str, PairCandidate]], Iterator[Claim]]] = {
    PreferenceSource.CHOICE: _choices,
    PreferenceSource.RATING: _ratings,
    PreferenceSource.REWARD: _rewards,
    PreferenceSource.RETRY: _retries,
}
