"""Evaluation of the newest weights: by the run's environment in its own process, or by a command of the user.

The trainer waits for it, so all of it is measured with the weights of one step. Environments go on sampling
for the next batches meanwhile. An evaluation that fails is logged and counted as `eval/failed`, and the run
continues.

Each evaluation by the environment has its own folder, `step-N`, with its metrics and samples; nothing is
overwritten. `metrics.json` in the folder above is a copy of the newest. An environment without held-out
tasks, or whose method reports nothing, is not evaluated again.

A command runs in a shell with HERMES_EVAL_STEP, HERMES_EVAL_SAMPLER (a tinker:// path) and HERMES_EVAL_RUN
set. The last line it prints is a JSON object; its numbers become the metrics eval/NAME.

`EvalWatcher` reads evaluations that an environment runs by itself during training and writes to a folder.
Every one replaces `metrics.json` in the folder. It belongs to the weights that were newest when it began,
although newer ones may have been published while it ran. Each evaluation is returned once; those from before
this process are not returned.
"""

from __future__ import annotations

import json
import logging
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hermes.config.environment import RL_POLICY_VARIABLE
from hermes.core import parse_object
from hermes.disk.files import atomic_write, ensure_dir, read_text
from hermes.errors import HermesError, NothingToEvaluateError

METRICS = "metrics.json"
LIMIT_S = 3600.0
_PREFIX = "eval/"


def environments_evaluation(
    environments: Sequence[tuple[Path, Path]],
    folder: Path,
    progress: Callable[[str], None],
    name_of: Callable[[int], str],
) -> Callable[[int, str], dict[str, float]]:
    """`environments`: file and configuration of each. `name_of`: what the weights of a step are
    called, and recorded as. The metrics of several have the environment's name
    (success_rate of a.py is a/success_rate); without a name it is their mean, each environment counting the
    same, of a metric that all have that report any."""
    if len(environments) == 1:
        return environment_evaluation(*environments[0], folder, progress, name_of)
    evaluations = {
        file.stem: environment_evaluation(file, config, folder / file.stem, progress, name_of)
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
    environment: Path,
    config: Path,
    folder: Path,
    progress: Callable[[str], None],
    name_of: Callable[[int], str],
) -> Callable[[int, str], dict[str, float]]:
    """`config`: the run's configuration, which names the server of the policy."""
    silent = False

    def evaluate(step: int, sampler: str) -> dict[str, float]:
        nonlocal silent
        target = folder / f"step-{step}"
        if silent:
            return {}
        try:
            _run_process(environment, config, target, name_of(step))
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


def _run_process(environment: Path, config: Path, target: Path, policy: str) -> None:
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
                env={**os.environ, "WANDB_MODE": "disabled", RL_POLICY_VARIABLE: policy},
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


logger = logging.getLogger(__name__)
_FILE = "metrics.json"
EVAL_SCORES = ("eval/reward", "eval/mean_reward", "eval/success_rate", "eval/percent_correct")
"""The first of these that an evaluation has is its score."""


class Evaluation(NamedTuple):
    step: int
    """The step whose weights were the newest when it began."""
    value: float
    """Its score."""
    metrics: dict[str, float]
    """All its numbers, as eval/NAME."""


class EvalWatcher:
    def __init__(self, folder: Path | None) -> None:
        """`folder` None: the environment does not evaluate."""
        self._path = folder / _FILE if folder else None
        self._read_ns = self._written_ns()
        self._published: list[tuple[float, int]] = []
        """Time and step of every publication."""

    def record_published(self, step: int) -> None:
        self._published.append((time.time(), step))

    def poll(self) -> Evaluation | None:
        """The newest evaluation; None if there is none since the last call."""
        written_ns = self._written_ns()
        if self._path is None or written_ns == self._read_ns:
            return None
        self._read_ns = written_ns
        try:
            evaluation: Any = parse_object(self._path.read_text(encoding="utf-8"))
            took_s = float(evaluation["config_general"]["total_evaluation_time_seconds"])
            metrics = evaluation["results"]["all"]
            value = next(float(metrics[name]) for name in EVAL_SCORES if name in metrics)
            numbers = {name: float(number) for name, number in metrics.items() if _is_number(number)}
        except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
            # An environment may write anything there.
            logger.warning("%s has no evaluation that can be used: %r", self._path, error)
            return None
        began_s = written_ns / 1e9 - took_s
        steps = [step for at_s, step in self._published if at_s <= began_s]
        return Evaluation(steps[-1], value, numbers) if steps and math.isfinite(value) else None

    def _written_ns(self) -> int:
        """When the file was written; 0: it does not exist."""
        try:
            return self._path.stat().st_mtime_ns if self._path else 0
        except OSError:
            return 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
