"""The rows that a run has finished, in a folder beside its output: `<output>.work/`.

`rows.jsonl` gets one line for each row, in the input's order, so the finished rows are a prefix of the input
and a resumed run starts after it. `run.json` holds the run's settings; resuming with other settings is an
error that names them. One process at a time uses the folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from hermes.core import JSONObject, parse_object
from hermes.data.compress.run.job import CompressResult, InputKind
from hermes.disk.appendlog import AppendLog, read_lines, repair
from hermes.disk.filelock import FileLock
from hermes.disk.files import atomic_write, ensure_dir
from hermes.errors import ConfigError, HostError, UsageError

_ADDED_SETTINGS: JSONObject = {"strict_protect": False}
"""Settings that runs of earlier versions did not record, with the value that those versions used."""


class CompressEntry(NamedTuple):
    kind: InputKind
    line: str
    reason: str
    metrics: JSONObject


class CompressJournal:
    """Use as a context manager."""

    def __init__(self, output: Path, run: JSONObject, *, resume: bool) -> None:
        self._folder = output.with_name(f"{output.name}.work")
        self._path = self._folder / "rows.jsonl"
        self._lock = FileLock(self._folder / "lock")
        self._run = run
        self._resume = resume
        self.finished = 0
        """Rows of the input that are in the journal."""

    def __enter__(self) -> Self:
        try:
            ensure_dir(self._folder)
            if not self._lock.acquire(blocking=False):
                raise UsageError(
                    f"another process is writing in {self._folder}", "wait for it, or choose another --output"
                )
            if self._resume and self._path.exists():
                self._continue()
            else:
                self._path.unlink(missing_ok=True)
            atomic_write(self._folder / "run.json", json.dumps(self._run, indent=2) + "\n")
            self._log = AppendLog(self._path, fsync=False)
        except (OSError, ConfigError) as error:
            raise _unwritable(self._folder, error) from error
        return self

    def __exit__(self, *exception: object) -> None:
        self._log.close()
        self._lock.release()

    def append(self, done: CompressResult) -> None:
        """The row survives the death of this process once this returns."""
        entry = {"kind": done.kind, "line": done.line, "reason": done.reason, "metrics": done.metrics}
        try:
            self._log.append([json.dumps(entry)])
        except OSError as error:
            raise _unwritable(self._path, error) from error
        self.finished += 1

    def entries(self) -> Iterator[CompressEntry]:
        for line in read_lines(self._path):
            data = json.loads(line)
            yield CompressEntry(InputKind(data["kind"]), data["line"], data["reason"], data["metrics"])

    def remove(self) -> None:
        """Once the output is complete."""
        shutil.rmtree(self._folder)

    def _continue(self) -> None:
        try:
            interrupted = _ADDED_SETTINGS | parse_object((self._folder / "run.json").read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            interrupted = {}
        changed = [name for name in self._run if interrupted.get(name) != self._run[name]]
        if changed:
            raise UsageError(
                f"the interrupted run in {self._folder} had another {', '.join(changed)}",
                "repeat its flags, or leave out --resume to start anew",
            )
        repair(self._path)
        self.finished = sum(1 for _ in read_lines(self._path))


def _unwritable(path: Path, error: Exception) -> HostError:
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return HostError(
        f"cannot write {path}: {reason}",
        "free space on that disk, then run the same command again with --resume",
    )
