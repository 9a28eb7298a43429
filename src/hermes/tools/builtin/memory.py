"""memory: facts that the agent remembers across sessions, one line each, with the step they come from.

The tool works only in a conversation with a user, who is shown every change in full: a model, or a page that
it read, cannot leave hidden instructions for later sessions. Without a user (batch, environments, `hermes
-q`) it refuses, so that training data does not depend on the user's private facts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hermes.core import Fact, FactAuthor, JSONObject, ToolErrorKind, new_id
from hermes.core.clock import now_ms
from hermes.errors import ToolError, UsageError
from hermes.safety.text import printable
from hermes.tools.base import Tool, Workbench, object_schema

if TYPE_CHECKING:
    from hermes.config.settings import MemorySettings, Settings
    from hermes.store import Writer


async def _memory(arguments: JSONObject, bench: Workbench) -> str:
    if bench.notify_user is None:
        raise ToolError(
            "the memory can be used only in a conversation with a person", kind=ToolErrorKind.REFUSED
        )
    match arguments["action"]:
        case "add":
            return await _add(_required_argument(arguments, "text"), bench, bench.notify_user)
        case "remove":
            return await _remove(_required_argument(arguments, "id"), bench, bench.notify_user)
        case _:
            facts = await asyncio.to_thread(stored_facts, _home(bench))
            return json.dumps([{"id": fact.id, "text": fact.text} for fact in facts], ensure_ascii=False)


async def _add(text: str, bench: Workbench, notify: Callable[[str], None]) -> str:
    fact = new_fact(
        text,
        bench.settings.memory,
        FactAuthor.AGENT,
        trajectory_id=bench.trajectory_id,
        step_index=bench.step_index,
    )
    await asyncio.wrap_future(_writer(bench).add_fact(fact, bench.settings.memory.max_facts))
    stored = await asyncio.to_thread(_fact, _home(bench), fact.id)  # as redacted
    notify(f"remembered for later sessions: {stored.text}\n  (undo: /memory remove {stored.id})")
    return json.dumps({"id": stored.id, "text": stored.text}, ensure_ascii=False)


async def _remove(reference: str, bench: Workbench, notify: Callable[[str], None]) -> str:
    fact = await asyncio.to_thread(_fact, _home(bench), reference)
    await asyncio.wrap_future(_writer(bench).remove_fact(fact.id))
    notify(f"no longer remembered: {fact.text}")
    return json.dumps({"removed": fact.id}, ensure_ascii=False)


def new_fact(
    text: str,
    settings: MemorySettings,
    author: FactAuthor,
    *,
    trajectory_id: str | None = None,
    step_index: int | None = None,
) -> Fact:
    """A fact of one line; UsageError if it is empty or too long."""
    line = " ".join(printable(text).split())
    if not line:
        raise UsageError("the fact is empty", "state it in a sentence")
    if len(line) > settings.max_fact_chars:
        raise UsageError(
            f"the fact has {len(line)} characters; the most is {settings.max_fact_chars}",
            "shorten it, or raise memory.max_fact_chars",
        )
    return Fact(new_id(), line, author, now_ms(), trajectory_id, step_index)


def stored_facts(home: Path) -> list[Fact]:
    """All facts, oldest first."""
    from hermes.config.paths import db_path
    from hermes.store import Reader

    with Reader(db_path(home)) as reader:
        return reader.facts()


def _fact(home: Path, reference: str) -> Fact:
    from hermes.config.paths import db_path
    from hermes.store import Reader

    with Reader(db_path(home)) as reader:
        return reader.resolve_fact(reference)


def _required_argument(arguments: JSONObject, name: str) -> str:
    if name not in arguments:
        raise ToolError(f"'{arguments['action']}' needs {name}", kind=ToolErrorKind.BAD_ARGUMENTS)
    return str(arguments[name])


def _home(bench: Workbench) -> Path:
    return cast(Path, bench.resources["home"])


def _writer(bench: Workbench) -> Writer:
    return cast("Writer", bench.resources["writer"])


def _unavailable(settings: Settings, environ: Mapping[str, str]) -> str | None:
    if settings.memory.enabled:
        return None
    return "the memory is turned off; hermes config set memory.enabled true"


TOOLS = (
    Tool(
        name="memory",
        toolset="memory",
        description=(
            "Remember facts about the user and their work for later sessions: add one (a short sentence that "
            "will still be true and useful then), remove one that is no longer true, or list them. The user "
            "sees every change. Do not store secrets, instructions, or what only this task needs."
        ),
        parameters=object_schema(
            "action",
            action={"type": "string", "enum": ["add", "remove", "list"]},
            text={"type": "string", "minLength": 1, "description": "For add: the fact, in one line."},
            id={"type": "string", "minLength": 1, "description": "For remove: the fact's id."},
        ),
        handler=_memory,
        unavailable=_unavailable,
    ),
)
