"""Evaluation results on disk and on the terminal, in the files Atropos's tools read.

`metrics.json` has the metrics under the task's name, and confidence intervals of the numbers in the samples
(`score`, `reward`, `correct` and others). `samples.jsonl` has one line for each sample.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hermes.core.stats import Interval, interval
from hermes.envs.groups import to_plain
from hermes.envs.modes.redaction import clean_text
from hermes.safety.text import printable

logger = logging.getLogger(__name__)

_MEASURED = ("score", "reward", "correct", "is_correct", "success", "passed", "accuracy")


def evaluate_log(
    metrics: Mapping[str, Any],
    eval_dir: str | None = None,
    task_name: str | None = None,
    model_name: str | None = None,
    start_time: float | None = None,
    end_time: float | None = None,
    generation_parameters: Mapping[str, Any] | None = None,
    samples: Sequence[Mapping[str, Any]] | None = None,
    verbose: bool = True,
) -> None:
    """Prints a table if `verbose`, and writes the two files if `eval_dir` is given."""
    now = time.time()
    duration_s = (now if end_time is None else end_time) - (now if start_time is None else start_time)
    intervals = sample_intervals(samples or ())
    if verbose:
        sys.stdout.write(table(task_name or "evaluation", metrics, intervals, duration_s))
        sys.stdout.flush()
    if eval_dir is None:
        logger.warning("data_dir_to_save_evals is not set: the evaluation is not saved")
        return
    folder = Path(eval_dir)
    folder.mkdir(parents=True, exist_ok=True)
    result = {
        "config_general": {
            "model_name": model_name,
            "total_evaluation_time_seconds": str(duration_s),
            "generation_parameters": dict(generation_parameters or {}),
        },
        "results": {f"atropos|{task_name}|0": dict(metrics), "all": dict(metrics)},
        "confidence_intervals": {name: asdict(value) for name, value in intervals.items()},
    }
    _write(folder / "metrics.json", clean_text(_dumps(result, indent=2)) + "\n")
    if samples:
        _write(folder / "samples.jsonl", "".join(clean_text(_dumps(sample)) + "\n" for sample in samples))
    logger.info("the evaluation is saved in %s", folder)


def sample_intervals(samples: Sequence[Mapping[str, Any]]) -> dict[str, Interval]:
    """The interval of each known key, over the samples in which it is a finite number."""
    intervals = {}
    for key in _MEASURED:
        values = [sample.get(key) for sample in samples if isinstance(sample, Mapping)]
        numbers = [float(value) for value in values if isinstance(value, bool | int | float)]
        if numbers and all(map(math.isfinite, numbers)):
            intervals[key] = interval(numbers)
    return intervals


def table(task: str, metrics: Mapping[str, Any], intervals: Mapping[str, Interval], duration_s: float) -> str:
    """A Markdown table."""
    rows = [(str(name), _format_value(value)) for name, value in metrics.items()]
    rows += [
        (
            f"{name} (95 % interval, n={estimate.n})",
            f"{estimate.mean:.4f} [{estimate.low:.4f}, {estimate.high:.4f}]",
        )
        for name, estimate in intervals.items()
    ]
    width = max((len(name) for name, _ in rows), default=0)
    lines = [
        f"{task}: {duration_s:.1f} s",
        "",
        f"| {'metric':<{width}} | value |",
        f"|{'-' * (width + 2)}|-------|",
    ]
    lines += [f"| {name:<{width}} | {value} |" for name, value in rows]
    return printable("\n".join(lines)) + "\n\n"


def _format_value(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _dumps(value: Any, indent: int | None = None) -> str:
    """JSON; NaN, such as an empty mean, is written as Python's `NaN`."""
    return json.dumps(value, default=to_plain, indent=indent)


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.touch(mode=0o600)
    part.chmod(0o600)
    part.write_text(text, encoding="utf-8")
    part.replace(path)
