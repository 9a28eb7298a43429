"""Reads how clients name themselves: which agent, which session, which agent within it.

Headers are hints: without them only histories connect calls (`tree.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hermes.core import JSONObject
from hermes.models.fields import as_object, as_text

_AGENTS = (
    ("claude-cli", "claude-code"),
    ("codex", "codex"),
    ("opencode", "opencode"),
    ("pi/", "pi"),
    ("pi-coding-agent", "pi"),
    ("aider", "aider"),
    ("mini-swe-agent", "mini-swe-agent"),
    ("litellm", "litellm"),
    ("hermes", "hermes"),
    ("geminicli", "gemini"),
    ("anthropic/", "anthropic-sdk"),
    ("asyncanthropic/", "anthropic-sdk"),
    ("openai/", "openai-sdk"),
    ("asyncopenai/", "openai-sdk"),
)
"""How a user agent begins, or a word in it, and the name that the record has for it."""
_VERSION = re.compile(r"/v?(\d[\w.+-]*)")
SESSION_HEADERS = (
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-session-id",
    "x-session-affinity",
)
RECORDED_HEADERS = frozenset(
    (
        *SESSION_HEADERS,
        "x-claude-code-agent-id",
        "thread-id",
        "x-parent-session-id",
        "x-codex-window-id",
        "user-agent",
        "x-app",
        "originator",
        "anthropic-beta",
        "anthropic-version",
        "openai-beta",
        "x-stainless-retry-count",
        "content-type",
    )
)
"""The only headers that are stored: none of them ever holds a key."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who made a call."""

    session: str | None = None
    thread: str = ""
    parent_thread: str | None = None


@dataclass(frozen=True, slots=True)
class Agent:
    name: str
    version: str | None = None


def identify(headers: Mapping[str, str], body: JSONObject) -> Identity:
    session = next((headers[name] for name in SESSION_HEADERS if headers.get(name)), None)
    session = session or _claude_session(body) or as_text(body.get("prompt_cache_key")) or None
    if agent := headers.get("x-claude-code-agent-id"):
        return Identity(session, agent, session or "")
    if thread := headers.get("thread-id"):
        main = as_text(body.get("prompt_cache_key")) or session or thread
        return Identity(session, thread, main if main != thread else None)
    return Identity(session, session or "", headers.get("x-parent-session-id"))


def root_session(headers: Mapping[str, str]) -> str | None:
    """The session that a call belongs to, by its headers alone; of a sub-agent its parent's."""
    parent = headers.get("x-parent-session-id")
    return parent or next((headers[name] for name in SESSION_HEADERS if headers.get(name)), None)


def _claude_session(body: JSONObject) -> str | None:
    """Claude Code's session in `metadata.user_id`, which is JSON or ends in `_session_ID`."""
    text = as_text(as_object(body.get("metadata")).get("user_id"))
    try:
        return as_text(as_object(json.loads(text)).get("session_id")) or None
    except ValueError:
        return text.partition("_session_")[2] or None


def agent_of(headers: Mapping[str, str]) -> Agent | None:
    """The agent by its user agent; None: it says nothing that is recognised."""
    text = headers.get("user-agent", "").lower()
    for word, name in _AGENTS:
        position = text.find(word)
        if position >= 0:
            version = _VERSION.search(text, position)
            return Agent(name, version[1] if version else None)
    return None
