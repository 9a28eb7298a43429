"""delegate_task: a sub-agent with a fresh conversation, run by `Workbench.delegate`."""

from __future__ import annotations

from hermes.core import JSONObject, ToolErrorKind
from hermes.errors import ToolError, UsageError
from hermes.tools.base import Tool, ToolOutput, Workbench, object_schema

_TIMEOUT_S = 24 * 3600.0
"""A sub-agent has its own limits; this one applies if they all fail."""


async def _delegate_task(arguments: JSONObject, bench: Workbench) -> ToolOutput:
    from hermes.tools.registry import check_toolset

    if bench.delegate is None:
        raise ToolError("no sub-agent can be started from here; do the task yourself")
    try:
        toolsets = tuple(check_toolset(name) for name in arguments.get("toolsets", ()))
    except UsageError as error:
        raise ToolError(f"{error.message}; {error.hint}", kind=ToolErrorKind.BAD_ARGUMENTS) from None
    return await bench.delegate(arguments["task"], toolsets if "toolsets" in arguments else None)


TOOLS = (
    Tool(
        name="delegate_task",
        toolset="delegation",
        description=(
            "Give a self-contained task to a sub-agent, which works in the same workspace and returns its "
            "answer. It sees nothing of this conversation: say everything it needs. Several calls in one "
            "turn run at the same time."
        ),
        parameters=object_schema(
            "task",
            task={"type": "string", "minLength": 1, "description": "The task, with all it needs."},
            toolsets={
                "type": "array",
                "items": {"type": "string"},
                "description": "Toolsets it gets; unset: the same as yours.",
            },
        ),
        handler=_delegate_task,
        timeout_s=_TIMEOUT_S,
    ),
)
