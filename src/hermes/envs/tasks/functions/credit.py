"""Credit for each step of an answer, instead of one score for the whole answer. Pure.

An answer is cut into segments of tokens: for each call its opening and the call itself, and then the end.
Opening a call is right while fewer calls were made than are expected. Ending is right when as many were made.
A call is right if it matches an expected call that was not matched before, and is not a call too many. So
whether to go on is learned separately from whether the calls are right: otherwise the way to make no mistake
would be to stop after the first call. A finished answer is right exactly if all its segments are.

A segment is compared with the segments at the same position in the other answers of its group.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, zip_longest

from hermes.core import JSONObject, ToolCall
from hermes.envs.tasks.functions.grading import remove_match
from hermes.envs.tasks.functions.requests import ExpectedCall

Parse = Callable[[str], Sequence[ToolCall]]


@dataclass(frozen=True, slots=True)
class CallMarks:
    """The texts that begin and end a call."""

    opener: str
    closer: str


@dataclass(frozen=True, slots=True)
class CreditSegment:
    tokens: int
    """Number of tokens. A token that reaches into the next segment belongs to this one."""
    right: bool


def credit_segments(
    token_texts: Sequence[str],
    marks: CallMarks,
    parse: Parse,
    expected: Sequence[ExpectedCall],
    schemas: Sequence[JSONObject],
) -> list[CreditSegment]:
    """The segments of an answer, given the text of each of its tokens."""
    remaining, call_count, offset = list(expected), 0, 0
    token_ends = list(accumulate(map(len, token_texts)))
    boundaries: list[tuple[int, bool]] = []
    """Tokens of the answer up to the end of each segment, and whether the segment is right."""
    for text, closed in _split_calls("".join(token_texts), marks.closer):
        opener_at, start, offset = text.find(marks.opener), offset, offset + len(text)
        end = bisect_left(token_ends, offset) + 1 if closed else len(token_texts)
        if opener_at < 0 and not closed:
            boundaries.append((end, call_count == len(expected)))
            break
        calls = parse(text)
        more_expected, call_count = call_count < len(expected), call_count + len(calls)
        matches = [remove_match(call, remaining, schemas) for call in calls]
        count_fits = call_count <= len(expected) if closed else call_count == len(expected)
        opening_end = (
            end if opener_at < 0 else bisect_left(token_ends, start + opener_at + len(marks.opener)) + 1
        )
        boundaries += [
            (opening_end, more_expected and opener_at >= 0),
            (end, bool(calls) and count_fits and all(matches)),
        ]
    return [
        CreditSegment(end - start, right) for (start, _), (end, right) in pairwise([(0, True), *boundaries])
    ]


def _split_calls(text: str, closer: str) -> Iterator[tuple[str, bool]]:
    """(the text up to and with each closer, True), then (the rest, False)."""
    *calls, rest = text.split(closer)
    yield from ((call + closer, True) for call in calls)
    yield rest, False


def token_advantages(answers: Sequence[Sequence[CreditSegment]]) -> list[list[float]]:
    """An advantage for each token of each answer, from the segments at the same position in the group.

    It is right / mean - 1, the gradient of the log of the probability of being right: where one answer of
    sixteen is right it counts fifteenfold, so that a rare success is reinforced before the policy drops it.
    """
    means = [
        sum(outcomes) / len(outcomes)
        for position in zip_longest(*([segment.right for segment in segments] for segments in answers))
        if (outcomes := [right for right in position if right is not None])
    ]
    return [
        [
            round(segment.right / mean - 1, 6) if mean else 0.0
            for segment, mean in zip(segments, means[: len(segments)], strict=True)
            for _ in range(segment.tokens)
        ]
        for segments in answers
    ]
