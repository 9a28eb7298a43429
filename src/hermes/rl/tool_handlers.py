"""The handlers of the RL tools: each returns its result as data. A failure is raised, or has the key
`error`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hermes.core import JSONObject
from hermes.errors import UsageError

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.rl.run import RlRun

CHECK_EVERY_S = 1800.0
"""How often the agent may check a healthy run."""


def list_environments(config: Config, arguments: JSONObject, task: str) -> JSONObject:
    from hermes.rl.config.resolve import list_environments

    listing = list_environments(config)
    columns = ("name", "class_name", "file_path", "description")
    rows = [{key: env.to_json()[key] for key in columns} for env in listing.environments]
    tips = [
        "Select one with rl_select_environment(name).",
        "The path of another file needs the user, who is shown the whole file and asked.",
        *(f"{file.path} was left out: {file.reason}" for file in listing.broken),
    ]
    return {"environments": rows, "count": len(rows), "tips": tips}


def select_environment(config: Config, arguments: JSONObject, task: str) -> JSONObject:
    from hermes.rl.config.resolve import list_environments, select

    try:
        selection = select(config, arguments["name"])
    except UsageError as error:
        available = [env.name for env in list_environments(config).environments]
        return {"error": error.message, "fix": error.hint, "available": available}
    return {
        "message": f"{selection.environment} is selected; rl_get_current_config() shows its fields.",
        "environment": selection.environment,
        "file_path": selection.file_path,
    }


def get_current_config(config: Config, arguments: JSONObject, task: str) -> JSONObject:
    from hermes.rl.config.resolve import current_selection, resolve

    resolved = resolve(config, current_selection(config.home))
    fields = [(field, field.to_json(resolved.values[name])) for name, field in resolved.fields.items()]
    return {
        "environment": resolved.selection.environment,
        "base_model": resolved.model,
        "configurable_fields": [row for field, row in fields if field.lock is None],
        "locked_fields": [row for field, row in fields if field.lock is not None],
        "tip": "Change configurable fields with rl_edit_config(field, value); locked ones give their reason.",
    }


def edit_config(config: Config, arguments: JSONObject, task: str) -> JSONObject:
    from hermes.rl.config.base_model import ForbiddenModelError
    from hermes.rl.config.fields import find_field
    from hermes.rl.config.resolve import LockedFieldError, current_selection, edit, resolve

    name = arguments["field"]
    try:
        resolved = edit(config, name, arguments["value"], unlock=False)
    except LockedFieldError as error:
        return {"error": error.message, "fix": error.hint, "locked_value": error.value}
    except ForbiddenModelError as error:
        return {"error": error.message, "fix": error.hint, "allowed_models": list(error.allowed)}
    except UsageError as error:
        fields = resolve(config, current_selection(config.home)).fields.values()
        available = [field.name for field in fields if field.lock is None]
        return {"error": error.message, "fix": error.hint, "available_fields": available}
    field = find_field(name, resolved.fields).name
    value = resolved.values[field]
    unlocked = {key: value for key, value in resolved.values.items() if resolved.fields[key].lock is None}
    return {"message": f"{field} is now {value!r}.", "field": field, "value": value, "config": unlocked}


def start_training(config: Config, arguments: JSONObject, task: str) -> JSONObject:
    from hermes.rl.config.resolve import current_selection, resolve
    from hermes.rl.results import log_paths
    from hermes.rl.start import start

    resolved = resolve(config, current_selection(config.home))
    run = start(config, resolved, task=task)
    status, started = run.status(), run.config()
    addresses = {
        "env.rollout_server_url": started.env.rollout_server_url,
        "openai.base_url": started.openai[0].base_url,
    }
    return {
        "run_id": run.run_id,
        "status": status.state.value,
        "environment": resolved.selection.environment,
        "base_model": resolved.model,
        "config": {**resolved.values, **addresses},
        "ports": started.run.ports,
        "wandb_project": resolved.values["tinker.wandb_project"],
        "wandb_run_name": resolved.values["env.wandb_name"],
        "config_path": str(run.config_path),
        "logs": log_paths(run, status),
        "message": "The run continues by itself. rl_check_status(run_id) returns its status.",
    }


def check_status(config: Config, arguments: JSONObject, task: str) -> JSONObject:
    from hermes.core.clock import now_ms
    from hermes.rl.results import describe, is_healthy
    from hermes.rl.run import find_run
    from hermes.rl.start import current_status

    run = find_run(config.home, arguments["run_id"])
    status = current_status(run)
    if not is_healthy(run, status):
        return describe(run, status)
    wait_s = _last_check_ms(run) / 1000 + CHECK_EVERY_S - now_ms() / 1000
    if wait_s > 0:
        return {
            "run_id": run.run_id,
            "status": status.state.value,
            "rate_limited": True,
            "next_check_in_seconds": round(wait_s),
            "message": "The run is healthy. Training takes time; check again later.",
        }
    (run.folder / "checked").write_text(str(now_ms()))
    return describe(run, status)


def _last_check_ms(run: RlRun) -> int:
    try:
        return int((run.folder / "checked").read_text())
    except (FileNotFoundError, ValueError):
        return 0


def stop_training(config: Config, arguments: JSONObject, task: str) -> JSONObject:
    from hermes.rl.run import find_run
    from hermes.rl.start import stop

    run = find_run(config.home, arguments["run_id"])
    status = stop(run)
    ended = f"run {run.run_id} has ended: {status.reason or status.state.value}"
    stopping = f"run {run.run_id} is stopping: its trainer finishes a step and saves; check again later"
    return {
        "message": ended if status.state.ended else stopping,
        "run_id": run.run_id,
        "status": status.state.value,
    }


def get_results(config: Config, arguments: JSONObject, task: str) -> JSONObject:
    from hermes.rl.results import results
    from hermes.rl.run import find_run
    from hermes.rl.start import current_status

    run = find_run(config.home, arguments["run_id"])
    return results(run, current_status(run))


def list_runs(config: Config, arguments: JSONObject, task: str) -> JSONObject:
    from hermes.rl.run import readable_runs
    from hermes.rl.start import current_status

    rows: list[Any] = []
    for run in readable_runs(config.home):
        settings = run.config()
        rows.append(
            {
                "run_id": run.run_id,
                "environment": settings.run.environment,
                "status": current_status(run).state.value,
                "wandb_run_name": settings.env.wandb_name,
            }
        )
    return {"runs": rows, "count": len(rows)}


def test_inference(config: Config, arguments: JSONObject, task: str) -> JSONObject:
    from hermes.rl.budget import charge_test
    from hermes.rl.checks.inference_test import DEFAULT_MODELS, GROUP_SIZE, STEPS, run_inference_test
    from hermes.rl.config.resolve import current_selection, resolve

    resolved = resolve(config, current_selection(config.home))
    models = arguments.get("models") or [name for name, _ in DEFAULT_MODELS]
    steps, group_size = arguments.get("num_steps", STEPS), arguments.get("group_size", GROUP_SIZE)
    charge_test(config, resolved, task, models, steps * group_size)
    return run_inference_test(config, resolved, models, steps, group_size)
