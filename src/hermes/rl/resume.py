"""Continues a run that has ended: the same folder, books and checkpoints, from the last of these on.

Leases, metrics and the trajectory API's journal are those of the run, so no batch is lost or trained twice.
Fields may change, except those that the weights and the books depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hermes.core.clock import now_ms
from hermes.errors import UsageError
from hermes.rl.config.fields import find_field
from hermes.rl.config.mixture import SHARED
from hermes.rl.config.resolve import EnvSelection, check_together, resolve, with_edit
from hermes.rl.fleet.run_fleet import FLEET
from hermes.rl.run import RlRun, RunState
from hermes.rl.run_config import RunConfig
from hermes.rl.start import check_machine, current_status, reserved_ports, spawn_supervisor, start_lock
from hermes.rl.supervise import ports
from hermes.training.checkpoints import StateFile

if TYPE_CHECKING:
    from hermes.config.load import Config

_FIXED = (
    *("tinker.base_model", "tinker.lora_rank", "tinker.seed", "tinker.start_from", "tinker.loss"),
    *("tinker.lora_alpha", "tinker.lora_targets"),
    *("env.batch_size", "env.tokenizer_name"),
)
"""Fields that a run keeps for its whole life."""
_TOGETHER = ("env.group_size", "env.batch_size")
"""Fields that are checked together."""


def resume(config: Config, run: RlRun, changes: Mapping[str, Any]) -> int:
    """Starts the run again, with changed fields; the step that it continues from. A person asks for it: locks
    do not apply. UsageError if the run has not ended, or has nothing left to do."""
    status = current_status(run)
    if not status.state.ended:
        raise UsageError(
            f"run {run.run_id} is {status.state.value}", f"hermes rl stop {run.run_id} ends it first"
        )
    data = _changed_config(config, run, changes)
    state = StateFile(run.folder).state()
    step, total_steps = (state.step if state else 0), data.env.total_steps
    if step >= total_steps:
        raise UsageError(
            f"run {run.run_id} has made all of its {total_steps} steps",
            f"hermes rl resume {run.run_id} --set total_steps={2 * total_steps}",
        )
    with start_lock(config.home):
        former = data.run.ports
        if data.tinker.sampling_servers:
            former = {FLEET: ports.FLEET_PORT, **former}
        data.assign_ports(_free_ports(config, former))
        data.write(run.folder)
        run.stop_path.unlink(missing_ok=True)
        ran_ms = (status.ended_at_ms or now_ms()) - status.started_at_ms
        again = replace(
            status,
            state=RunState.PENDING,
            reason=None,
            ending=None,
            started_at_ms=now_ms() - ran_ms,
            ended_at_ms=None,
            supervisor=None,
            processes={
                name: replace(process, process_id=None, ready=False, exit_code=None)
                for name, process in status.processes.items()
            },
        )
        run.write_status(again.with_event(f"resumed from step {step}"))
    spawn_supervisor(run)
    return step


def _changed_config(config: Config, run: RlRun, changes: Mapping[str, Any]) -> RunConfig:
    """The run's configuration with the changes, each checked as for a new run."""
    data = run.config()
    recorded = {
        f"{section}.{name}": value
        for section, values in (("env", data.env), ("openai", data.openai[0]), ("tinker", data.tinker))
        for name, value in values.model_dump(mode="json").items()
    }
    selection = EnvSelection(data.run.environment, data.run.environment_file)
    edits: dict[str, Any] = {name: recorded[name] for name in _TOGETHER if name in recorded}
    resolved = resolve(config, replace(selection, edits=edits))
    for name, value in changes.items():
        field = find_field(name, resolved.fields).name
        resolved = with_edit(config, resolved.selection, name, value, unlock=True)
        if field in _FIXED and resolved.values[field] != recorded.get(field):
            raise UsageError(
                f"{field} cannot change when a run is resumed",
                f"start another run from its weights: hermes rl start --set start_from={run.run_id}",
            )
        section, _, short = field.partition(".")
        if section == "tinker":
            data.tinker = data.tinker.model_copy(update={short: resolved.values[field]})
        else:
            setattr(data.openai[0] if section == "openai" else data.env, short, resolved.values[field])
        if section == "env" and short in SHARED:
            for env_section in data.env_sections().values():
                setattr(env_section, short, resolved.values[field])
    check_together(resolved)
    check_machine(config, resolved)
    return data


def _free_ports(config: Config, former: Mapping[str, int]) -> dict[str, int]:
    reserved = reserved_ports(config.home)
    chosen: dict[str, int] = {}
    for name, port in former.items():
        chosen[name] = ports.choose(port, {*reserved, *chosen.values()})
    return chosen
