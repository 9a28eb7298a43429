"""Whose session a line of JSON is of."""

from __future__ import annotations

from hermes.core import JSONObject


def session_client(row: JSONObject) -> str | None:
    """The client that writes such a line among its first ones; None: none that is known here."""
    kind = row.get("type")
    if kind == "session_meta" or ("instructions" in row and "timestamp" in row and "id" in row):
        return "codex"
    if kind == "session":  # a session trace has a harness, and as a row of a table its messages
        return "pi" if "cwd" in row and "harness" not in row and "messages" not in row else None
    return "claude-code" if isinstance(row.get("sessionId"), str) and isinstance(kind, str) else None
