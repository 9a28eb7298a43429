"""The ten tools with which an agent trains a model, with the names, arguments and results of hermes-agent.

Every result is JSON text; a failure has `error` and, if there is one, `fix`. A result is read from disk when
the tool is called. The agent cannot load an environment that it wrote itself, unlock fields, raise its budget
(see `rl.budget`), or check a healthy run more often than every 30 minutes, which would only spend turns.
"""

from __future__ import annotations

import asyncio
import io
import json
import tokenize
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hermes.core import JSONObject, ToolErrorKind, content_hash
from hermes.disk.files import atomic_write
from hermes.errors import HermesError, ToolError, UsageError
from hermes.rl import tool_handlers, training_tools
from hermes.tools.base import Tool, ToolOutput, Workbench, object_schema
from hermes.tools.workspace import permit_path

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.config.settings import Settings

TOOLSET = "rl"
ToolHandler = Callable[["Config", JSONObject, str], JSONObject]
"""Configuration, arguments and the id of the agent's task → the result."""
Consent = Callable[[Workbench, "Config", JSONObject], Awaitable[JSONObject]]
"""Asks a person where one has to agree; returns the arguments for the handler."""
APPROVED = "approved_environments"
MAX_BYTES = 500_000


def _tool(
    name: str,
    description: str,
    function: ToolHandler,
    properties: JSONObject | None = None,
    required: tuple[str, ...] = (),
    timeout_s: float = 180.0,
    consent: Consent | None = None,
) -> Tool:
    async def handler(arguments: JSONObject, bench: Workbench) -> ToolOutput:
        config, task = cast("Config", bench.resources["config"]), cast(str, bench.resources["task"])
        try:
            if consent is not None:
                arguments = await consent(bench, config, arguments)
            result = await asyncio.to_thread(function, config, arguments, task)
        except ToolError:
            raise
        except HermesError as error:
            result = {"error": error.message, **({"fix": error.hint} if error.hint else {})}
            if isinstance(error, UnusableEnvironmentError):
                result["available"] = list(error.available)
        failed = "error" in result and "run_id" not in result
        return ToolOutput(
            json.dumps(result, ensure_ascii=False, default=str), ok=not failed, kind=ToolErrorKind.FAILED
        )

    return Tool(
        name=name,
        toolset=TOOLSET,
        description=description,
        parameters=object_schema(*required, **(properties or {})),
        handler=handler,
        unavailable=_unavailable,
        timeout_s=timeout_s,
    )


async def _named_environment(bench: Workbench, config: Config, arguments: JSONObject) -> JSONObject:
    """The arguments with the path of the file that may be loaded in place of the name."""
    return {**arguments, "name": str(await consented_environment(bench, config, arguments["name"]))}


async def _edited_field(bench: Workbench, config: Config, arguments: JSONObject) -> JSONObject:
    """A value that names something on this machine, such as a file of tasks, is a path that the agent
    reads."""
    await consent_to_selection(bench, config)
    value = arguments["value"]
    if isinstance(value, str) and _names_file(value):
        await permit_path(bench, str(Path(value).expanduser().absolute()), "use in a run")
    return arguments


def _names_file(value: str) -> bool:
    try:
        return "/" in value and Path(value).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long for a name, no home, a NUL: not a path
        return False


async def _selected_environment(bench: Workbench, config: Config, arguments: JSONObject) -> JSONObject:
    await consent_to_selection(bench, config)
    return arguments


def _unavailable(settings: Settings, environ: Mapping[str, str]) -> str | None:
    from hermes.rl.machine import missing_packages

    missing = missing_packages(settings.rl, environ)
    return None if missing is None else f"{missing.problem}; {missing.fix}"


_RUN_ID: JSONObject = {"run_id": {"type": "string", "minLength": 1, "description": "As given at the start."}}

RL_TOOLS = (
    _tool(
        "rl_list_environments",
        "List the environments a model can be trained on.",
        tool_handlers.list_environments,
    ),
    _tool(
        "rl_select_environment",
        "Select the environment to train on, and load its configuration.",
        tool_handlers.select_environment,
        {"name": {"type": "string", "minLength": 1, "description": "Its name, as listed."}},
        ("name",),
        consent=_named_environment,
    ),
    _tool(
        "rl_get_current_config",
        "Show the selected environment's fields: which can be changed, which are locked and why.",
        tool_handlers.get_current_config,
        consent=_selected_environment,
    ),
    _tool(
        "rl_edit_config",
        "Change one field of the selected environment's configuration; base_model is the model to train. "
        "Types and ranges are checked.",
        tool_handlers.edit_config,
        {
            "field": {"type": "string", "minLength": 1, "description": "Its name, as shown."},
            "value": {"description": "The new value, of the field's type."},
        },
        ("field", "value"),
        consent=_edited_field,
    ),
    _tool(
        "rl_start_training",
        "Start training with the current configuration. Returns at once; the run continues by itself.",
        tool_handlers.start_training,
        consent=_selected_environment,
    ),
    _tool(
        "rl_check_status",
        "The status of a run: processes, newest metrics, logs. Check a healthy run every 30 minutes at most.",
        tool_handlers.check_status,
        _RUN_ID,
        ("run_id",),
    ),
    _tool(
        "rl_stop_training",
        "Stop a run and all its processes.",
        tool_handlers.stop_training,
        _RUN_ID,
        ("run_id",),
    ),
    _tool(
        "rl_get_results",
        "Final metrics, their history, and the path of the trained weights.",
        tool_handlers.get_results,
        _RUN_ID,
        ("run_id",),
    ),
    _tool("rl_list_runs", "List all runs, newest first, with their status.", tool_handlers.list_runs),
    _tool(
        "rl_test_inference",
        "Try the selected environment with a few models before training: are its tasks solvable and scored?",
        tool_handlers.test_inference,
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
        consent=_selected_environment,
    ),
)


TOOLS = (*RL_TOOLS, *training_tools.TOOLS)
"""The tools that the plug-in entry offers, in two toolsets."""


def register_tools() -> None:
    """Registers the toolset in this process, unless a plug-in entry already has."""
    from hermes.tools import registry

    if TOOLSET not in registry.toolset_names():
        for tool in TOOLS:
            registry.register(tool)


class UnusableEnvironmentError(UsageError):
    """There is no such environment, or its file cannot be shown to a person."""

    def __init__(self, message: str, available: Sequence[str]) -> None:
        super().__init__(message, "choose one of those that are available, or write a Python file in UTF-8")
        self.available = available


async def consented_environment(bench: Workbench, config: Config, reference: str) -> Path:
    """The file to load for a name or path. ToolError if the person refuses, UnusableEnvironmentError if
    there is none."""
    from hermes.rl.config.resolve import list_environments, listed_environment

    path = await asyncio.to_thread(listed_environment, config, reference)
    if path is not None and not _is_writable(path, bench, config):
        return path
    try:
        return await _approved_copy(path or _existing_file(reference), bench, config)
    except UsageError as error:
        environments = (await asyncio.to_thread(list_environments, config)).environments
        raise UnusableEnvironmentError(error.message, [env.name for env in environments]) from error


async def consent_to_selection(bench: Workbench, config: Config) -> None:
    """Asks about the selected environment if the agent can write its file; every tool that loads it is
    preceded by this. Replaces the file of the selection by the approved copy."""
    from hermes.rl.config.resolve import current_selection, save

    selection = current_selection(config.home)
    path = Path(selection.file_path)
    if path.is_file() and _is_writable(path, bench, config):
        copy = await _approved_copy(path, bench, config)
        save(config.home, replace(selection, file_path=str(copy)))


def _is_writable(path: Path, bench: Workbench, config: Config) -> bool:
    """Whether the agent can write the file without a person's approval."""
    real = path.resolve()
    if not bench.sandbox.isolated and real.is_relative_to(config.home.resolve()):
        return False  # file tools and commands ask before they touch our home
    workspace = cast("Path | None", bench.resources.get("workspace"))
    folders = [workspace] if workspace is not None else []
    if not bench.sandbox.isolated:
        folders.append(Path(bench.sandbox.workspace))
    return any(real.is_relative_to(folder.resolve()) for folder in folders)


def _existing_file(reference: str) -> Path:
    path = Path(reference).expanduser()
    if not path.is_file():
        raise UsageError(f"there is no environment '{reference}'.")
    return path.resolve()


async def _approved_copy(path: Path, bench: Workbench, config: Config) -> Path:
    source = await asyncio.to_thread(read_source, path)
    await bench.approver.approve("rl_environment", f"{path}\n{source}")
    copy = config.home / "rl" / APPROVED / content_hash(source)[:16] / f"{path.stem}.py"
    await asyncio.to_thread(atomic_write, copy, source)
    return copy


def read_source(path: Path) -> str:
    """The text of a Python file; UsageError if Python would read other text than a person is shown."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    problem = None
    if len(data) > MAX_BYTES:
        problem = f"is larger than {MAX_BYTES} bytes"
    else:
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            if encoding != "utf-8":
                problem = f"declares the encoding {encoding}"
            source = data.decode("utf-8")
        except (SyntaxError, UnicodeDecodeError):
            problem = "is not UTF-8 text"
    if problem is not None:
        raise UsageError(f"{path} {problem}.", "an environment is a Python file in UTF-8")
    return source
