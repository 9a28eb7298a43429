#!/usr/bin/env python3
"""Write the metrics.jsonl of a finished run into a local trackio project, to look at it beside others.

Each line becomes one step; values that are not finite are left out. Nothing leaves the machine. Needs the
package trackio.
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write metrics.jsonl into a local trackio project.")
    parser.add_argument("metrics", type=Path)
    parser.add_argument("--project", default="hermes")
    parser.add_argument("--name", required=True, help="name of the run")
    parser.add_argument("--group", default=None, help="runs of one setting with other seeds")
    options = parser.parse_args(arguments)
    steps = list(read_steps(options.metrics))
    import trackio

    trackio.init(project=options.project, name=options.name, group=options.group, embed=False)
    for step, _, values in steps:
        trackio.log(values, step=step)
    trackio.finish()
    sys.stdout.write(f"{len(steps)} steps written as {options.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
