"""The system prompt: short, and limited to the tools and skills that the rollout has."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.tools.base import Tool

_IDENTITY = "You are Hermes, a careful assistant that gets things done with tools."

_HOW = (
    "Use a tool when it gives a better answer than memory; otherwise answer directly. "
    "Check results before you rely on them, and say plainly what you could not do. "
    "When the task is done, answer in a few sentences without calling another tool."
)


def system_prompt(
    tools: Sequence[Tool],
    workspace: str | None,
    skills: Sequence[tuple[str, str]] = (),
    instead: str | None = None,
) -> str:
    """The built-in prompt, or `instead`, which replaces all of it.

    `skills` are (name, one short line) pairs, listed when the model can open them.
    """
    if instead is not None:
        return instead
    parts = [_IDENTITY]
    if tools:
        parts.append(_HOW)
    if workspace is not None:
        parts.append(f"Your working directory is {workspace}; relative paths start there.")
    if skills:
        lines = [f"- {name}: {line}" for name, line in skills]
        parts.append("Skills you can open with skill_view before a task they fit:\n" + "\n".join(lines))
    return "\n\n".join(parts)
