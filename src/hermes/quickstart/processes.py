"""The quickstart's other processes: started by readiness, watched while one waits, ended in reverse order.

Every process writes to a log of its own. A failure says which process it was, what it said last, and what to
do. Nothing is restarted: `hermes rl start` is for runs that have to survive.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from hermes.core import JSONObject
from hermes.core.files import ensure_dir
from hermes.errors import HermesError
from hermes.rl.supervise.part import HERMES, Part, launch
from hermes.rl.supervise.processes import ProcessId, signal_group
from hermes.safety.text import printable

_POLL_S = 0.1
_SHOWN_LINES = 12
_TAIL_BYTES = 16_384
_POLITE_S = 8.0
"""Between the signal that asks a process to end and the one that ends it."""
_START_PATIENCE_S = 600.0


class ProcessFailedError(HermesError):
    """A process of the quickstart ended, or did not get ready."""

    def __init__(self, name: str, what: str, log: Path) -> None:
        lines = last_lines(log, _SHOWN_LINES)
        said = "\n".join(f"    {line}" for line in lines) or "    (nothing)"
        super().__init__(f"{name} {what}. Its last lines:\n{said}", f"see {log}, then: hermes doctor")


class ProcessGroup:
    """Processes that live and end together. Use as a context manager."""

    def __init__(self, logs: Path, cwd: Path, environ: Mapping[str, str]) -> None:
        self._logs, self._cwd, self._environ = ensure_dir(logs), cwd, dict(environ)
        self._running: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}

    def serve(self, name: str, arguments: tuple[str, ...], ready: Callable[[], bool]) -> None:
        """Starts `hermes ARGUMENTS` and waits until it is ready; it then runs until the end."""
        self.start(name, arguments)
        self.until_ready(name, ready)

    def start(self, name: str, arguments: tuple[str, ...]) -> None:
        """Starts `hermes ARGUMENTS`, and waits for nothing."""
        log = self._logs / f"{name}.log"
        part = Part(name, (*HERMES, *arguments), log, lambda: True, environ=self._environ)
        try:
            self._running[name] = (launch(part, self._cwd), log)
        except OSError as error:
            raise HermesError(f"{name} cannot be started: {error}", "see 'hermes doctor'") from error

    def until_ready(self, name: str, ready: Callable[[], bool]) -> None:
        """Of one that was started; ProcessFailedError if it, or another, ends meanwhile."""
        deadline_s = time.monotonic() + _START_PATIENCE_S
        while not ready():
            self.check()
            if time.monotonic() > deadline_s:
                raise self.failure(name, f"was not ready after {_START_PATIENCE_S:g} s")
            time.sleep(_POLL_S)

    def run(
        self, name: str, arguments: tuple[str, ...], meanwhile: Callable[[], None] = lambda: None
    ) -> JSONObject:
        """Starts `hermes ARGUMENTS`, waits for a good end, and reads the JSON object it printed last."""
        self.start(name, arguments)
        return self.finish(name, meanwhile)

    def finish(self, name: str, meanwhile: Callable[[], None] = lambda: None) -> JSONObject:
        """The same for a process that was started before."""
        child, log = self._running[name]
        while child.poll() is None:
            self.check()
            meanwhile()
            time.sleep(_POLL_S)
        del self._running[name]
        if child.returncode != 0:
            raise ProcessFailedError(name, how_it_ended(child.returncode), log)
        meanwhile()
        return _last_object(name, log)

    def check(self) -> None:
        """ProcessFailedError if one that should run has ended."""
        for name, (child, log) in self._running.items():
            if child.poll() not in (None, 0):
                raise ProcessFailedError(name, how_it_ended(child.returncode), log)

    def has_ended(self, name: str) -> bool:
        """Whether a process that was started has ended, with whatever exit code."""
        return self._running[name][0].poll() is not None

    def failure(self, name: str, what: str) -> ProcessFailedError:
        """The error that names this process, with the end of its log."""
        return ProcessFailedError(name, what, self._running[name][1])

    def ask_to_end(self, name: str) -> None:
        """Asks it to finish what it is at and to end; one that has ended is no error."""
        child, _ = self._running.get(name, (None, None))
        if child is not None and child.poll() is None:
            child.terminate()

    def stop(self, name: str) -> None:
        """Ends it and whatever it started; one that has ended is no error."""
        child, _ = self._running.pop(name)
        leader = ProcessId(child.pid, "?")
        if child.poll() is None:
            signal_group(leader, signal.SIGTERM)
        try:
            child.wait(_POLITE_S)
        except subprocess.TimeoutExpired:
            signal_group(leader, signal.SIGKILL)
            child.wait()
        signal_group(leader, signal.SIGKILL)

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in reversed(list(self._running)):
            self.stop(name)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """A SIGTERM unwinds as Ctrl-C does, so that no process is left behind."""

    def unwind(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def how_it_ended(code: int) -> str:
    return f"was killed (signal {-code})" if code < 0 else f"ended with exit code {code}"


def last_lines(log: Path, count: int) -> list[str]:
    """The end of a log, without what a terminal would act on."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [printable(line) for line in lines if line.strip()][-count:]


def _last_object(name: str, log: Path) -> JSONObject:
    for line in reversed(last_lines(log, _SHOWN_LINES)):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    raise ProcessFailedError(name, "printed no result", log)
