#!/usr/bin/env python3
"""Find numbers in the text of a paper that the files of its runs do not have.

    check_numbers.py FOLDER RUN/metrics.jsonl RUN/config.yaml RUN/tokens.json …

A number stands for a recorded one if rounding the recorded one to its digits gives it, also as a percentage.
Numbers of two significant digits or fewer are compared with the headline figures only: the first, best and
last value of each metric, and every number of the files that are not .jsonl; a long run has some step for
nearly every short number. Labels, references, lengths, levels of confidence, and lines that end in
`% number: SOURCE` are not judged. The exit code is 1 if a number has no source. It needs Python 3.11 only.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

NUMBER = re.compile(
    r"(?<![\w.\\-])([-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?|[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(\s*(?:\\,)?\s*\\%)?"
)
EXCEPTED = re.compile(r"%\s*number:")
COMMENT = re.compile(r"(?<!\\)%.*")
COMMANDS = re.compile(
    r"\\(?:label|ref|eqref|pageref|cite[a-z]*|input|include|includegraphics|usepackage|documentclass|bibliography"
    r"|bibliographystyle|hspace|vspace|setlength|texttt|url|href|begin|end|addplot|newcommand)\*?"
    r"(?:\[[^\]]*\])?(?:\{[^{}]*\})*"
)
LENGTH = re.compile(r"[-+]?\d+(?:\.\d+)?(?:pt|em|ex|in|cm|mm|\\(?:line|text|column)width)\b")
TIMES_TEN = re.compile(r"(\d(?:\.\d+)?)\s*(?:\\times|\\cdot)\s*10\^\{?(-?\d+)\}?")
CONFIDENCE = re.compile(r"\b9[059](?:\.\d)?\s*\\,?\s*\\%")


def text_numbers(line: str) -> Iterator[str]:
    """The numbers that a reader of the paper sees in a line of LaTeX; a percentage ends in %."""
    if EXCEPTED.search(line):
        return
    text = COMMENT.sub("", line)
    for pattern in (COMMANDS, LENGTH, CONFIDENCE):
        text = pattern.sub(" ", text)
    for match in NUMBER.finditer(TIMES_TEN.sub(r"\1e\2", text)):
        yield match[1].replace(",", "") + ("%" if match[2] else "")


def recorded_numbers(paths: Sequence[Path]) -> tuple[list[float], list[float]]:
    """(headline figures, every number) of the files of runs."""
    headline: list[float] = []
    everything: list[float] = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".jsonl":
            headline += [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", text)]
            continue
        curves: dict[str, list[float]] = defaultdict(list)
        for line in text.splitlines():
            for name, value in json.loads(line).items():
                if isinstance(value, int | float):
                    curves[name].append(float(value))
        for values in curves.values():
            headline += [
                values[0],
                values[-1],
                min(values),
                max(values),
                values[-1] - values[0],
                float(len(values)),
            ]
            everything += values
    return headline, headline + everything


def has_source(number: str, headline: Iterable[float], everything: Iterable[float]) -> bool:
    text = number.removesuffix("%").lstrip("+-")
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    is_digit = not decimals and not exponent and len(mantissa) == 1
    tolerance = 1e-9 if is_digit else 0.5 * 10.0 ** (int(exponent or 0) - decimals) * (1 + 1e-9)
    is_short = len(re.sub(r"\D", "", mantissa).lstrip("0")) <= 2
    scales = (1, 100) if number.endswith("%") else (1,)
    return any(
        abs(abs(value) * scale - float(text)) <= tolerance
        for value in (headline if is_short else everything)
        for scale in scales
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Find numbers in a paper that its runs do not have.")
    parser.add_argument("folder", type=Path, help="folder of the paper's .tex files")
    parser.add_argument("record", type=Path, nargs="+", help="metrics.jsonl, config.yaml … of the runs")
    options = parser.parse_args(arguments)
    headline, everything = recorded_numbers(options.record)
    count = missing = 0
    for path in sorted(options.folder.rglob("*.tex")):
        for line_number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for number in text_numbers(line):
                count += 1
                if not has_source(number, headline, everything):
                    missing += 1
                    print(f"{path.relative_to(options.folder)}:{line_number}: {number}: {line.strip()}")
    print(f"{count} numbers in the text, {missing} without a source in the record")
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
