"""What a run has finished so far, beside its output: `<output>.work/`.

`rows.jsonl` gets one line for each row, in the input's order, so what is finished is a prefix of the input
and a resumed run begins behind it. A line that a killed process left half-written is cut. `run.json` says
what the run is; to resume another one there is an error that names what differs. One process at a time
holds the folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from hermes.core import JSONObject
from hermes.core.files import atomic_write, ensure_dir
from hermes.data.compress.run.job import CompressResult, InputKind
from hermes.errors import ConfigError, HostError, UsageError


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
        self._run = run
        self._resume = resume
        self.finished = 0
        """Rows of the input that need not be done again."""

    def __enter__(self) -> Self:
        try:
            ensure_dir(self._folder)
            self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._hold()
            if self._resume and self._path.exists():
                self._continue()
            else:
                self._path.unlink(missing_ok=True)
            atomic_write(self._folder / "run.json", json.dumps(self._run, indent=2) + "\n")
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except (OSError, ConfigError) as error:
            raise _unwritable(self._folder, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)
        os.close(self._lock)

    def append(self, done: CompressResult) -> None:
        """Survives the death of this process once it returns."""
        entry = {"kind": done.kind, "line": done.line, "reason": done.reason, "metrics": done.metrics}
        data = json.dumps(entry).encode() + b"\n"
        start = os.lseek(self._file, 0, os.SEEK_END)
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            os.ftruncate(self._file, start)
            raise _unwritable(self._path, error) from error
        self.finished += 1

    def entries(self) -> Iterator[CompressEntry]:
        with self._path.open("rb") as file:
            for line in file:
                data = json.loads(line)
                yield CompressEntry(InputKind(data["kind"]), data["line"], data["reason"], data["metrics"])

    def remove(self) -> None:
        """Once the output is complete."""
        shutil.rmtree(self._folder)

    def _hold(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another process is writing in {self._folder}", "wait for it, or choose another --output"
            ) from error

    def _continue(self) -> None:
        try:
            before = json.loads((self._folder / "run.json").read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            before = {}
        changed = [name for name in self._run if before.get(name) != self._run[name]]
        if changed:
            raise UsageError(
                f"the interrupted run in {self._folder} was another one: its {', '.join(changed)} differ",
                "repeat its flags, or leave out --resume to start anew",
            )
        whole = 0
        with self._path.open("rb+") as file:
            for line in file:
                if line.endswith(b"\n"):
                    whole += len(line)
                    self.finished += 1
            file.truncate(whole)


def _unwritable(path: Path, error: Exception) -> HostError:
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return HostError(
        f"cannot write {path}: {reason}",
        "free space on that disk, then run the same command again with --resume",
    )
