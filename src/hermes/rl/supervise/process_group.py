"""A group of `hermes` processes that live and end together, for as long as a block of code runs.

Processes are awaited until they are ready, checked while another is waited for, and stopped in reverse order.
Every process writes to its own log. A failure names the process, its last lines and its log. Nothing is
restarted: `RunSupervisor` is for runs that have to survive.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hermes.core import JSONObject
from hermes.disk.files import ensure_dir
from hermes.errors import HermesError
from hermes.rl.process import (
    HERMES,
    Exited,
    ProcessHandle,
    ProcessId,
    ProcessSpec,
    last_lines,
    signal_group,
)

_POLL_S = 0.1
_SHOWN_LINES = 12
_GRACE_S = 8.0
"""Between SIGTERM and SIGKILL."""
_REMIND_S = 4.0
"""Until a second SIGTERM: a trainer finishes its step after the first, and ends at once after the second,
with the processes that it has launched itself."""
_START_PATIENCE_S = 600.0


class ProcessFailedError(HermesError):
    """A process of the group exited, or did not become ready."""

    def __init__(self, name: str, problem: str, log: Path) -> None:
        lines = last_lines(log, _SHOWN_LINES)
        tail = "\n".join(f"    {line}" for line in lines) or "    (nothing)"
        super().__init__(f"{name} {problem}. Its last lines:\n{tail}", f"see {log}, then: hermes doctor")


class _Member(NamedTuple):
    handle: ProcessHandle
    log: Path


class ProcessGroup:
    """A context manager: on exit all processes are stopped."""

    def __init__(self, logs: Path, cwd: Path, environ: Mapping[str, str]) -> None:
        self._logs, self._cwd, self._environ = ensure_dir(logs), cwd, dict(environ)
        self._running: dict[str, _Member] = {}

    def serve(self, name: str, arguments: tuple[str, ...], is_ready: Callable[[], bool]) -> None:
        """Starts `hermes ARGUMENTS` and waits until it is ready; it then runs until the group ends."""
        self.start(name, arguments)
        self.wait_until_ready(name, is_ready)

    def start(self, name: str, arguments: tuple[str, ...]) -> None:
        """Starts `hermes ARGUMENTS` without waiting for anything."""
        log = self._logs / f"{name}.log"
        spec = ProcessSpec(name, (*HERMES, *arguments), log, environ=self._environ)
        try:
            self._running[name] = _Member(ProcessHandle.launch(spec, self._cwd), log)
        except OSError as error:
            raise HermesError(f"{name} cannot be started: {error}", "see 'hermes doctor'") from error

    def wait_until_ready(self, name: str, is_ready: Callable[[], bool]) -> None:
        """ProcessFailedError if any process of the group fails before this one is ready."""
        deadline_s = time.monotonic() + _START_PATIENCE_S
        while not is_ready():
            self.check()
            if time.monotonic() > deadline_s:
                raise self.failure(name, f"was not ready after {_START_PATIENCE_S:g} s")
            time.sleep(_POLL_S)

    def run(
        self, name: str, arguments: tuple[str, ...], on_poll: Callable[[], None] = lambda: None
    ) -> JSONObject:
        """Runs `hermes ARGUMENTS` to its end; the JSON object that it printed last."""
        self.start(name, arguments)
        return self.finish(name, on_poll)

    def finish(self, name: str, on_poll: Callable[[], None] = lambda: None) -> JSONObject:
        """Waits for the end of a process that was started; the JSON object that it printed last."""
        handle, log = self._running[name]
        while (exited := handle.poll()) is None:
            self.check()
            on_poll()
            time.sleep(_POLL_S)
        del self._running[name]
        if exited.code != 0:
            raise ProcessFailedError(name, _describe_exit(exited), log)
        on_poll()
        return _last_object(name, log)

    def check(self) -> None:
        """ProcessFailedError if a process has failed."""
        for name, (handle, log) in self._running.items():
            exited = handle.poll()
            if exited is not None and exited.code != 0:
                raise ProcessFailedError(name, _describe_exit(exited), log)

    def has_ended(self, name: str) -> bool:
        """Whether a process that was started has exited, with any exit code."""
        return self._running[name].handle.poll() is not None

    def failure(self, name: str, problem: str) -> ProcessFailedError:
        """The error that names this process, with the end of its log."""
        return ProcessFailedError(name, problem, self._running[name].log)

    def ids(self) -> list[ProcessId]:
        """The processes that were started and not stopped; some may have exited."""
        return [member.handle.id for member in self._running.values()]

    def terminate(self, name: str) -> None:
        """Sends SIGTERM without waiting; a process that has ended is no error."""
        if name in self._running:
            signal_group(self._running[name].handle.id, signal.SIGTERM)

    def stop(self, name: str) -> None:
        """Stops it and whatever it started; a process that has exited is no error."""
        self._running.pop(name).handle.stop(_GRACE_S, _REMIND_S)

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *exception: object) -> None:
        for name in reversed(list(self._running)):
            self.stop(name)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does, so that the group is stopped."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _describe_exit(exited: Exited) -> str:
    code = exited.code or 0
    return f"was killed (signal {-code})" if code < 0 else f"ended with exit code {code}"


def _last_object(name: str, log: Path) -> JSONObject:
    for line in reversed(last_lines(log, _SHOWN_LINES)):
        try:
            result = json.loads(line)
        except ValueError:
            continue
        if isinstance(result, dict):
            return result
    raise ProcessFailedError(name, "printed no result", log)
