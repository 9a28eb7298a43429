"""Evaluation of the newest weights: by the run's environment in its own process, or by a command of the user.

The trainer waits for it, so all of it is measured with the weights of one step. Environments go on sampling
for the next batches meanwhile. An evaluation that fails is logged and counted as `eval/failed`, and the run
continues.

Each evaluation by the environment has its own folder, `step-N`, with its metrics and samples; nothing is
overwritten. `metrics.json` in the folder above is a copy of the newest. An environment without held-out
tasks, or whose method reports nothing, is not evaluated again.

A command runs in a shell with HERMES_EVAL_STEP, HERMES_EVAL_SAMPLER (a tinker:// path) and HERMES_EVAL_RUN
set. The last line it prints is a JSON object; its numbers become the metrics eval/NAME.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hermes.disk.files import atomic_write, ensure_dir, read_text
from hermes.errors import HermesError, NothingToEvaluateError

METRICS = "metrics.json"
LIMIT_S = 3600.0
_PREFIX = "eval/"


def environments_evaluation(
    environments: Sequence[tuple[Path, Path]], folder: Path, progress: Callable[[str], None]
) -> Callable[[int, str], dict[str, float]]:
    """`environments`: file and configuration of each. The metrics of several have the environment's name
    (success_rate of a.py is a/success_rate); without a name it is their mean, each environment counting the
    same, of a metric that all have that report any."""
    if len(environments) == 1:
        return environment_evaluation(*environments[0], folder, progress)
    evaluations = {
        file.stem: environment_evaluation(file, config, folder / file.stem, progress)
        for file, config in environments
    }

    def evaluate(step: int, sampler: str) -> dict[str, float]:
        by_name = {name: evaluation(step, sampler) for name, evaluation in evaluations.items()}
        by_name = {name: metrics for name, metrics in by_name.items() if metrics}
        if not by_name:
            return {}
        common = set.intersection(*(set(metrics) for metrics in by_name.values()))
        means = {
            metric: statistics.fmean(metrics[metric] for metrics in by_name.values())
            for metric in sorted(common)
        }
        named = {
            f"{name}/{metric}": value
            for name, metrics in by_name.items()
            for metric, value in metrics.items()
        }
        return means | named

    return evaluate


def environment_evaluation(
    environment: Path, config: Path, folder: Path, progress: Callable[[str], None]
) -> Callable[[int, str], dict[str, float]]:
    """`config`: the run's configuration, which names the server of the policy."""
    silent = False

    def evaluate(step: int, sampler: str) -> dict[str, float]:
        nonlocal silent
        target = folder / f"step-{step}"
        if silent:
            return {}
        try:
            _run_process(environment, config, target)
            text = read_text(target / METRICS)
            if text is None:
                silent = True
                progress("the environment's evaluate method reports nothing: the run goes on without it")
                return {}
            metrics = eval_metrics(text)
            atomic_write(ensure_dir(folder) / METRICS, text)
        except NothingToEvaluateError as error:
            silent = True
            progress(f"{error.message.rstrip('.')}: the run goes on without an evaluation")
            return {}
        except (HermesError, ValueError, KeyError, TypeError) as error:
            problem = error.message if isinstance(error, HermesError) else repr(error)
            progress(f"step {step}: the evaluation failed: {problem}; its log is {target / 'log.txt'}")
            return {"failed": 1.0}
        return metrics

    return evaluate


def eval_metrics(text: str) -> dict[str, float]:
    """The numbers of a metrics.json, without the prefix `eval/`."""
    metrics: Any = json.loads(text)["results"]["all"]
    return {
        name.removeprefix(_PREFIX): float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float)
    }


def _run_process(environment: Path, config: Path, target: Path) -> None:
    """HermesError with the last error in its output if it fails."""
    log_path = ensure_dir(target) / "log.txt"
    command = [sys.executable, "-P", "-m", "hermes", "env", "evaluate", str(environment)]
    command += [
        "--config",
        str(config),
        "--env.data_dir_to_save_evals",
        str(target),
        "--env.use_wandb",
        "false",
    ]
    with log_path.open("wb") as log:
        try:
            process = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
                env={**os.environ, "WANDB_MODE": "disabled"},
            )
        except subprocess.TimeoutExpired as error:
            raise HermesError(f"it ran longer than {LIMIT_S:g} s") from error
    if process.returncode:
        lines = [line for line in log_path.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error:")]
        problem = (errors or lines or [f"exit code {process.returncode}"])[-1]
        if process.returncode == NothingToEvaluateError.exit_code:
            raise NothingToEvaluateError(problem.removeprefix("error: "))
        raise HermesError(problem)


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
