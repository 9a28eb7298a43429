#!/usr/bin/env python3
"""Write the metrics.jsonl of runs as TensorBoard event files: a folder a run.

Each line becomes one step with its own wall time; values that are not finite are left out. A folder that has
event files already is refused, because TensorBoard would show both. Needs the package tensorboard, not
TensorFlow or torch.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path


def read_steps(path: Path) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Step, time and finite metrics of every line. Exits with a sentence where a line is no step."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            step, time_s = int(row.pop("step")), float(row.pop("time_s", 0.0))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SystemExit(f"error: {path}:{number} is no step of a run ({error})") from error
        numbers = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
        yield step, time_s, {name: value for name, value in numbers.items() if math.isfinite(value)}


def write_events(steps: Sequence[tuple[int, float, dict[str, float]]], folder: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for step, time_s, values in steps:
        summary = Summary(value=[Summary.Value(tag=name, simple_value=values[name]) for name in values])
        writer.add_event(Event(step=step, wall_time=time_s, summary=summary))
    writer.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write metrics.jsonl as TensorBoard event files.")
    parser.add_argument("runs", nargs="+", metavar="NAME=FILE", help="metrics.jsonl of every run")
    parser.add_argument("--logdir", type=Path, required=True, help="the folder for `tensorboard --logdir`")
    options = parser.parse_args(arguments)
    for text in options.runs:
        name, _, file = text.partition("=")
        if not name or not file:
            raise SystemExit(f"error: '{text}' is not NAME=FILE")
        folder = options.logdir / name
        if list(folder.glob("events.out.tfevents.*")):
            raise SystemExit(f"error: {folder} has events already; remove it, or choose another name")
        steps = list(read_steps(Path(file)))
        write_events(steps, folder)
        sys.stdout.write(f"{len(steps)} steps written to {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
