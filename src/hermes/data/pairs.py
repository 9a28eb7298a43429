"""Preference pairs: two ways to go on from the same point, one better than the other.

The prompt is an exact shared prefix of both trajectories, the longest after which both go on with the
assistant. Where they first differ is recorded too; it can lie further on (the same call got another
result). What could have been a pair and is not is counted with its reason.

Pairs come from four kinds of evidence: a person's choice between the two, ratings of both, rewards of tries
at one task, and a second try at an answer that was not good enough. Within a task each trajectory is paired
with the best one and with the worst one only, so that n tries give at most 2n pairs, not n².
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hermes.core import (
    JSONObject,
    Message,
    Rating,
    RatingKind,
    Relation,
    Role,
    canonical_json,
    content_hash,
)
from hermes.data.diff import said
from hermes.data.example import Example, UnfitError


class Origin(StrEnum):
    """What says that one is better."""

    CHOICE = "choice"
    RATING = "rating"
    REWARD = "reward"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class Pair:
    prompt: tuple[Message, ...]
    """As the chosen side has it; the other side's differs in the random ids of calls at most."""
    chosen: tuple[Message, ...]
    """The rest of the turn: up to the next thing the user says."""
    rejected: tuple[Message, ...]
    chosen_id: str
    rejected_id: str
    divergence_step: int
    """Index of the first message that differs."""
    origin: Origin
    margin: float
    """Difference of ratings or rewards, strength of a choice; 1 for a retry."""
    task: str
    """Pairs of one task belong on the same side of a split."""
    tools: tuple[JSONObject, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is said about a trajectory, without the trajectory: many fit in memory."""

    id: str
    task: str
    rating: float | None
    reward: float | None
    choices: tuple[Rating, ...]
    """Its pairwise ratings."""
    retry_of: str | None


@dataclass(frozen=True, slots=True)
class Claim:
    """One piece of evidence that a trajectory is better than another."""

    better: str
    worse: str
    origin: Origin
    margin: float


def candidate(example: Example) -> Candidate:
    header = example.trajectory.header
    return Candidate(
        example.id,
        content_hash(canonical_json(example.task)),
        example.rating,
        example.reward,
        tuple(rating for rating in example.ratings if rating.kind is RatingKind.PAIR),
        header.parent_id if header.relation is Relation.RETRY else None,
    )


def find_claims(
    candidates: Sequence[Candidate], origins: Sequence[Origin], min_margin: float = 0.0
) -> tuple[list[Claim], Counter[str]]:
    """What the evidence of these kinds supports, each two trajectories at most once; and what it does not.

    Kinds are asked in the order given, and the first that knows decides.
    """
    known = {each.id: each for each in candidates}
    claims: list[Claim] = []
    left_out: Counter[str] = Counter()
    decided: set[frozenset[str]] = set()
    for origin in origins:
        for claim in _EVIDENCE[origin](known):
            both = frozenset((claim.better, claim.worse))
            if both in decided or len(both) < 2:
                continue
            decided.add(both)
            if not both <= known.keys():
                left_out["the other trajectory is not part of the selection"] += 1
            elif claim.margin <= 0 or claim.margin < min_margin:
                left_out[f"{origin.value}: no clear difference"] += 1
            else:
                claims.append(claim)
    return claims, left_out


def make_pair(better: Example, worse: Example, claim: Claim) -> Pair:
    """The pair that a claim gives; `UnfitError` says why it gives none."""
    if better.tools != worse.tools:
        raise UnfitError("the two had different tools")
    left, right = better.messages, worse.messages
    shared = shared_prefix(left, right)
    if shared == len(left) == len(right):
        raise UnfitError("the two are equal")
    start = _decision_point(left, right, shared)
    if start is None:
        raise UnfitError("the two have no common point where the assistant speaks")
    chosen, rejected = rest_of_turn(left[start:]), rest_of_turn(right[start:])
    if [said(message) for message in chosen] == [said(message) for message in rejected]:
        raise UnfitError("the two differ only in what the user said later")
    return Pair(
        left[:start],
        chosen,
        rejected,
        better.id,
        worse.id,
        shared,
        claim.origin,
        claim.margin,
        better.task,
        better.tools,
    )


def shared_prefix(left: Sequence[Message], right: Sequence[Message]) -> int:
    """Number of leading messages that say the same; ids of calls, which are random, do not count."""
    shared = 0
    for a, b in zip(left, right, strict=False):
        if said(a) != said(b):
            break
        shared += 1
    return shared


def rest_of_turn(messages: Sequence[Message]) -> tuple[Message, ...]:
    """What the assistant does, and the results it gets, until the user speaks again."""
    for index, message in enumerate(messages):
        if message.role in (Role.USER, Role.SYSTEM):
            return tuple(messages[:index])
    return tuple(messages)


def _decision_point(left: Sequence[Message], right: Sequence[Message], shared: int) -> int | None:
    """The last place up to `shared` where both go on with the assistant, after at least one message."""
    for start in range(min(shared, len(left) - 1, len(right) - 1), 0, -1):
        if left[start].role is Role.ASSISTANT and right[start].role is Role.ASSISTANT:
            return start
    return None


def _choices(known: Mapping[str, Candidate]) -> Iterator[Claim]:
    """The newest choice between two counts, whichever of them it is stored under."""
    latest: dict[frozenset[str], Rating] = {}
    for each in known.values():
        for rating in each.choices:
            if rating.other_id is not None:
                both = frozenset((rating.trajectory_id, rating.other_id))
                before = latest.get(both)
                if before is None or (rating.created_at_ms, rating.id) > (before.created_at_ms, before.id):
                    latest[both] = rating
    for rating in latest.values():
        other = rating.other_id or ""
        if rating.value >= 0:
            yield Claim(rating.trajectory_id, other, Origin.CHOICE, rating.value)
        else:
            yield Claim(other, rating.trajectory_id, Origin.CHOICE, -rating.value)


def _ratings(known: Mapping[str, Candidate]) -> Iterator[Claim]:
    yield from _scored(known, Origin.RATING, lambda each: each.rating)


def _rewards(known: Mapping[str, Candidate]) -> Iterator[Claim]:
    yield from _scored(known, Origin.REWARD, lambda each: each.reward)


def _scored(
    known: Mapping[str, Candidate], origin: Origin, score: Callable[[Candidate], float | None]
) -> Iterator[Claim]:
    """In each task: the best against every other, and every other against the worst."""
    tasks: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for each in known.values():
        value = score(each)
        if value is not None:
            tasks[each.task].append((value, each.id))
    for group in tasks.values():
        ranked = sorted(group, key=lambda item: (-item[0], item[1]))
        (best, best_id), (worst, worst_id) = ranked[0], ranked[-1]
        for value, trajectory_id in ranked[1:]:
            yield Claim(best_id, trajectory_id, origin, best - value)
        for value, trajectory_id in ranked[1:-1]:
            yield Claim(trajectory_id, worst_id, origin, value - worst)


def _retries(known: Mapping[str, Candidate]) -> Iterator[Claim]:
    """A second try is better than the first, unless somebody's verdict on both says otherwise."""
    for each in known.values():
        if each.retry_of is None:
            continue
        first = known.get(each.retry_of)
        if first is None or _improved(first, each):
            yield Claim(each.id, each.retry_of, Origin.RETRY, 1.0)


def _improved(first: Candidate, second: Candidate) -> bool:
    for before, after in ((first.rating, second.rating), (first.reward, second.reward)):
        if before is not None and after is not None:
            return after > before
    bad_again = second.rating is not None and second.rating <= 2
    liked_first = first.rating is not None and first.rating >= 4
    return not bad_again and not liked_first


_EVIDENCE: dict[Origin, Callable[[Mapping[str, Candidate]], Iterator[Claim]]] = {
    Origin.CHOICE: _choices,
    Origin.RATING: _ratings,
    Origin.REWARD: _rewards,
    Origin.RETRY: _retries,
}
