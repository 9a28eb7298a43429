"""Rewards that look only at the text of an answer: exact match, mention of a fact, pattern, word limit.

Pure functions. Text is compared after Unicode normalisation, so that look-alike forms and invisible
characters neither spoil a right answer nor hide a long one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermes.envs.rewards.result import GraderError, RewardResult, failed, passed

if TYPE_CHECKING:
    import re2  # type: ignore[import-untyped]

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]")
_WORD = re.compile(r"\w+(?:['’]\w+)*", re.UNICODE)
_LONGEST_WORD = 24
"""Words run together count as one for every so many characters."""


def normalised(text: str) -> str:
    """Compatibility form, case folded, invisible characters gone, white space single."""
    plain = _INVISIBLE.sub(" ", unicodedata.normalize("NFKC", text))
    return " ".join(plain.casefold().split())


def words(text: str) -> list[str]:
    """The words of a text, in normalised form; a run of letters longer than any word is cut into several."""
    found = _WORD.findall(normalised(text).replace("_", " "))
    return [
        word[start : start + _LONGEST_WORD] for word in found for start in range(0, len(word), _LONGEST_WORD)
    ]


def exact_match(answer: str, expected: str) -> RewardResult:
    """1 if the answer says exactly the expected text, but for case, spacing and a full stop at the end."""
    wanted = _closed(expected)
    if not wanted:
        raise GraderError("exact match has nothing to compare with: the expected answer is empty")
    return passed() if _closed(answer) == wanted else failed(f"expected '{expected}'")


def _closed(text: str) -> str:
    return normalised(text).rstrip(".!").strip("\"'` ")


def mentions(answer: str, expected: str, distractors: Sequence[str] = ()) -> RewardResult:
    """1 if the answer names the expected thing as whole words, and none of the others it might have named.

    Naming everything is not knowing: an answer that also holds a distractor is wrong.
    """
    wanted = words(expected)
    if not wanted:
        raise GraderError("there is nothing to look for: the expected mention is empty")
    said = words(answer)
    if not _contains(said, wanted):
        return failed(f"does not mention '{expected}'")
    for other in distractors:
        unwanted = words(other)
        if unwanted and not _contains(wanted, unwanted) and _contains(said, unwanted):
            return failed(f"mentions '{other}' as well")
    return passed()


def _contains(text: Sequence[str], phrase: Sequence[str]) -> bool:
    size = len(phrase)
    return any(list(text[start : start + size]) == list(phrase) for start in range(len(text) - size + 1))


def matches_regex(answer: str, pattern: str) -> RewardResult:
    """1 if the whole answer, white space at its ends aside, matches the pattern. Takes linear time."""
    return passed() if _compiled(pattern).fullmatch(answer.strip()) else failed(f"does not match {pattern}")


def _compiled(pattern: str) -> re2._Regexp:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise GraderError(f"the reward's pattern '{pattern}' is not a regular expression: {error}") from error


def word_limit(answer: str, limit: int, *, zero_at: int | None = None) -> RewardResult:
    """1 for 1 to `limit` words, then down in a straight line to 0 at `zero_at` words (three times the limit).

    An empty answer is no short answer: it gets 0.
    """
    end = zero_at if zero_at is not None else 3 * limit
    if not 0 < limit < end:
        raise GraderError(f"a word limit of {limit} that ends at {end} makes no sense")
    count = len(words(answer))
    if count == 0:
        return RewardResult(0.0, {"words": 0.0}, "the answer is empty")
    value = min(1.0, max(0.0, (end - count) / (end - limit)))
    return RewardResult(value, {"words": float(count)}, f"{count} words of {limit}")
