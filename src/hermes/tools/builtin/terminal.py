"""terminal and process: shell commands in the sandbox, in the foreground and in the background.

Every command needs approval first, and so does what is typed into one that runs. A command that exits
non-zero is a failed call whose complete output the model still receives; one that exceeds its time-out is
killed with everything it started.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from hermes.core import JSONObject, ToolErrorKind
from hermes.errors import ToolError
from hermes.tools.base import Tool, ToolOutput, Workbench, object_schema
from hermes.tools.workspace import os_errors, permit_path

if TYPE_CHECKING:
    from hermes.sandbox.base import BackgroundProcess, CommandResult

MAX_TIMEOUT_S = 600
HARD_STOP_S = MAX_TIMEOUT_S + 60.0
"""Above the longest time-out of a command, so that the sandbox, which can report output, stops it first."""


async def _terminal(arguments: JSONObject, bench: Workbench) -> ToolOutput:
    command = arguments["command"]
    if "\0" in command:
        raise ToolError("the command holds a NUL character", kind=ToolErrorKind.BAD_ARGUMENTS)
    cwd = await permit_path(bench, arguments["workdir"], "work in") if "workdir" in arguments else None
    action = command if cwd is None else f"cd {shlex.quote(cwd)} && {command}"
    await bench.approver.approve("command", action)
    with os_errors(arguments.get("workdir", "the command")):
        if arguments.get("background", False):
            process = await bench.sandbox.start(command, cwd=cwd)
            bench.processes[process.id] = process
            return ToolOutput(_json({"process_id": process.id, "status": "running"}))
        timeout_s = command_timeout_s(arguments, bench)
        return command_output(await bench.sandbox.run(command, timeout_s=timeout_s, cwd=cwd), timeout_s)


def command_timeout_s(arguments: JSONObject, bench: Workbench) -> float:
    """The time-out of the call, else of the settings."""
    return float(arguments.get("timeout", min(bench.settings.sandbox.command_timeout_s, MAX_TIMEOUT_S)))


def command_output(result: CommandResult, timeout_s: float) -> ToolOutput:
    """A command's result for the model: one JSON object."""
    report: JSONObject = {"exit_code": result.exit_code, "output": result.output}
    if result.timed_out:
        report["error"] = f"stopped after {timeout_s:g} s, with every process it had started"
    if result.truncated:
        report["truncated"] = True
    return ToolOutput(
        _json(report),
        ok=result.exit_code == 0 and not result.timed_out,
        exit_code=result.exit_code,
        kind=ToolErrorKind.TIMEOUT if result.timed_out else ToolErrorKind.FAILED,
        full=result.output,
    )


async def _process(arguments: JSONObject, bench: Workbench) -> ToolOutput:
    action = arguments["action"]
    if action == "list":
        return ToolOutput(_json([_describe(process) for process in bench.processes.values()]))
    process = _find(arguments, bench)
    if action == "write":
        return await _write(process, arguments, bench)
    if action == "kill":
        await process.kill()
        return ToolOutput(_json(_describe(process)))
    if action == "wait":
        await process.wait(float(arguments.get("timeout", 60)))
    output = process.output()
    return ToolOutput(
        _json({**_describe(process), "output": output}),
        ok=process.exit_code in (None, 0),
        exit_code=process.exit_code,
        full=output,
    )


def _find(arguments: JSONObject, bench: Workbench) -> BackgroundProcess:
    name = arguments.get("process_id")
    if name is None:
        raise ToolError(f"{arguments['action']} needs a process_id", kind=ToolErrorKind.BAD_ARGUMENTS)
    if name not in bench.processes:
        ids = ", ".join(bench.processes) or "none"
        raise ToolError(f"no process '{name}'; known: {ids}", kind=ToolErrorKind.BAD_ARGUMENTS)
    return bench.processes[name]


async def _write(process: BackgroundProcess, arguments: JSONObject, bench: Workbench) -> ToolOutput:
    if "text" not in arguments:
        raise ToolError("write needs a text", kind=ToolErrorKind.BAD_ARGUMENTS)
    if process.exit_code is not None:
        raise ToolError(f"process {process.id} has exited with code {process.exit_code}")
    # To a shell or an interpreter, input is commands: the approval of its start does not cover them.
    to = f"to process {process.id}, started as {_json(process.command)}:"
    await bench.approver.approve("process_input", f"{to}\n{arguments['text']}")
    try:
        await process.write(arguments["text"])
    except OSError:
        raise ToolError(f"process {process.id} no longer reads its input") from None
    return ToolOutput(_json(_describe(process)))


def _describe(process: BackgroundProcess) -> JSONObject:
    description: JSONObject = {"process_id": process.id, "command": process.command, "status": "running"}
    if process.exit_code is not None:
        description |= {"status": "exited", "exit_code": process.exit_code}
    return description


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


TOOLS = (
    Tool(
        name="terminal",
        toolset="terminal",
        description=(
            "Run a shell command in the workspace. Returns JSON with exit_code and output (stdout and "
            "stderr together). Each call is a new shell: directory and variables do not carry over, files "
            "do. For a server or anything that keeps running set background and use the process tool. "
            "Commands cannot ask for input."
        ),
        parameters=object_schema(
            "command",
            command={"type": "string", "minLength": 1, "description": "The command line."},
            timeout={
                "type": "number",
                "minimum": 1,
                "maximum": MAX_TIMEOUT_S,
                "description": "Seconds after which it is killed; unset: the configured limit.",
            },
            workdir={"type": "string", "description": "Directory to run in; unset: the workspace."},
            background={
                "type": "boolean",
                "description": "Start it and return a process_id at once.",
            },
        ),
        handler=_terminal,
        timeout_s=HARD_STOP_S,
    ),
    Tool(
        name="process",
        toolset="terminal",
        description=(
            "Look after background commands: list them; poll one for its output so far; wait until it "
            "exits; write text to its standard input (add the newline yourself); kill it."
        ),
        parameters=object_schema(
            "action",
            action={"type": "string", "enum": ["list", "poll", "wait", "write", "kill"]},
            process_id={"type": "string", "description": "For every action but list."},
            text={"type": "string", "description": "For write."},
            timeout={
                "type": "number",
                "minimum": 0,
                "maximum": MAX_TIMEOUT_S,
                "description": "For wait: longest time to wait, in seconds; 60 if unset.",
            },
        ),
        handler=_process,
        timeout_s=HARD_STOP_S,
    ),
)
