"""Starts, stops and checks runs. All of it may be called by any process at any time.

A run that lost its supervisor before it ended gets a new one the next time its status is read. The new
supervisor adopts the processes of the run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.config.environment import without_stored
from hermes.core.clock import now_ms
from hermes.core.names import unused_name
from hermes.disk.filelock import FileLock
from hermes.disk.files import ensure_dir
from hermes.errors import HermesError, HostError, UsageError
from hermes.rl.budget import grant, recorded_limits
from hermes.rl.config.mixture import MixedEnvironment, mixture_section
from hermes.rl.config.resolve import Resolved, check_together
from hermes.rl.fleet.run_fleet import FLEET, RunFleet
from hermes.rl.run import RlRun, RunStatus, readable_runs
from hermes.rl.run_config import RunConfig
from hermes.rl.service import service_of
from hermes.rl.supervise import ports
from hermes.training.policy_registry import named_policy

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import JSONObject

_TAKEOVER_S = 60.0
"""How long a supervisor may take from its start to its first status."""
_MIN_FREE_BYTES = 200 << 20
_POLL_S = 0.05
_MOST_NAME_CHARS = 60
_RUN_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_MOST_NAME_CHARS - 1}}}")


def start(
    config: Config,
    resolved: Resolved,
    *,
    task: str | None = None,
    mixed: Sequence[MixedEnvironment] = (),
    name: str | None = None,
    note: str = "",
) -> RlRun:
    """Writes the run's record, starts a detached supervisor, and waits until that has written a status.

    `mixed`: all environments of a run that has several, `resolved` first. `task`: the task of the agent that
    starts the run, whose budget applies; None: a person starts it. `name`: its id; None: the environment and
    the day.
    """
    check_together(resolved)
    check_machine(config, resolved)
    with start_lock(config.home):
        granted = None if task is None else grant(config, resolved, task)
        run = RlRun(config.home, new_run_id(config.home, resolved.selection.environment, name))
        settings = {
            **_run_section(config, resolved, run),
            "note": note,
            "task": task,
            **recorded_limits(config, granted),
        }
        if len(mixed) > 1:
            settings["mixture"] = mixture_section(mixed)
        data = resolved.run_config(settings)
        data.assign_ports(data.run.ports)
        for name, env in data.env_sections().items():
            evals = run.folder / "evals" / ("" if env is data.env else name)
            env.data_dir_to_save_evals = env.data_dir_to_save_evals or str(evals)
        _set_texts(config.home, data)
        data.tinker = data.tinker.model_copy(update=_start_weights(config.home, data))
        ensure_dir(run.folder)
        data.write(run.folder)
        run.write_status(RunStatus(started_at_ms=now_ms()))
    spawn_supervisor(run)
    return run


def new_run_id(home: Path, environment: str, name: str | None = None) -> str:
    """The name that a person chose, or one from the environment and the day, such as `calculator-1118`.

    UsageError if the chosen one is taken or cannot name a folder.
    """
    run_ids = {path.name for path in (home / "runs").glob("*")}
    if name is None:
        stem = re.sub(r"[^a-z0-9]+", "-", environment.lower()).strip("-") or "run"
        return unused_name(f"{stem[:_MOST_NAME_CHARS]}-{time.strftime('%m%d')}", run_ids)
    if not _RUN_NAME.fullmatch(name):
        raise UsageError(
            f"'{name}' cannot name a run", f"use up to {_MOST_NAME_CHARS} letters, digits, '-', '_' and '.'"
        )
    if name in run_ids:
        raise UsageError(f"there is a run '{name}' already", f"--name {unused_name(name, run_ids)}")
    return name


def stop(run: RlRun, *, now: bool = False, patience_s: float = 120.0) -> RunStatus:
    """Requests a stop and waits up to `patience_s`. UsageError if the run has ended.

    The trainer finishes its step and saves, which may take longer: the run is then still stopping. `now`: it
    does not, and the steps since the last checkpoint are lost.
    """
    status = current_status(run)
    if status.state.ended:
        raise UsageError(
            f"run {run.run_id} has ended: {status.state.value}", "'hermes rl status --all' lists them"
        )
    run.request_stop(now)
    deadline_s = time.monotonic() + patience_s
    while not (status := current_status(run)).state.ended and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    return status


def current_status(run: RlRun) -> RunStatus:
    """The status of a run; a run that lost its supervisor gets a new one first."""
    status = run.status()
    if status.state.ended or _has_supervisor(run, status):
        return status
    spawn_supervisor(run)
    return run.status()


def spawn_supervisor(run: RlRun) -> None:
    log_path = ensure_dir(run.log_path("supervisor").parent) / run.log_path("supervisor").name
    before = run.status().supervisor
    with log_path.open("ab") as log:
        subprocess.run(
            [sys.executable, "-P", "-m", "hermes.rl.supervise.daemon", str(run.folder)],
            env={**without_stored(os.environ), "HERMES_HOME": str(run.home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            check=True,
        )
    deadline_s = time.monotonic() + _TAKEOVER_S
    while (status := run.status()).supervisor == before and not status.state.ended:
        if time.monotonic() > deadline_s:
            raise HermesError(
                f"the supervisor of run {run.run_id} does not start", f"see {run.log_path('supervisor')}"
            )
        time.sleep(_POLL_S)


def _has_supervisor(run: RlRun, status: RunStatus) -> bool:
    if status.supervisor is None:
        return now_ms() - status.started_at_ms < _TAKEOVER_S * 1000
    return status.supervisor.alive()


def _run_section(config: Config, resolved: Resolved, run: RlRun) -> JSONObject:
    """The section `run` of the configuration, which the supervisor reads."""
    service = service_of(config.settings.rl, config.environ)
    reserved = reserved_ports(config.home)
    toolsets = resolved.values.get("env.enabled_toolsets")
    api = ports.choose(ports.API_PORT, reserved)
    policy = ports.choose(ports.ENGINE_PORT, {*reserved, api})
    assigned = {"api": api, "trainer" if service else "engine": policy}
    if resolved.trainer.sampling_servers:
        assigned[FLEET] = ports.choose(ports.FLEET_PORT, {*reserved, api, policy})
    return {
        "run_id": run.run_id,
        "environment": resolved.selection.environment,
        "environment_file": resolved.selection.file_path,
        "evaluates": resolved.evaluates,
        "model": resolved.model,
        "device": config.settings.rl.device,
        "toolsets": resolved.toolsets if toolsets is None else toolsets,
        "service": service,
        "ports": assigned,
        "cwd": str(Path.cwd()),
        "created_at_ms": now_ms(),
    }


def _set_texts(home: Path, config: RunConfig) -> None:
    """The texts of the policy that the run starts from, for every environment that has none of its own."""
    policy = named_policy(home, config.tinker.start_from)
    if policy is None or not policy.texts:
        return
    for name, env in config.env_sections().items():
        if env.texts is None:
            raise UsageError(
                f"policy {policy.label} has texts, and the prompts of {name} are its own",
                f"start from its weights alone: --set start_from={policy.weights or ''}",
            )
        env.texts = env.texts or dict(policy.texts)


def _start_weights(home: Path, config: RunConfig) -> JSONObject:
    """The initial weights, resolved once: a run that is named may make more checkpoints meanwhile."""
    from hermes.training.start_weights import find_folder, find_start, rank_of

    weights = find_start(config.tinker.start_from, home, config.run.model)
    if weights is None:
        return {"start_from": ""}
    if config.run.service:
        return {"start_from": weights}
    folder = find_folder(weights, home)
    return {"start_from": str(folder), "lora_rank": rank_of(folder)}


def reserved_ports(home: Path) -> set[int]:
    """Ports of runs that have not ended."""
    return {
        port
        for run in readable_runs(home)
        if not run.status().state.ended
        for port in run.config().run.ports.values()
    }


def check_machine(config: Config, resolved: Resolved) -> None:
    """HermesError if this machine lacks something that the run needs, such as its base model."""
    from hermes.rl.checks.inference_test import is_local
    from hermes.rl.checks.replica_memory import missing_memory
    from hermes.rl.config.base_model import hub_folder
    from hermes.rl.machine import missing_requirement

    ensure_dir(config.home)
    free = shutil.disk_usage(config.home).free
    if free < _MIN_FREE_BYTES:
        raise HostError(
            f"no space for checkpoints: {config.home} has {free >> 20} MB left",
            f"free at least {_MIN_FREE_BYTES >> 20} MB, or set HERMES_HOME to another disk",
        )
    service = service_of(config.settings.rl, config.environ)
    missing = missing_requirement(config, resolved.model)
    if missing is None and service is None and not is_local(resolved.model):
        hub_folder(resolved.model, "config.json")
    missing = missing or missing_memory(config, resolved.model, resolved.trainer)
    if missing is not None:
        raise HermesError(missing.problem, missing.fix)
    fleet = RunFleet.from_fields(resolved.trainer)
    if fleet is not None:
        fleet.check(service, config.environ)


def start_lock(home: Path) -> FileLock:
    """Held by a start, so that two starts at the same moment do not choose the same ports."""
    return FileLock(ensure_dir(home / "runs") / ".lock")
