"""Rewards for the text of a response: exact match, mention of a fact, pattern, word limit.

Pure functions. Text is compared after Unicode normalisation, so that compatibility forms and invisible
characters neither spoil a right answer nor hide a long one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermes.batch.grading.answers import plain
from hermes.envs.rewards.result import GraderError, RewardResult, failed, passed

if TYPE_CHECKING:
    import re2  # type: ignore[import-untyped]

_WORD = re.compile(r"\w+(?:['’]\w+)*", re.UNICODE)
_LONGEST_WORD = 24
"""A longer run of letters counts as one word for every so many characters."""


def words(text: str) -> list[str]:
    """The words of a text, normalised; a run of letters longer than any word is cut into several."""
    runs = _WORD.findall(plain(text).replace("_", " "))
    return [
        word[start : start + _LONGEST_WORD] for word in runs for start in range(0, len(word), _LONGEST_WORD)
    ]


def exact_match(response: str, expected: str) -> RewardResult:
    """1 if the response is exactly the expected text, but for case, spacing, quotes and a final full stop."""
    target = _comparable(expected)
    if not target:
        raise GraderError("exact match has nothing to compare with: the expected answer is empty")
    return passed() if _comparable(response) == target else failed(f"expected '{expected}'")


def _comparable(text: str) -> str:
    return plain(text).rstrip(".!").strip("\"'` ")


def mentions(
    response: str, expected: str, distractors: Sequence[str] = (), *, max_words: int = 100
) -> RewardResult:
    """1 if the response contains the expected phrase as whole words, and none of the distractors.

    Naming every candidate is not knowing: a response that also contains a distractor is wrong, and so is one
    of more than `max_words` words. Pass every value that a guess could list as a distractor.
    """
    phrase = words(expected)
    if not phrase:
        raise GraderError("mentions has nothing to look for: the expected phrase is empty")
    response_words = words(response)
    if len(response_words) > max_words:
        return failed(f"has {len(response_words)} words; at most {max_words} count as an answer")
    if not _contains(response_words, phrase):
        return failed(f"does not mention '{expected}'")
    for distractor in distractors:
        wrong_phrase = words(distractor)
        is_part = _contains(phrase, wrong_phrase)
        if wrong_phrase and not is_part and _contains(response_words, wrong_phrase):
            return failed(f"mentions '{distractor}' as well")
    return passed()


def _contains(text: Sequence[str], phrase: Sequence[str]) -> bool:
    size = len(phrase)
    return any(list(text[start : start + size]) == list(phrase) for start in range(len(text) - size + 1))


def matches_regex(response: str, pattern: str) -> RewardResult:
    """1 if the whole response, stripped of white space, matches the pattern. Takes linear time (RE2)."""
    return passed() if _compile(pattern).fullmatch(response.strip()) else failed(f"does not match {pattern}")


def _compile(pattern: str) -> re2._Regexp:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise GraderError(f"the reward's pattern '{pattern}' is not a regular expression: {error}") from error


def word_limit(response: str, limit: int, *, zero_at: int | None = None) -> RewardResult:
    """1 for 1 to `limit` words, then linearly down to 0 at `zero_at` words (default: three times the limit).

    An empty response gets 0.
    """
    end = zero_at if zero_at is not None else 3 * limit
    if not 0 < limit < end:
        raise GraderError(f"the word limit {limit} must be above 0 and below zero_at {end}")
    count = len(words(response))
    if count == 0:
        return RewardResult(0.0, {"words": 0.0}, "the answer is empty")
    value = min(1.0, max(0.0, (end - count) / (end - limit)))
    return RewardResult(value, {"words": float(count)}, f"{count} words of {limit}")
