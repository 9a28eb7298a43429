"""Which steps of an answer were right, one by one: credit for each of them instead of one score for all.

An answer is taken apart into stretches of tokens: for each call its opening and the call itself, and the end.
To open a call is right while fewer were made than are wanted, and to end is right when as many were made; a
call is right if it is one of those wanted, was not made before, and is no call too many. So whether to go on
is learned by itself, and not from calls that are still wrong: else to stop after the first would be the way
to make no mistakes. A finished answer is right exactly if all its stretches are. A stretch is compared with
what the other answers of its group did at the same place. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, zip_longest

from hermes.core import JSONObject, ToolCall
from hermes.envs.tasks.functions.grading import take
from hermes.envs.tasks.functions.requests import ExpectedCall

Parse = Callable[[str], Sequence[ToolCall]]


@dataclass(frozen=True, slots=True)
class CallMarks:
    """What begins and what ends a call in a text."""

    opener: str
    closer: str


@dataclass(frozen=True, slots=True)
class Stretch:
    tokens: int
    """How many tokens it has; one that reaches into the next stretch is still this one's."""
    right: bool


def stretches(
    pieces: Sequence[str],
    marks: CallMarks,
    parse: Parse,
    wanted: Sequence[ExpectedCall],
    schemas: Sequence[JSONObject],
) -> list[Stretch]:
    """`pieces`: the text of each token of the answer."""
    left, made, at = list(wanted), 0, 0
    ends = list(accumulate(map(len, pieces)))
    parts: list[tuple[int, bool]] = []
    """Tokens of the answer up to the end of each stretch, and whether that is right."""
    for text, closed in _cut("".join(pieces), marks.closer):
        opened, begin, at = text.find(marks.opener), at, at + len(text)
        end = bisect_left(ends, at) + 1 if closed else len(pieces)
        if opened < 0 and not closed:
            parts.append((end, made == len(wanted)))
            break
        calls = parse(text)
        due, made = made < len(wanted), made + len(calls)
        taken = [take(call, left, schemas) for call in calls]
        enough = made <= len(wanted) if closed else made == len(wanted)
        begun = end if opened < 0 else bisect_left(ends, begin + opened + len(marks.opener)) + 1
        parts += [(begun, due and opened >= 0), (end, bool(calls) and enough and all(taken))]
    return [Stretch(end - start, right) for (start, _), (end, right) in pairwise([(0, True), *parts])]


def _cut(text: str, closer: str) -> Iterator[tuple[str, bool]]:
    """The text up to each closer, with it, and what is left; and whether it is a call's."""
    *calls, rest = text.split(closer)
    yield from ((call + closer, True) for call in calls)
    yield rest, False


def advantages(answers: Sequence[Sequence[Stretch]]) -> list[list[float]]:
    """By token of each answer: how its stretch compares with all that stand at the same place.

    That is right / mean - 1, the gradient of the logarithm of the chance to be right: where one answer of
    sixteen was right it counts fifteenfold, so that what is seldom tried is learned before it is given up.
    """
    means = [
        sum(known) / len(known)
        for place in zip_longest(*([one.right for one in answer] for answer in answers))
        if (known := [right for right in place if right is not None])
    ]
    return [
        [
            round(one.right / mean - 1, 6) if mean else 0.0
            for one, mean in zip(answer, means[: len(answer)], strict=True)
            for _ in range(one.tokens)
        ]
        for answer in answers
    ]
