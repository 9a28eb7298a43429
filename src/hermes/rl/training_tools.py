"""Five more tools of an agent: export, compress, SFT, DPO and improve, as the commands of the same names.

A tool runs the command `hermes …` in the workspace and returns its JSON. A person is shown the exact command
and asked; where nobody can be asked it is refused. Files are those of the workspace. Steps and hours of
training come from the same budget as those of the ten `rl_*` tools (`rl.budget`), and only the models that a
person allows are trained.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hermes.config.environment import without_stored
from hermes.core import JSONObject, ToolErrorKind
from hermes.errors import HermesError, ToolError, UsageError
from hermes.rl.budget import charge_training, training_allowance
from hermes.rl.config.base_model import check_model
from hermes.rl.service import service_of
from hermes.safety.paths import resolve_inside
from hermes.tools.base import Tool, ToolOutput, Workbench, always_available, object_schema

if TYPE_CHECKING:
    from hermes.config.load import Config

TOOLSET = "training"
_TIMEOUT_S = 6 * 3600.0
_ERROR_CHARS = 2000
_PATHS = ("files", "source", "output")
_TEXT: JSONObject = {"type": "string", "minLength": 1}
_FILES: JSONObject = {
    "type": "array",
    "items": _TEXT,
    "description": "JSONL files; unset: the recorded runs.",
}
_OUTPUT: JSONObject = {**_TEXT, "description": "File to write in the workspace."}
_SELECTION: JSONObject = {
    "run": {**_TEXT, "description": "Only this batch or training run."},
    "min_rating": {"type": "number", "minimum": 1, "maximum": 5, "description": "Lowest rating."},
}
_STEPS: JSONObject = {
    "max_steps": {"type": "integer", "minimum": 1, "description": "Most training steps."},
    "base_model": {**_TEXT, "description": "The model to train; unset: the configured one."},
}


def _tool(
    name: str, command: tuple[str, ...], description: str, properties: JSONObject, required: tuple[str, ...]
) -> Tool:
    trains = "max_steps" in properties

    async def handler(arguments: JSONObject, bench: Workbench) -> ToolOutput:
        config, task = cast("Config", bench.resources["config"]), cast(str, bench.resources["task"])
        try:
            workspace = _workspace(bench)
            options, files = _words(_confined(arguments, workspace))
            hours = None
            if trains:
                base_model = check_model(
                    config.settings.rl, arguments.get("base_model") or config.settings.rl.model, unlock=False
                )
                options += ("--base-model", base_model)
                hours = training_allowance(config, task, arguments["max_steps"])
            await bench.approver.approve("training", shlex.join(("hermes", *command, *options, *files)))
            async with AsyncExitStack() as stack:
                if trains and command[0] == "train":
                    options += ("--service", await _service(config, base_model, stack))
                started_s = time.monotonic()
                try:
                    result = await _run(
                        (*command, *options, *files), workspace, config.home, hours and hours * 3600
                    )
                finally:
                    if trains:
                        spent_hours = (time.monotonic() - started_s) / 3600
                        charge_training(config, task, arguments["max_steps"], spent_hours)
        except ToolError:
            raise
        except HermesError as error:
            result = {"error": error.message, **({"fix": error.hint} if error.hint else {})}
        text = json.dumps(result, ensure_ascii=False)
        return ToolOutput(text, ok="error" not in result, kind=ToolErrorKind.FAILED)

    parameters = object_schema(*required, **properties)
    return Tool(name, TOOLSET, description, parameters, handler, always_available, timeout_s=_TIMEOUT_S)


def _workspace(bench: Workbench) -> Path:
    """The agent's folder on this machine."""
    folder = bench.resources.get("workspace")
    if isinstance(folder, Path):
        return folder
    if bench.sandbox.isolated:
        raise UsageError("the workspace is not a folder of this machine", "a person can run the command")
    return Path(bench.sandbox.workspace)


def _confined(arguments: JSONObject, workspace: Path) -> JSONObject:
    """With the absolute paths of files in the workspace. What is no file there stays: a run, a query."""

    def inside(path: str) -> str:
        try:
            return str(resolve_inside(workspace, path))
        except PermissionError as error:
            raise UsageError(f"{path} is not in the workspace", "copy the file there first") from error

    confined = dict(arguments)
    for name in (name for name in _PATHS if name in arguments):
        value = arguments[name]
        if isinstance(value, list):
            confined[name] = [inside(path) for path in value]
        elif name == "output" or "/" in value or (workspace / value).exists():
            confined[name] = inside(value)
    return confined


def _words(arguments: JSONObject) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """As on a command line: options, and behind them what has no flag."""
    options: tuple[str, ...] = ("--json",)
    for name, value in arguments.items():
        if name not in ("files", "source", "base_model"):
            options += (f"--{name.replace('_', '-')}", str(value))
    files = (*arguments.get("files", ()), *filter(None, [arguments.get("source")]))
    return options, ("--", *files) if files else ()


async def _service(config: Config, base_model: str, stack: AsyncExitStack) -> str:
    """The configured service, or an engine on this machine that ends with the command."""
    from hermes.engine.server.options import EngineServeOptions
    from hermes.rl.machine import missing_requirement
    from hermes.rl.supervise import ports
    from hermes.rl.supervise.engine_process import engine_process

    if (missing := missing_requirement(config, base_model)) is not None:
        raise UsageError(missing.problem, missing.fix)
    if (service := service_of(config.settings.rl, config.environ)) is not None:
        return service
    options = EngineServeOptions(
        model=base_model,
        device=config.settings.rl.device,
        port=ports.choose(0, reserved=(0,)),
        state_dir=config.home / "engine",
    )
    log = config.home / "logs" / "training_tools_engine.log"
    return await asyncio.to_thread(stack.enter_context, engine_process(options, log))


async def _run(words: Sequence[str], workspace: Path, home: Path, limit_s: float | None) -> JSONObject:
    """The JSON that the command prints; its message if it fails. It ends with this call."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "hermes", *words),
        cwd=workspace,
        env={**without_stored(os.environ), "HERMES_HOME": str(home)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(limit_s):
            output, errors = await process.communicate()
    except TimeoutError:
        return {"error": "the hours of the budget are used up; the command was ended"}
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        return {"error": errors.decode("utf-8", "replace").strip()[-_ERROR_CHARS:]}
    try:
        result: JSONObject = json.loads(output.decode("utf-8", "replace").strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {"output": output.decode("utf-8", "replace")[-_ERROR_CHARS:]}
    return result if isinstance(result, dict) else {"result": result}


TOOLS = (
    _tool(
        "export_dataset",
        ("export",),
        "Write recorded trajectories as a dataset: sharegpt, trl-preference, trl-unpaired and others.",
        {"format": _TEXT, "output": _OUTPUT, **_SELECTION},
        ("format", "output"),
    ),
    _tool(
        "compress_dataset",
        ("compress",),
        "Shorten trajectories to a token budget: of a run, of a query, or of a file in the workspace.",
        {
            "source": {**_TEXT, "description": "A run, a query such as 'rating>=4', or a JSONL file."},
            "output": _OUTPUT,
            "target_max_tokens": {"type": "integer", "minimum": 1, "description": "Tokens of a row; 8000."},
        },
        ("source", "output"),
    ),
    _tool(
        "train_sft",
        ("train", "sft"),
        "Train an adapter to imitate answers: of files, or of recorded runs, such as those rated 4 or 5.",
        {"files": _FILES, **_SELECTION, **_STEPS},
        ("max_steps",),
    ),
    _tool(
        "train_dpo",
        ("train", "dpo"),
        "Train an adapter on preferences: pairs of files, or from the ratings of recorded runs.",
        {"files": _FILES, **_SELECTION, **_STEPS},
        ("max_steps",),
    ),
    _tool(
        "improve_policy",
        ("improve",),
        "Learn from the ratings since the last time, test on held-out ratings, and promote only if better.",
        _STEPS,
        ("max_steps",),
    ),
)
