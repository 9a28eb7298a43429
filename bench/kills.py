"""What kills cost a batch: requests sent against requests needed, every row once in every output, in order.

    python bench/kills.py [--rows 5000] [--kills 60] [--calls 4] [--parallel 1] [--concurrency 4] [--seed 36]

The command, or one of its workers, is killed with SIGKILL at random moments while requests arrive, and the
command is started again until the run is complete. The model answers after 20 ms, on the loopback interface,
in this process. Needed are rows times calls. With `--parallel N` each answer but the last calls N commands
that take up to 0.2 s, and the turns whose results lie in the order of the calls are counted. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.batch.drive import command, rows, start, workers_of, write_tasks  # noqa: E402
from tests.fakes.provider import FakeProvider, Reply, delayed, text, tool_calls  # noqa: E402

LATENCY_S = 0.02
LONGEST_S = 0.2
RESULT = re.compile(r"result:(\d+):")


class CountingProvider(FakeProvider):
    """Keeps the number of requests, not the requests."""

    def __init__(self, calls: int, parallel: int, seed: int) -> None:
        super().__init__(self._reply_by_turn)
        self._calls = calls
        self._parallel = parallel
        self._draw = random.Random(seed)
        self.sent = 0

    def _reply_by_turn(self, body: dict[str, Any]) -> Reply:
        self.sent += 1
        self.requests.clear()
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if turn >= self._calls - 1:
            return delayed(LATENCY_S, text("It is done."))
        return delayed(LATENCY_S, tool_calls(self._tool_calls(turn)))

    def _tool_calls(self, turn: int) -> list[tuple[str, dict[str, Any]]]:
        if self._parallel == 1:
            return [("calculator", {"expression": f"{turn} + 1"})]
        pauses_s = [self._draw.random() * LONGEST_S for _ in range(self._parallel)]
        commands = [f"sleep {pause_s:.3f}; echo result':{n}:'" for n, pause_s in enumerate(pauses_s)]
        return [("terminal", {"command": line}) for line in commands]


def run_with_kills(
    folder: Path, provider: CountingProvider, arguments: list[str], kills: int, needed: int, seed: int
) -> int:
    """Runs to the end; returns the number of starts. The kills are spread over the whole run."""
    draw = random.Random(seed)
    moments = sorted(draw.randrange(1, int(needed * 0.95)) for _ in range(kills))
    starts = 0
    while True:
        starts += 1
        process = start(folder, *arguments)
        while moments and process.poll() is None:
            if provider.sent < moments[0]:
                time.sleep(0.002)
                continue
            moments.pop(0)
            workers = workers_of(process.pid)
            victim = draw.choice(workers) if workers and draw.random() < 0.5 else process.pid
            os.kill(victim, signal.SIGKILL)
            sent = provider.sent
            while process.poll() is None and provider.sent == sent:
                time.sleep(0.002)  # it works again
        _, err = process.communicate()
        if process.returncode == 0:
            return starts
        if process.returncode not in (-signal.SIGKILL, 1):
            raise SystemExit(err)


def turns_in_order(table: list[dict[str, Any]], parallel: int) -> tuple[int, int]:
    """Of the turns with results: those whose results lie in the order of the calls, and all."""
    turns = [
        [int(number) for number in RESULT.findall(turn["value"])]
        for row in table
        for turn in row["conversations"]
        if turn["from"] == "tool"
    ]
    return sum(numbers == list(range(parallel)) for numbers in turns), len(turns)


def exported(folder: Path) -> list[dict[str, Any]]:
    """The rows of `hermes export --run`."""
    output = folder / "export.jsonl"
    process = start(folder, "export", "--run", "run", "--output", str(output))
    _, err = process.communicate()
    if process.returncode:
        raise SystemExit(err)
    return [json.loads(line) for line in output.read_text("utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--calls", type=int, default=4)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--seed", type=int, default=36)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    needed = options.rows * options.calls
    model = CountingProvider(options.calls, options.parallel, options.seed)
    with tempfile.TemporaryDirectory() as name, model as provider:
        folder = Path(name)
        write_tasks(folder, options.rows)
        flags: tuple[str, ...] = ("--concurrency", str(options.concurrency), "--max-tries", "1000")
        if options.parallel > 1:
            flags += ("--toolsets", "terminal", "--sandbox", "local")
        arguments = command(folder, provider, *flags)
        began_s = time.monotonic()
        starts = run_with_kills(folder, provider, arguments, options.kills, needed, options.seed)
        written, run_export = rows(folder), exported(folder)
        dataset = Counter(row["key"] for row in written)
        export = Counter(row["task_id"] for row in run_export)
        figures = {
            "rows": options.rows,
            "kills": options.kills,
            "starts": starts,
            "requests_needed": needed,
            "requests_sent": provider.sent,
            "ratio": round(provider.sent / needed, 4),
            "dataset_rows": dataset.total(),
            "dataset_distinct": len(dataset),
            "export_rows": export.total(),
            "export_distinct": len(export),
            "wall_s": round(time.monotonic() - began_s, 1),
        }
        if options.parallel > 1:
            for output, table in (("dataset", written), ("export", run_export)):
                figures[f"{output}_turns_in_order"], figures[f"{output}_turns"] = turns_in_order(
                    table, options.parallel
                )
    print(json.dumps(figures) if options.json else "\n".join(f"{k:18} {v}" for k, v in figures.items()))


if __name__ == "__main__":
    main()
