"""clarify: a question to the user, if one is present."""

from __future__ import annotations

from hermes.core import JSONObject
from hermes.errors import ToolError
from hermes.tools.base import Tool, Workbench, object_schema


async def _clarify(arguments: JSONObject, bench: Workbench) -> str:
    if bench.ask_user is None:
        raise ToolError("nobody is there to answer; decide yourself and say what you assumed")
    return await bench.ask_user(arguments["question"], tuple(arguments.get("choices", ())))


TOOLS = (
    Tool(
        name="clarify",
        toolset="clarify",
        description=(
            "Ask the user one question and wait for the answer. Only when the task cannot be done well "
            "without it; offer choices where the possible answers are few."
        ),
        parameters=object_schema(
            "question",
            question={"type": "string", "minLength": 1},
            choices={"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 8},
        ),
        handler=_clarify,
    ),
)
