"""Evaluation by a shell command of the user.

The command runs in a shell with HERMES_EVAL_STEP, HERMES_EVAL_SAMPLER (a tinker:// path) and HERMES_EVAL_RUN
set. The last line it prints is a JSON object; its numbers become the metrics eval/NAME. A command that fails
is logged and counted as `eval/failed`, and the run continues.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

_LIMIT_S = 3600.0


def command_evaluation(
    command: str, run_id: str, progress: Callable[[str], None]
) -> Callable[[int, str], dict[str, float]]:
    def evaluate(step: int, sampler: str) -> dict[str, float]:
        variables = {"HERMES_EVAL_STEP": str(step), "HERMES_EVAL_SAMPLER": sampler, "HERMES_EVAL_RUN": run_id}
        try:
            process = subprocess.run(
                command,
                shell=True,
                env={**os.environ, **variables},
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
            )
            metrics = _numbers(process.stdout) if process.returncode == 0 else None
            problem = "its last line is no JSON object"
            if process.returncode:
                problem = process.stderr.strip()[-300:] or f"exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            metrics, problem = None, f"it ran longer than {_LIMIT_S:g} s"
        if metrics is None:
            progress(f"step {step}: the evaluation failed: {problem}")
            return {"failed": 1.0}
        return metrics

    return evaluate


def _numbers(text: str) -> dict[str, float] | None:
    """The numbers of the JSON object in the last line; None if there is none."""
    lines = text.strip().splitlines()
    try:
        metrics = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    if not isinstance(metrics, dict):
        return None
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
