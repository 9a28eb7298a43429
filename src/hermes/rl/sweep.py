"""A sweep: many runs that differ in some fields, all at once on one engine, each with an adapter of its own.

The base model is loaded once, and the engine shares its time among the adapters. Every run of a sweep is an
ordinary run with its folder, status and results; the engine ends with the sweep, and its checkpoints stay in
the sweep's folder, where `hermes rl weights RUN` finds them.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from hermes.config.paths import logs_dir
from hermes.disk.files import atomic_write, ensure_dir
from hermes.errors import HermesError, UsageError
from hermes.rl.checks.doctor import diagnose
from hermes.rl.config.resolve import Resolved
from hermes.rl.results import evaluations, step_rows
from hermes.rl.run import RlRun, RunState, last_step
from hermes.rl.service import service_of
from hermes.rl.start import check_machine, current_status, start
from hermes.rl.supervise import ports
from hermes.rl.supervise.engine_process import engine_options, engine_process
from hermes.training.monitor.evaluations import EVAL_SCORES

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import JSONObject

RATE_FIELD = "tinker.learning_rate"
_POLL_S = 0.5
_ADAPTERS = 32
"""At least so many adapters may be in training at the engine."""
_NO_TOKEN = {"HERMES_ENGINE_TOKEN": ""}
"""The engine listens on loopback for this sweep only."""
_TOO_FAST = ("learning rate too high", "entropy collapse")
"""Doctor's causes that a learning rate is left out for."""
_MAX_POINTS = 64

Edits = Mapping[str, Any]
"""Field → value."""


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One run of a sweep, as it ended."""

    edits: Edits
    run_id: str
    status: str
    steps: int
    score: float | None
    """The score of its last evaluation, else the mean reward of its last quarter; None: it has neither."""
    evaluated: bool
    gain: float | None
    """The mean reward of its last quarter minus that of its first."""
    causes: tuple[str, ...] = ()
    """The causes that doctor names."""
    reason: str | None = None


def grid(values: Mapping[str, Sequence[Any]], seeds: int = 1) -> list[Edits]:
    """Every combination of the values, each with `seeds` seeds. UsageError if there are too many."""
    fields = {**values, **({"tinker.seed": list(range(seeds))} if seeds > 1 else {})}
    count = math.prod(len(choices) for choices in fields.values())
    if count > _MAX_POINTS:
        raise UsageError(f"the sweep has {count} runs; at most {_MAX_POINTS}", "leave some values out")
    return [dict(zip(fields, point, strict=True)) for point in itertools.product(*fields.values())]


def rates_around(rate: float, count: int, span: float = 10.0) -> list[float]:
    """Learning rates from rate / span to rate * span, evenly spaced by their logarithms."""
    if count == 1:
        return [rate]
    exponents = [2 * index / (count - 1) - 1 for index in range(count)]
    return [float(f"{rate * span**exponent:.2g}") for exponent in exponents]


def run_sweep(
    config: Config,
    points: Sequence[Edits],
    resolve_point: Callable[[Edits], Resolved],
    progress: Callable[[str], None],
) -> JSONObject:
    """Starts a run for each point on one engine, waits for all, and returns the report, which is also the
    file sweep.json of the sweep's folder. A keyboard interrupt stops the runs before it is raised."""
    if (service := service_of(config.settings.rl, config.environ)) is not None:
        raise UsageError(
            f"a sweep has an engine of its own, and runs train at {service}",
            "leave out rl.service and TINKER_BASE_URL",
        )
    resolved = [resolve_point(edits) for edits in points]
    if len(models := {entry.model for entry in resolved}) > 1:
        raise UsageError(
            f"one engine has one base model, not {', '.join(sorted(models))}", "sweep each of them alone"
        )
    check_machine(config, resolved[0])
    sweep_id = os.urandom(4).hex()
    folder = ensure_dir(config.home / "sweeps" / sweep_id)
    log = logs_dir(config.home) / "rl_training" / f"engine_sweep-{sweep_id}.log"
    progress(f"sweep {sweep_id}: {len(points)} runs on one engine; its log is {log}")
    engine = engine_options(
        resolved[0].trainer,
        model=resolved[0].model,
        device=config.settings.rl.device,
        port=ports.choose(ports.ENGINE_PORT),
        state_dir=folder / "engine",
        max_adapters=max(_ADAPTERS, 2 * len(points)),
    )
    with engine_process(engine, log, _NO_TOKEN) as url:
        here = with_service(config, url)
        runs: list[RlRun] = []
        rows: list[SweepRow] = []
        started: list[Edits] = []
        try:
            for entry, edits in zip(resolved, points, strict=True):
                try:
                    runs.append(start(here, entry))
                except HermesError as error:  # the others go on
                    progress(f"not started: {edits_text(edits)}: {error.message}")
                    rows.append(
                        SweepRow(edits, "", "not started", 0, None, False, None, reason=error.message)
                    )
                else:
                    started.append(edits)
                    progress(f"run {runs[-1].run_id}: {edits_text(edits)}")
            _wait(runs, progress)
        except BaseException:
            for run in runs:
                run.request_stop()
            _wait(runs, lambda line: None)
            raise
    rows += [summarise(run, edits) for run, edits in zip(runs, started, strict=True)]
    chosen = best_row(rows)
    report: JSONObject = {
        "sweep_id": sweep_id,
        "folder": str(folder),
        "runs": [asdict(row) for row in rows],
        "best": None if chosen is None else asdict(chosen),
    }
    atomic_write(folder / "sweep.json", json.dumps(report, indent=1))
    return report


def with_service(config: Config, url: str) -> Config:
    rl = config.settings.rl.model_copy(update={"service": url})
    return replace(config, settings=config.settings.model_copy(update={"rl": rl}))


def summarise(run: RlRun, edits: Edits) -> SweepRow:
    """Reads the metrics of a run that has ended."""
    status, rows = run.status(), step_rows(run)
    rewards = [float(row["reward/mean"]) for row in rows if "reward/mean" in row]
    quarter = max(1, len(rewards) // 4)
    late = statistics.fmean(rewards[-quarter:]) if rewards else None
    measured = [
        next(row[name] for name in EVAL_SCORES if name in row)
        for row in evaluations(run)
        if row["step"] and any(name in row for name in EVAL_SCORES)
    ]
    causes = diagnose(rows, status.state.value, status.reason)
    return SweepRow(
        edits,
        run.run_id,
        status.state.value,
        last_step(run),
        float(measured[-1]) if measured else late,
        bool(measured),
        None if late is None else late - statistics.fmean(rewards[:quarter]),
        tuple(cause.name for cause in causes),
        status.reason,
    )


def best_row(rows: Sequence[SweepRow]) -> SweepRow | None:
    """The completed run with the highest score whose learning rate doctor does not object to, if there is
    one; runs that differ only in their seed count together."""
    healthy = [row for row in rows if row.score is not None and row.status == RunState.COMPLETED]
    healthy = [row for row in healthy if not set(row.causes) & set(_TOO_FAST)] or healthy
    by_point: dict[str, list[SweepRow]] = {}
    for row in healthy:
        by_point.setdefault(edits_text(_without_seed(row.edits)), []).append(row)
    if not by_point:
        return None
    chosen = max(by_point.values(), key=lambda same: statistics.fmean(row.score or 0.0 for row in same))
    return max(chosen, key=lambda row: row.score or 0.0)


def _without_seed(edits: Edits) -> Edits:
    return {name: value for name, value in edits.items() if name.rpartition(".")[2] != "seed"}


def differing(points: Sequence[Edits]) -> set[str]:
    """The fields whose value is not the same in all points."""
    return {name for point in points for name in point if any(other[name] != point[name] for other in points)}


def edits_text(edits: Edits) -> str:
    return " ".join(f"{name.rpartition('.')[2]}={value}" for name, value in edits.items()) or "as configured"


def _wait(runs: Sequence[RlRun], progress: Callable[[str], None]) -> None:
    """Returns when all runs have ended; reports each end, and steps as they are made.

    Every line begins with the steps of all runs, so that a terminal shows them all while it waits.
    """
    steps = {run.run_id: 0 for run in runs}
    waiting = list(runs)

    def report(news: str) -> None:
        counts = ", ".join(map(str, steps.values()))
        progress(f"{len(runs) - len(waiting)} of {len(runs)} runs ended; steps {counts}  {news}")

    while waiting:
        for run in list(waiting):
            status = current_status(run)
            if status.state.ended:
                waiting.remove(run)
                reason = f", {status.reason}" if status.reason else ""
                report(f"run {run.run_id}: {status.state.value}{reason}")
            elif (step := last_step(run)) > steps[run.run_id]:
                steps[run.run_id] = step
                report(f"run {run.run_id}: step {step}")
        time.sleep(_POLL_S if waiting else 0)
