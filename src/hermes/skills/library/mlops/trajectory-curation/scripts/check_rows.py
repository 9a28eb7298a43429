#!/usr/bin/env python3
"""Check a ShareGPT file before training, and print what is in it. It changes nothing.

Problems end with the exit code 1: rows that are no conversations, that do not end with the model, that have
two turns of one role in a row (tool turns may repeat), empty answers, or the same conversation twice.
The figures show what a model would learn most of: prompts that repeat, tools, lengths in characters.
It needs Python 3.11 and nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

MODEL = frozenset({"gpt", "assistant"})
PERSON = frozenset({"human", "user"})
REPEATABLE = frozenset({"tool"})
SHOWN = 5


def row_problem(row: object) -> str:
    """Why the row cannot be trained on as it is; '' where it can."""
    turns = row.get("conversations") if isinstance(row, dict) else None
    if not isinstance(turns, list) or not turns:
        return "has no conversations"
    roles = []
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str) or "from" not in turn:
            return "has a turn that is not {from, value}"
        roles.append(turn["from"])
    if roles[-1] not in MODEL:
        return f"ends with {roles[-1]}, not with the model"
    repeated = [role for role, after in pairwise(roles) if role == after and role not in REPEATABLE]
    if repeated:
        return f"has two turns of {repeated[0]} in a row"
    if not turns[-1]["value"].strip():
        return "ends with an empty answer"
    return ""


def quantiles(values: Sequence[int]) -> str:
    ordered = sorted(values)
    picks = {name: ordered[min(int(share * len(ordered)), len(ordered) - 1)] for name, share in SHARES}
    return ", ".join(f"{name} {value}" for name, value in picks.items())


SHARES = (("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("longest", 1.0))


def summarise(rows: Sequence[dict]) -> list[str]:
    prompts: Counter[str] = Counter()
    tools: Counter[str] = Counter()
    for row in rows:
        prompts[next((turn["value"] for turn in row["conversations"] if turn["from"] in PERSON), "")] += 1
        stats = row.get("tool_stats")
        tools.update(name for name, entry in (stats or {}).items() if entry.get("count"))
    lengths = [sum(len(turn["value"]) for turn in row["conversations"]) for row in rows]
    lines = [f"rows: {len(rows)}, different first prompts: {len(prompts)}"]
    lines.append(f"characters: {quantiles(lengths)}")
    often = [(prompt, count) for prompt, count in prompts.most_common(SHOWN) if count > 1]
    lines += [f"  {count} times: {prompt[:60]!r}" for prompt, count in often]
    lines += [f"tool {name}: in {count} rows" for name, count in tools.most_common(SHOWN)]
    return lines


def check(path: Path) -> tuple[list[str], list[dict]]:
    problems: list[str] = []
    good: list[dict] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            problems.append(f"{path}:{number}: is not JSON ({error})")
            continue
        problem = row_problem(row)
        if problem:
            problems.append(f"{path}:{number}: {problem}")
            continue
        text = json.dumps(row["conversations"])
        if text in seen:
            problems.append(f"{path}:{number}: is the same conversation as line {seen[text]}")
        seen.setdefault(text, number)
        good.append(row)
    return problems, good


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check a ShareGPT file before training.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--most", type=int, default=20, help="problems that are printed (20)")
    options = parser.parse_args(arguments)
    try:
        problems, rows = check(options.file)
    except (OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"error: {options.file} cannot be read ({error})\n")
        return 1
    if rows:
        sys.stdout.write("\n".join(summarise(rows)) + "\n")
    for problem in problems[: options.most]:
        sys.stderr.write(problem + "\n")
    sys.stdout.write(f"problems: {len(problems)}\n")
    return 1 if problems or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
