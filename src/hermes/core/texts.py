"""The texts of a policy: what stands around a model, and can be improved without its weights.

    system_prompt   who the agent is and how it works; replaces that part of the built-in prompt
    examples        worked examples; they follow the system prompt
    tool:NAME       the description of a tool
    skill:NAME      the body of a skill; an empty one hides it
    file:PATH       a file of the workspace, such as AGENTS.md

Pure. Not promised: that a tool or a skill of this name exists; who applies the texts checks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from hermes.core.hashing import content_hash
from hermes.core.names import did_you_mean, nearest
from hermes.errors import UsageError

SYSTEM_PROMPT, EXAMPLES = "system_prompt", "examples"
TOOL, SKILL, FILE = "tool:", "skill:", "file:"
_MOST_CHARS = {SYSTEM_PROMPT: 8_000, EXAMPLES: 8_000, TOOL: 2_000, SKILL: 20_000, FILE: 20_000}
_FORMS = "system_prompt, examples, tool:NAME, skill:NAME or file:PATH"

Texts = Mapping[str, str]
"""Name → text."""
NO_TEXTS: Texts = {}


def parse_names(names: str) -> tuple[str, ...]:
    """The names of a comma-separated list; UsageError if one is no text's name."""
    parsed = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not parsed:
        raise UsageError("no text is named", f"name {_FORMS}")
    for name in parsed:
        if name in (SYSTEM_PROMPT, EXAMPLES):
            continue
        kind = _kind(name)
        if kind is None or name == kind:
            hint = did_you_mean(nearest(name, (SYSTEM_PROMPT, EXAMPLES)), f"name {_FORMS}")
            raise UsageError(f"a policy has no text '{name}'", hint)
        if kind == FILE and not _stays_inside(name.removeprefix(FILE)):
            raise UsageError(f"{name} is not a path inside the workspace", "write file:AGENTS.md, say")
    return parsed


def most_chars(name: str) -> int:
    """How long the text of this name may be."""
    return _MOST_CHARS[_kind(name) or name]


def hashes(texts: Texts) -> dict[str, str]:
    """Name → hash of the text: what a trajectory records of the texts that it ran with."""
    return {name: content_hash(text) for name, text in sorted(texts.items())}


def named(texts: Texts, kind: str) -> dict[str, str]:
    """The texts of one kind by what they name: `tool:terminal` as `terminal`."""
    return {name.removeprefix(kind): text for name, text in texts.items() if name.startswith(kind)}


def prompt_with(texts: Texts, prompt: str) -> str:
    """The system prompt of an environment under the texts."""
    parts: Sequence[str] = (texts.get(SYSTEM_PROMPT, prompt), texts.get(EXAMPLES, ""))
    return "\n\n".join(part for part in parts if part)


def _kind(name: str) -> str | None:
    return next((kind for kind in (TOOL, SKILL, FILE) if name.startswith(kind)), None)


def _stays_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts
