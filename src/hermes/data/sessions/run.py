"""Importing the session files of clients: what there is, all of it once, or whatever comes to rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hermes.core import clock
from hermes.data.importing import Imported, Storing
from hermes.data.sessions.base import Notes
from hermes.data.sessions.clients import SessionSource, sources
from hermes.data.sessions.storing import SessionImport
from hermes.errors import UsageError
from hermes.store import Reader, Writer

_LOOKS_EVERY_S = 2.0


class Survey(NamedTuple):
    """The session files of one client on this machine."""

    agent: str
    files: int
    size_bytes: int
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SessionRequest:
    client: str
    """A name of `CLIENTS`, or `auto`."""
    paths: list[Path]
    run_id: str | None = None


def survey(request: SessionRequest) -> list[Survey]:
    """The files of each client, which nothing is read of but what recognising them takes."""
    by_agent: dict[str, list[SessionSource]] = {}
    for source in sources(request.client, request.paths, {}):
        by_agent.setdefault(source.client.name, []).append(source)
    return [
        Survey(
            agent,
            len(members),
            sum(source.path.stat().st_size for source in members if source.path.is_file()),
            tuple(dict.fromkeys(str(source.root) for source in members)),
        )
        for agent, members in by_agent.items()
    ]


def import_sessions(request: SessionRequest, reader: Reader, writer: Writer) -> Imported:
    """Every session; what is in the store already is not stored again."""
    notes: dict[Path, Notes] = {}
    return _import(sources(request.client, request.paths, notes), request, reader, writer, notes)


def watch_sessions(
    request: SessionRequest,
    reader: Reader,
    writer: Writer,
    *,
    settle_s: float,
    report: Callable[[Imported], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Imports each session when it has not changed for `settle_s`, until the process is interrupted.

    What one look stored, or could not read, is reported once; a file is read again only after it changed.
    """
    read_at: dict[Path, tuple[int, int]] = {}
    while True:
        settled_ms = clock.now_ms() - int(settle_s * 1000)
        notes: dict[Path, Notes] = {}
        due = list(_changed(sources(request.client, request.paths, notes), read_at, settled_ms))
        done = _import(due, request, reader, writer, {}, settled_ms)
        if done.rows or done.problems:
            report(done)
        sleep(_LOOKS_EVERY_S)


def _changed(
    candidates: Iterable[SessionSource], read_at: dict[Path, tuple[int, int]], settled_ms: int
) -> Iterator[SessionSource]:
    """The files that have something new and are at rest; a database is looked at whenever it has changed."""
    for source in candidates:
        beside = source.path.with_name(f"{source.path.name}-wal")
        files = [path.stat() for path in (source.path, beside) if path.is_file()]
        state = (max((file.st_mtime_ns for file in files), default=0), sum(file.st_size for file in files))
        at_rest = state[0] <= settled_ms * 1_000_000
        if read_at.get(source.path) != state and (at_rest or source.client.tables):
            if at_rest:
                read_at[source.path] = state
            yield source


def _import(
    files: Iterable[SessionSource],
    request: SessionRequest,
    reader: Reader,
    writer: Writer,
    notes: dict[Path, Notes],
    settled_ms: int | None = None,
) -> Imported:
    done = Imported()
    with Storing(writer, done) as storing:
        session_import = SessionImport(reader, storing, done, request.run_id)
        for source in files:
            file_notes = Notes()
            try:
                for session in source.client.read(source.root, source.path, file_notes):
                    if settled_ms is None or session.updated_ms <= settled_ms:
                        session_import.add(session)
            except UsageError as error:
                file_notes.problem(0, error.message)
            session_import.report(str(source.path), file_notes)
        for path, file_notes in notes.items():
            session_import.report(str(path), file_notes)
    return done
