"""Finds numbers in the text of a paper that are not in the record of its runs.

A number stands for a recorded one if rounding the recorded one to its digits gives it, also as a
percentage. Numbers of two significant digits or fewer are compared with the headline figures only (first,
best and last values, configuration, tokens, evaluations): a long run has some step for nearly every short
number. Not judged are labels, references, lengths, figures, the table of versions, and lines that end in `%
number: SOURCE`.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from hermes.core import JSONObject
from hermes.paper.content import ENVIRONMENT_TABLE
from hermes.paper.record import RunRecord, reward_interval

_NUMBER = re.compile(
    r"(?<![\w.\\-])([-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?|[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(\s*(?:\\,)?\s*\\%)?"
)
_EXCEPTED = re.compile(r"%\s*number:")
_COMMENT = re.compile(r"(?<!\\)%.*")
_COMMANDS = re.compile(
    r"\\(?:label|ref|eqref|pageref|cite[a-z]*|input|include|includegraphics|usepackage|documentclass|bibliography"
    r"|bibliographystyle|hspace|vspace|setlength|texttt|url|href|begin|end|addplot)\*?(?:\[[^\]]*\])?(?:\{[^{}]*\})*"
)
_LENGTH = re.compile(r"[-+]?\d+(?:\.\d+)?(?:pt|em|ex|in|cm|mm|\\(?:line|text|column)width)\b")
_TIMES_TEN = re.compile(r"(\d(?:\.\d+)?)\s*(?:\\times|\\cdot)\s*10\^\{?(-?\d+)\}?")
_LEVEL = re.compile(r"\b9[059](?:\.\d)?\s*\\,?\s*\\%")
"""A level of confidence, which is a choice and no measurement."""
_SHORT_DIGITS = 2
_CONTEXT_CHARS = 36


@dataclass(frozen=True, slots=True)
class NumberFinding:
    """A number of the text that the record does not have."""

    file: str
    line: int
    number: str
    context: str

    def to_json(self) -> JSONObject:
        return {"file": self.file, "line": self.line, "number": self.number, "context": self.context}


def check_numbers(folder: Path, records: Sequence[RunRecord]) -> tuple[list[NumberFinding], int]:
    """Numbers without a source in file and line order, and how many numbers the text has."""
    headline = _SortedNumbers(headline_numbers(records))
    of_steps = [value for record in records for row in record.rows for value in row.values()]
    everything = _SortedNumbers([*headline.values, *of_steps])
    findings: list[NumberFinding] = []
    count = 0
    for path in sorted(folder.rglob("*.tex")):
        name = path.relative_to(folder).as_posix()
        if name.startswith("figures/") or name == ENVIRONMENT_TABLE:
            continue
        for line, text in enumerate(path.read_text("utf-8").splitlines(), 1):
            for number, context in text_numbers(text):
                count += 1
                if not _has_source(number, headline, everything):
                    findings.append(NumberFinding(name, line, number, context))
    return findings, count


def text_numbers(line: str) -> Iterator[tuple[str, str]]:
    """(number, its surroundings) of the numbers that a reader sees in a line."""
    if _EXCEPTED.search(line):
        return
    text = _COMMENT.sub("", line)
    for pattern in (_COMMANDS, _LENGTH, _LEVEL):
        text = pattern.sub(" ", text)
    text = _TIMES_TEN.sub(r"\1e\2", text)
    for match in _NUMBER.finditer(text):
        number = match[1].replace(",", "") + ("%" if match[2] else "")
        start, end = max(0, match.start() - _CONTEXT_CHARS), match.end() + _CONTEXT_CHARS
        yield number, " ".join(text[start:end].split())


def headline_numbers(records: Sequence[RunRecord]) -> list[float]:
    """The figures that a paper quotes: settings, totals, first, best and last values, intervals."""
    values: list[float] = [float(len(records))]
    for record in records:
        values += [*map(float, range(1, record.steps + 1)), *map(float, record.tokens.values())]
        values += [float(str(value)) for value in record.config.values() if _is_numeric(value)]
        values += [value for entry in record.evaluations for value in entry.values()]
        values.append(sum(row.get("data/rollouts", 0.0) for row in record.rows))
        if record.seed is not None:
            values.append(float(record.seed))
        if record.wall_clock_s is not None:
            values += [record.wall_clock_s, record.wall_clock_s / 60, record.wall_clock_s / 3600]
        values += _edges(record)
    last = [record.rows[-1]["reward/mean"] for record in records if "reward/mean" in record.rows[-1]]
    if len(last) > 1:
        values += [float(len(last)), fmean(last), stdev(last)]
    return values


def _edges(record: RunRecord) -> Iterator[float]:
    names = {name for row in record.rows for name in row}
    for name in sorted(names):
        series = [value for _, value in record.series(name)]
        if series:
            yield from (series[0], series[-1], min(series), max(series), series[-1] - series[0])
    for row in (record.rows[0], record.rows[-1]):
        interval = reward_interval(row)
        if interval is not None and interval.low is not None and interval.high is not None:
            yield from (interval.low, interval.high)


class _SortedNumbers:
    def __init__(self, values: Iterable[float]) -> None:
        self.values = sorted({abs(value) for value in values})

    def has(self, value: float, tolerance: float) -> bool:
        index = bisect.bisect_left(self.values, value - tolerance)
        return index < len(self.values) and self.values[index] <= value + tolerance


def _has_source(number: str, headline: _SortedNumbers, everything: _SortedNumbers) -> bool:
    is_percent = number.endswith("%")
    text = number.removesuffix("%").lstrip("+-")
    value, tolerance = abs(float(text)), _tolerance(text)
    digits = len(re.sub(r"[eE].*|\D", "", text).lstrip("0"))
    numbers = headline if digits <= _SHORT_DIGITS else everything
    if numbers.has(value, tolerance):
        return True
    return is_percent and numbers.has(value / 100, tolerance / 100)


def _tolerance(text: str) -> float:
    """Half a unit of the last digit; integers of one digit must be exact."""
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    if not decimals and not exponent and len(mantissa) == 1:
        return 1e-9
    return 0.5 * 10.0 ** (int(exponent or 0) - decimals) * (1 + 1e-9)


def _is_numeric(value: object) -> bool:
    return re.fullmatch(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", str(value)) is not None
