"""Evaluation by a command of the person's own: it is told which weights, and prints what it found.

The command runs in a shell with HERMES_EVAL_STEP, HERMES_EVAL_SAMPLER (a tinker:// path) and HERMES_EVAL_RUN
set. The last line it prints is a JSON object; its numbers become the metrics eval/NAME. One that fails is
counted as `eval/failed` and said, and the run goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

_LIMIT_S = 3600.0


def command_evaluation(
    command: str, run_id: str, tell: Callable[[str], None]
) -> Callable[[int, str], dict[str, float]]:
    def evaluate(step: int, sampler: str) -> dict[str, float]:
        facts = {"HERMES_EVAL_STEP": str(step), "HERMES_EVAL_SAMPLER": sampler, "HERMES_EVAL_RUN": run_id}
        try:
            done = subprocess.run(
                command,
                shell=True,
                env={**os.environ, **facts},
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
            )
            found = _numbers(done.stdout) if done.returncode == 0 else None
            why = "its last line is no JSON object"
            if done.returncode:
                why = done.stderr.strip()[-300:] or f"exit code {done.returncode}"
        except subprocess.TimeoutExpired:
            found, why = None, f"it ran longer than {_LIMIT_S:g} s"
        if found is None:
            tell(f"step {step}: the evaluation failed: {why}")
            return {"failed": 1.0}
        return found

    return evaluate


def _numbers(text: str) -> dict[str, float] | None:
    """The numbers of the JSON object in the last line; None if there is none."""
    lines = text.strip().splitlines()
    try:
        told = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    if not isinstance(told, dict):
        return None
    return {name: float(value) for name, value in told.items() if isinstance(value, int | float)}
