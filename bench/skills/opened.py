"""Does a model open the right skill? A reward for `hermes batch` over tasks.jsonl beside this file.

    hermes batch --dataset-file bench/skills/tasks.jsonl --reward bench/skills/opened.py:opened \
        --toolsets skills --max-turns 4 --run-name skills --model MODEL

1: the first skill that was opened is one of those that fit; or no skill fits, as in four tasks, and none was
opened. `hermes batch status skills` prints the share. With `skill_list: search` or `all` in the settings the
two kinds of prompt can be compared.
"""

from __future__ import annotations

import json
from typing import Any


def opened(ctx: Any) -> float:
    names = [
        _name(call.arguments)
        for message in ctx.trajectory.messages
        for call in message.tool_calls
        if call.name == "skill_view"
    ]
    return float(names[0] in ctx.expected if names else not ctx.expected)


def _name(arguments: str) -> str:
    """The skill that a call names; '' if its arguments are no JSON object."""
    try:
        return str(json.loads(arguments)["name"]).rpartition("/")[2]
    except (ValueError, KeyError, TypeError):
        return ""
