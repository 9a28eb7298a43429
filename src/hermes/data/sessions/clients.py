"""The clients whose sessions are read: where they leave them, how a file is recognised, who reads it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from hermes.data.sessions import claude_code, codex, hermes_agent, opencode, pi
from hermes.data.sessions.base import Notes, Read, session_client
from hermes.data.sessions.database import opened
from hermes.data.sessions.lines import SessionFile
from hermes.disk import trees
from hermes.errors import UsageError

AUTO = "auto"
_DATABASES = (".db", ".sqlite")
_LINES = (".jsonl", ".jsonl.zst")
_MAX_DEPTH = 12
_MAX_FILES = 200_000
_FIRST_LINES = 20


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    read: Read
    places: Callable[[Mapping[str, str], Path], tuple[Path, ...]]
    """Where its sessions are, by the environment and the user's home."""
    tables: frozenset[str] = frozenset()
    """Those of its database; empty: it writes lines."""


def _folder(
    variable: str, default: str, *names: str
) -> Callable[[Mapping[str, str], Path], tuple[Path, ...]]:
    def places(environment: Mapping[str, str], home: Path) -> tuple[Path, ...]:
        value = environment.get(variable)
        folder = Path(value) if value else home / default
        return tuple(folder / name for name in names)

    return places


CLIENTS: Mapping[str, Client] = MappingProxyType(
    {
        client.name: client
        for client in (
            Client(claude_code.AGENT, claude_code.read, _folder("CLAUDE_CONFIG_DIR", ".claude", "projects")),
            Client(codex.AGENT, codex.read, _folder("CODEX_HOME", ".codex", "sessions", "archived_sessions")),
            Client(
                opencode.AGENT,
                opencode.read,
                _folder("XDG_DATA_HOME", ".local/share", "opencode/opencode.db"),
                tables=opencode.TABLES,
            ),
            Client(pi.AGENT, pi.read, _folder("PI_CODING_AGENT_DIR", ".pi/agent", "sessions")),
            Client(
                hermes_agent.AGENT,
                hermes_agent.read,
                _folder("HERMES_HOME", ".hermes", "state.db"),
                tables=hermes_agent.TABLES,
            ),
        )
    }
)


class SessionSource(NamedTuple):
    """A file of sessions, and the folder out of which no link leads."""

    client: Client
    root: Path
    path: Path


def default_places(name: str, environment: Mapping[str, str] | None = None) -> list[Path]:
    """The places of a client, or with `auto` of all, that exist."""
    clients = CLIENTS.values() if name == AUTO else (CLIENTS[name],)
    values = os.environ if environment is None else environment
    places = (path for client in clients for path in client.places(values, Path.home()))
    return [path for path in places if path.exists()]


def sources(name: str, paths: list[Path], notes: dict[Path, Notes]) -> Iterator[SessionSource]:
    """The session files of the paths, parents before the sub-agents that they started.

    Of `auto` the client of each file is recognised; files of none are left out. A path that was named itself
    is of the client that was named, whatever it looks like.
    """
    for path in paths:
        if not path.exists():
            raise UsageError(f"no such file: {path}", "name a session file, a database, or a folder of them")
        named = path.resolve()  # a link that is named itself leads where it leads
        root = named if named.is_dir() else named.parent
        for file in _files(named):
            chosen = CLIENTS.get(name)
            if chosen is not None and (file == named or _may_be(chosen, file)):
                yield SessionSource(chosen, root, file)
            elif chosen is None:
                try:
                    client = recognise(root, file)
                except UsageError as error:
                    notes.setdefault(file, Notes()).problem(0, error.message)
                    continue
                if client is not None:
                    yield SessionSource(client, root, file)


def recognise(root: Path, path: Path) -> Client | None:
    """The client of a file, by its tables or its first lines."""
    if path.name.endswith(_DATABASES):
        tables: frozenset[str] = frozenset()
        notes = Notes()
        with opened(root, path, notes) as database:
            tables = database.tables()
        if notes.problems:
            raise UsageError(notes.problems[0].why)
        return next((it for it in CLIENTS.values() if it.tables and it.tables <= tables), None)
    file = SessionFile(root, path)
    try:
        for line in file.rows(Notes(), _FIRST_LINES):
            if (name := session_client(line.row)) is not None:
                return CLIENTS[name]
    finally:
        file.close()
    return None


def _may_be(client: Client, file: Path) -> bool:
    return file.name.endswith(_DATABASES if client.tables else _LINES)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files: list[Path] = []
    for folder, names, members in trees.walk(path):
        if len(folder.parts) - len(path.parts) >= _MAX_DEPTH:
            names.clear()
        files += [folder / name for name in members if name.endswith((*_LINES, *_DATABASES))]
        if len(files) > _MAX_FILES:
            raise UsageError(f"{path} holds more than {_MAX_FILES:,} session files", "name a smaller folder")
    return sorted(files, key=lambda file: ("subagents" in file.parts, file.name, file))
