"""The store at scale: import, export, a filter on columns, the deletion of one trajectory.

    python bench/store.py [--trajectories 100000] [--json]

The trajectories are small: a system prompt that all share, a question, a tool call, its result, an answer.
Each figure is processor time of one `hermes` command in a process of its own, children included, less that of
the same command on a store of three trajectories (its start and its imports). Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

WORDS = ("alpha", "beta", "gamma", "delta", "river", "stone", "window", "garden", "seven", "blue", "quick")


@dataclass(frozen=True)
class Figure:
    what: str
    cpu_s: float
    per_trajectory_ms: float | None
    goal: str


def write_rows(path: Path, count: int, seed: int) -> None:
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            sentence = " ".join(draw.choices(WORDS, k=12))
            call = {"name": "calculator", "arguments": json.dumps({"expression": f"{number} + 1"})}
            messages = [
                {"role": "system", "content": "You are a helpful agent. Use the tools."},
                {"role": "user", "content": f"Question {number}: {sentence}?"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
                },
                {
                    "role": "tool",
                    "tool_call_id": f"c{number}",
                    "name": "calculator",
                    "content": str(number + 1),
                },
                {"role": "assistant", "content": f"The answer is {number + 1}. {sentence}"},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")


def run(home: Path, *arguments: str) -> float:
    """Processor seconds of one command."""
    environ = {"HERMES_HOME": str(home), "PATH": os.environ["PATH"], "HOME": str(home)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "hermes", *arguments], env=environ, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"hermes {' '.join(arguments)}: {done.stderr}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def newest(home: Path) -> str:
    from hermes.config.paths import db_path
    from hermes.store import Reader

    with Reader(db_path(home)) as reader:
        return reader.resolve("last")


def measure(count: int, folder: Path, seed: int) -> list[Figure]:
    rows, few, out = folder / "rows.jsonl", folder / "few.jsonl", str(folder / "out.jsonl")
    write_rows(rows, count, seed)
    write_rows(few, 3, seed + 1)
    full, small = folder / "full", folder / "small"
    commands = {
        f"import ({count} rows)": (("import",), "0.5 ms"),
        "export of all": (("export", "--output", out), "0.5 ms"),
        "export --where that matches nothing": (("export", "--where", "turns>90", "--output", out), "1 s"),
        "export --where model": (("export", "--where", "model=nobody", "--output", out), "1 s"),
    }
    figures = []
    for what, (arguments, goal) in commands.items():
        files = {
            home: (str(file),) if what.startswith("import") else ()
            for home, file in ((full, rows), (small, few))
        }
        cpu_s = run(full, *arguments, *files[full]) - run(small, *arguments, *files[small])
        figures.append(Figure(what, cpu_s, 1000 * cpu_s / count if goal.endswith("ms") else None, goal))
    cpu_s = run(full, "trajectories", "delete", newest(full), "--yes")
    cpu_s -= run(small, "trajectories", "delete", newest(small), "--yes")
    return [*figures, Figure("delete one", cpu_s, None, "0.2 s")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=36)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options.trajectories, Path(folder), options.seed)
    if options.json:
        print(json.dumps([asdict(figure) for figure in figures]))
        return
    for figure in figures:
        each = f"{figure.per_trajectory_ms:.3f} ms each" if figure.per_trajectory_ms is not None else ""
        print(f"{figure.what:40} {figure.cpu_s:8.2f} s  {each:16} goal {figure.goal}")


if __name__ == "__main__":
    main()
