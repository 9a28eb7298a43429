"""The ten tools by which an agent trains a model: names, arguments and answers of the reference.

Every answer is JSON text; a failure carries `error` and, where there is one, what to do. What an answer says
was read at that moment. The agent cannot unlock fields, raise its budget (see `rl.budget`), or ask after
a healthy run more often than every 30 minutes: it would only spend turns.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from hermes.core import JSONObject, ToolErrorKind
from hermes.errors import HermesError
from hermes.rl import tool_answers
from hermes.tools.base import Tool, ToolOutput, Workbench

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.config.settings import Settings

TOOLSET = "rl"
Answer = Callable[["Config", JSONObject, str], JSONObject]
"""Configuration, arguments, and the id of the task that the agent is at."""


def _tool(
    name: str,
    description: str,
    answer: Answer,
    properties: JSONObject | None = None,
    required: tuple[str, ...] = (),
    timeout_s: float = 180.0,
) -> Tool:
    async def handler(arguments: JSONObject, bench: Workbench) -> ToolOutput:
        config, task = cast("Config", bench.resources["config"]), cast(str, bench.resources["task"])
        try:
            said = await asyncio.to_thread(answer, config, arguments, task)
        except HermesError as error:
            said = {"error": error.message, **({"fix": error.hint} if error.hint else {})}
        failed = "error" in said and "run_id" not in said
        return ToolOutput(
            json.dumps(said, ensure_ascii=False, default=str), ok=not failed, kind=ToolErrorKind.FAILED
        )

    return Tool(
        name=name,
        toolset=TOOLSET,
        description=description,
        parameters={
            "type": "object",
            "properties": properties or {},
            "required": list(required),
            "additionalProperties": False,
        },
        handler=handler,
        unavailable=_unavailable,
        timeout_s=timeout_s,
    )


def _unavailable(settings: Settings, environ: Mapping[str, str]) -> str | None:
    from hermes.rl.checks.machine import missing_packages

    missing = missing_packages(settings.rl, environ)
    return None if missing is None else f"{missing.what}; {missing.fix}"


_RUN_ID: JSONObject = {"run_id": {"type": "string", "minLength": 1, "description": "As given at the start."}}

TOOLS = (
    _tool(
        "rl_list_environments",
        "List the environments a model can be trained on.",
        tool_answers.list_environments,
    ),
    _tool(
        "rl_select_environment",
        "Select the environment to train on, and load its configuration.",
        tool_answers.select_environment,
        {"name": {"type": "string", "minLength": 1, "description": "Its name, as listed."}},
        ("name",),
    ),
    _tool(
        "rl_get_current_config",
        "Show the selected environment's fields: which can be changed, which are locked and why.",
        tool_answers.get_current_config,
    ),
    _tool(
        "rl_edit_config",
        "Change one field of the selected environment's configuration; base_model is the model to train. "
        "Types and ranges are checked.",
        tool_answers.edit_config,
        {
            "field": {"type": "string", "minLength": 1, "description": "Its name, as shown."},
            "value": {"description": "The new value, of the field's type."},
        },
        ("field", "value"),
    ),
    _tool(
        "rl_start_training",
        "Start training with the current configuration. Returns at once; the run goes on by itself.",
        tool_answers.start_training,
    ),
    _tool(
        "rl_check_status",
        "How a run stands: processes, newest metrics, logs. A healthy run can be asked every 30 minutes.",
        tool_answers.check_status,
        _RUN_ID,
        ("run_id",),
    ),
    _tool(
        "rl_stop_training",
        "Stop a run and all its processes.",
        tool_answers.stop_training,
        _RUN_ID,
        ("run_id",),
    ),
    _tool(
        "rl_get_results",
        "Final metrics, their history, and the path of the trained weights.",
        tool_answers.get_results,
        _RUN_ID,
        ("run_id",),
    ),
    _tool("rl_list_runs", "List all runs, newest first, with their status.", tool_answers.list_runs),
    _tool(
        "rl_test_inference",
        "Try the selected environment with a few models before training: are its tasks solvable and scored?",
        tool_answers.test_inference,
        {
            "num_steps": {"type": "integer", "minimum": 1, "maximum": 50, "description": "Groups; 3."},
            "group_size": {
                "type": "integer",
                "minimum": 1,
                "maximum": 64,
                "description": "Answers each; 16.",
            },
            "models": {
                "type": "array",
                "items": {"type": "string"},
                "description": "provider/name, or OpenRouter names; unset: three of different sizes.",
            },
        },
        timeout_s=4000.0,
    ),
)


def register_tools() -> None:
    """Makes the toolset known in this process, unless a plug-in entry already has."""
    from hermes.tools import registry

    if TOOLSET not in registry.toolset_names():
        for tool in TOOLS:
            registry.register(tool)
