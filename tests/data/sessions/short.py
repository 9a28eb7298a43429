"""Sessions of one question and one answer, as each client writes them."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from tests.data.sessions.clients import add_rows, copy_of, write_lines

QUESTION = "Which file holds the settings of this project?"
AT = "2026-11-19T09:00:00.000Z"
AT_MS = 1_795_078_800_000


def short_session(client: str, folder: Path, name: str, answer: str, question: str = QUESTION) -> Path:
    """A session of one question and one answer, as the client writes it; a database gets one more session."""
    if client in ("opencode", "hermes-agent"):
        return _in_database(client, folder, name, answer, question)
    path = folder / f"{name}.jsonl"
    if client == "claude-code":
        common = {"sessionId": name, "timestamp": AT, "version": "2.1.197", "isSidechain": False}
        content = [{"type": "text", "text": answer}]
        said = {
            "id": f"m-{name}",
            "role": "assistant",
            "model": "x",
            "content": content,
            "stop_reason": "end_turn",
        }
        asked = {"role": "user", "content": question}
        return write_lines(
            path,
            [
                {"type": "user", "uuid": f"q-{name}", "parentUuid": None, "message": asked, **common},
                {
                    "type": "assistant",
                    "uuid": f"a-{name}",
                    "parentUuid": f"q-{name}",
                    "message": said,
                    **common,
                },
            ],
        )
    if client == "codex":
        items = [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": question}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]},
        ]
        meta = {
            "id": name,
            "cli_version": "0.169.0",
            "model_provider": "p",
            "base_instructions": {"text": "Help."},
        }
        rows: list[dict[str, Any]] = [{"timestamp": AT, "type": "session_meta", "payload": meta}]
        rows += [{"timestamp": AT, "type": "response_item", "payload": item} for item in items]
        return write_lines(path, rows)
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": question},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": answer}],
            "model": "x",
            "stopReason": "stop",
        },
    ]
    head = {"type": "session", "version": 3, "id": name, "timestamp": AT, "cwd": "/home/ada"}
    entries = [
        {"type": "message", "id": f"{name}{index}", "parentId": parent, "timestamp": AT, "message": message}
        for index, (parent, message) in enumerate(zip((None, f"{name}0"), messages, strict=True))
    ]
    return write_lines(path, [head, *entries])


def _in_database(client: str, folder: Path, name: str, answer: str, question: str) -> Path:
    path = folder / ("opencode.db" if client == "opencode" else "state.db")
    if not path.exists():
        copy_of(client, folder)
    if client == "hermes-agent":
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        session = {"id": name, "source": "cli", "model": "m1", "started_at": AT_MS / 1000}
        rows = [{"session_id": name, "timestamp": AT_MS / 1000 + at, **turn} for at, turn in enumerate(turns)]
        tables: dict[str, list[dict[str, Any]]] = {"sessions": [session], "messages": rows}
    else:
        times = {"time_created": AT_MS, "time_updated": AT_MS}
        parts = [[{"type": "text", "text": question}], [{"type": "text", "text": answer}]]
        facts = [{"role": "user"}, {"role": "assistant", "finish": "stop", "modelID": "x", "providerID": "p"}]
        names = [f"msg_{name}_{index}" for index in range(2)]
        tables = {
            "session": [{"id": name, "directory": "/home/ada", "version": "1.18.33", "title": "t", **times}],
            "message": [
                {"id": at, "session_id": name, "data": json.dumps(fact), **times}
                for at, fact in zip(names, facts, strict=True)
            ],
            "part": [
                {"id": f"p{at}", "message_id": at, "session_id": name, "data": json.dumps(part), **times}
                for at, members in zip(names, parts, strict=True)
                for part in members
            ],
        }
    with sqlite3.connect(path) as connection:
        add_rows(connection, tables)
    connection.close()
    return path
