"""execute_code: Python in the sandbox.

The code is passed as a file, not through a shell's quoting. The approver is shown the command `python3 -c
<code>`, which does the same.
"""

from __future__ import annotations

import shlex

from hermes.core import JSONObject, new_id
from hermes.tools.base import Tool, ToolOutput, Workbench, object_schema
from hermes.tools.builtin.terminal import HARD_STOP_S, MAX_TIMEOUT_S, command_output, command_timeout_s
from hermes.tools.scratch import write_scratch
from hermes.tools.workspace import os_errors


async def _execute_code(arguments: JSONObject, bench: Workbench) -> ToolOutput:
    code = arguments["code"]
    await bench.approver.approve("command", f"python3 -c {shlex.quote(code)}")
    with os_errors("the script"):
        script = await write_scratch(bench, f"code/{new_id()}.py", code.encode("utf-8"))
    timeout_s = command_timeout_s(arguments, bench)
    result = await bench.sandbox.run(
        f"python3 {script}; status=$?; rm -f {script}; exit $status",
        timeout_s=timeout_s,
        # The script is in another directory, and must still import modules of the workspace.
        env={"PYTHONPATH": bench.sandbox.workspace, "PYTHONUNBUFFERED": "1"},
    )
    return command_output(result, timeout_s)


TOOLS = (
    Tool(
        name="execute_code",
        toolset="code_execution",
        description=(
            "Run a Python 3 script in the workspace and return JSON with exit_code and output (stdout and "
            "stderr together). Print what you want to see. Each call is a new interpreter; files stay."
        ),
        parameters=object_schema(
            "code",
            code={"type": "string", "minLength": 1, "description": "The whole script."},
            timeout={
                "type": "number",
                "minimum": 1,
                "maximum": MAX_TIMEOUT_S,
                "description": "Seconds after which it is killed; unset: the configured limit.",
            },
        ),
        handler=_execute_code,
        timeout_s=HARD_STOP_S,
    ),
)
