"""What the real clients wrote in headless runs against a scripted server, without the vendors' prompts."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from hermes.data.importing import Imported
from hermes.data.sessions.run import SessionRequest, import_sessions
from hermes.store import Reader, Writer

FIXTURES = Path(__file__).parent / "fixtures"
CLIENTS = ("claude-code", "codex", "opencode", "pi", "hermes-agent")
_OPENCODE = """
CREATE TABLE session (id TEXT PRIMARY KEY, parent_id TEXT, directory TEXT, title TEXT, version TEXT,
    time_created INTEGER, time_updated INTEGER);
CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER,
    time_updated INTEGER, data TEXT);
CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, time_created INTEGER,
    time_updated INTEGER, data TEXT);
"""
_HERMES_AGENT = """
CREATE TABLE system_prompts (hash TEXT PRIMARY KEY, prompt TEXT NOT NULL);
CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, model TEXT, model_config TEXT,
    system_prompt TEXT, system_prompt_hash TEXT, parent_session_id TEXT, started_at REAL NOT NULL,
    ended_at REAL, end_reason TEXT, cwd TEXT, billing_provider TEXT, last_activity_at REAL);
CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, role TEXT NOT NULL,
    content TEXT, tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, timestamp REAL NOT NULL,
    finish_reason TEXT, reasoning TEXT, reasoning_content TEXT, active INTEGER NOT NULL DEFAULT 1,
    compacted INTEGER NOT NULL DEFAULT 0);
"""


def copy_of(client: str, folder: Path) -> Path:
    """The sessions of a client, as it leaves them; what the import is given."""
    if client == "opencode":
        return _database(
            folder / "opencode.db", _OPENCODE, json.loads((FIXTURES / "opencode/rows.json").read_text())
        )
    if client == "hermes-agent":
        return _database(folder / "state.db", _HERMES_AGENT, hermes_agent_rows())
    shutil.copytree(FIXTURES / client, folder / client)
    return folder / client


def imported(db: Path, client: str, *paths: Path) -> Imported:
    with Writer(db) as writer, Reader(db) as reader:
        return import_sessions(SessionRequest(client, list(paths)), reader, writer)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def _database(path: Path, schema: str, tables: dict[str, list[dict[str, Any]]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as connection:
        connection.executescript(schema)
        add_rows(connection, tables)
    connection.close()
    return path


def add_rows(connection: sqlite3.Connection, tables: dict[str, list[dict[str, Any]]]) -> None:
    for table, rows in tables.items():
        for row in rows:
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values()))


def hermes_agent_rows() -> dict[str, list[dict[str, Any]]]:
    call = [
        {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
    ]
    session = {"source": "cli", "model": "m1", "billing_provider": "openrouter", "system_prompt_hash": "h"}
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "list the files"},
        {"role": "assistant", "content": "", "tool_calls": json.dumps(call), "reasoning": "I look."},
        {
            "role": "tool",
            "content": '{"output": "hello.py", "exit_code": 0}',
            "tool_call_id": "c1",
            "tool_name": "terminal",
        },
        {"role": "assistant", "content": "One file.", "finish_reason": "stop"},
        {"role": "user", "content": "taken back", "active": 0},
    ]
    delegated: list[dict[str, Any]] = [
        {"role": "user", "content": "look closer"},
        {"role": "assistant", "content": "I did.", "finish_reason": "stop"},
    ]
    summary: list[dict[str, Any]] = [
        {"role": "user", "content": "(the summary of the work so far)"},
        {"role": "assistant", "content": "Going on.", "finish_reason": "stop"},
    ]
    rows = [("s1", turns), ("s2", delegated), ("s3", summary)]
    return {
        "system_prompts": [{"hash": "h", "prompt": "You are Hermes."}],
        "sessions": [
            {"id": "s1", "started_at": 1795049960.0, "end_reason": "compression", **session},
            {"id": "s2", "started_at": 1795049965.0, "parent_session_id": "s3", **session},
            {
                "id": "s3",
                "started_at": 1795049964.0,
                "parent_session_id": "s1",
                "cwd": "/home/ada",
                **session,
            },
        ],
        "messages": [
            {"session_id": name, "timestamp": 1795049960.0 + 10 * number + index, **turn}
            for number, (name, members) in enumerate(rows)
            for index, turn in enumerate(members)
        ],
    }
