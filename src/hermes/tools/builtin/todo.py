"""todo: the agent's task list, kept on the workbench for one rollout."""

from __future__ import annotations

import json
from collections import Counter

from hermes.core import JSONObject, ToolErrorKind
from hermes.errors import ToolError
from hermes.tools.base import Tool, Workbench, object_schema

STATUSES = ("pending", "in_progress", "completed", "cancelled")
_FIELDS = ("id", "content", "status")


async def _todo(arguments: JSONObject, bench: Workbench) -> str:
    if "todos" in arguments:
        bench.todos[:] = merge_todos(bench.todos if arguments.get("merge", False) else [], arguments["todos"])
    counts = Counter(item["status"] for item in bench.todos)
    return json.dumps({"todos": bench.todos, "counts": dict(counts)}, ensure_ascii=False)


def merge_todos(current: list[JSONObject], changes: list[JSONObject]) -> list[JSONObject]:
    """The list with the changes applied: an existing id is changed in place, a new one added."""
    ids = [change["id"] for change in changes]
    repeated = [name for name, count in Counter(ids).items() if count > 1]
    if repeated:
        raise ToolError(f"the id '{repeated[0]}' is given twice", kind=ToolErrorKind.BAD_ARGUMENTS)
    items = {item["id"]: item for item in current}
    for change in changes:
        item = {**items.get(change["id"], {}), **change}
        missing = [field for field in _FIELDS if field not in item]
        if missing:
            text = f"the new item '{change['id']}' lacks {' and '.join(missing)}"
            raise ToolError(text, kind=ToolErrorKind.BAD_ARGUMENTS)
        items[change["id"]] = {field: item[field] for field in _FIELDS}
    return list(items.values())


TOOLS = (
    Tool(
        name="todo",
        toolset="todo",
        description=(
            "Keep the list of steps of a larger task. With todos: replace the list, or with merge change "
            "the items whose id is known and add the others. Without: read it. Returns the whole list."
        ),
        parameters=object_schema(
            todos={
                "type": "array",
                "maxItems": 200,
                "items": object_schema(
                    "id",
                    id={"type": "string", "minLength": 1},
                    content={
                        "type": "string",
                        "minLength": 1,
                        "description": "What is to be done.",
                    },
                    status={"type": "string", "enum": list(STATUSES)},
                ),
            },
            merge={"type": "boolean", "description": "Change the list instead of replacing it."},
        ),
        handler=_todo,
    ),
)
