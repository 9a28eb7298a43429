#!/usr/bin/env python3
"""Compare two models task by task, from the files that `lm-eval run --log_samples` writes.

It pairs the samples by their content (`doc_hash`), counts what only one of the models solved, and prints the
exact two-sided sign test (McNemar) and a 95 % interval of the difference. A metric must be 0 or 1 for the
counts; for others only the difference of the means is printed. Samples that only one file has are counted
and left out. It needs Python 3.11 and nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path


def read_scores(path: Path, metric: str, filter_name: str) -> dict[str, float]:
    scores: dict[str, float] = {}
    filters: set[str] = set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            filters.add(str(row["filter"]))
            if filter_name in ("", row["filter"]):
                scores[f"{row['doc_hash']}:{row['doc_id']}"] = float(row[metric])
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(
                f"error: {path}:{number}: no sample with the metric '{metric}' ({error})"
            ) from error
    if len(filters) > 1 and not filter_name:
        raise SystemExit(f"error: {path} has several filters; choose one with --filter: {sorted(filters)}")
    if not scores:
        raise SystemExit(
            f"error: {path} has no samples with the filter '{filter_name}'; it has {sorted(filters)}"
        )
    return scores


def sign_test(wins: int, losses: int) -> float:
    """The exact two-sided probability of a split this uneven if both were equally likely."""
    total = wins + losses
    tail = sum(math.comb(total, count) for count in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**total)


def compare(first: dict[str, float], second: dict[str, float]) -> str:
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise SystemExit("error: the files have no sample in common; are they the same task and version?")
    differences = [second[key] - first[key] for key in shared]
    count = len(shared)
    mean = sum(differences) / count
    variance = sum((value - mean) ** 2 for value in differences) / max(count - 1, 1)
    half = 1.96 * math.sqrt(variance / count)
    lines = [f"samples: {count} in both; {len(first) - count} only in A, {len(second) - count} only in B"]
    lines.append(
        f"mean: A {sum(first[key] for key in shared) / count:.4f}, "
        f"B {sum(second[key] for key in shared) / count:.4f}"
    )
    lines.append(f"difference B - A: {mean:+.4f} ± {half:.4f} (95 %, paired)")
    if all(value in (-1.0, 0.0, 1.0) for value in differences):
        wins, losses = differences.count(1.0), differences.count(-1.0)
        lines.append(
            f"only B solved {wins}, only A solved {losses}; sign test p = {sign_test(wins, losses):.4f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare two models' samples of one task, pair by pair.")
    parser.add_argument("first", type=Path, metavar="A", help="samples_TASK_….jsonl of the first model")
    parser.add_argument("second", type=Path, metavar="B", help="the same of the second model")
    parser.add_argument("--metric", default="exact_match")
    parser.add_argument("--filter", default="", help="where a task has several answer filters")
    options = parser.parse_args(arguments)
    scores = [read_scores(path, options.metric, options.filter) for path in (options.first, options.second)]
    sys.stdout.write(compare(*scores) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
