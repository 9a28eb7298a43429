"""Calls of graders that pass a model's text to a package which evaluates it, in processes of their own.

Such text can make the package run forever, use all memory, or run as a program. So it is evaluated in a
process that is forked for this one call (`evaluator`): with a limit of processor time and memory, with no key
in its environment, and on Linux with no program to start, no socket and no file to write. Where bubblewrap
works, that process sees no home directory and no other process either. Calls do not wait for each other.

What used up the limits or crashed is `EvaluationExhaustedError`: the text did that, and a grader scores it as
a failure. Everything else is a failure of the grader. Not on Linux: only the limits and the fork hold.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import hermes
from hermes.batch.reward import GraderError
from hermes.core import JSON, JSONObject
from hermes.core.processors import usable_processors
from hermes.sandbox.open import unusable_reason

_START_TIMEOUT_S = 120.0
"""For importing the package on a busy machine."""
_WALL_FACTOR, _WALL_EXTRA_S = 6, 20.0
"""The processor time may take this much longer on a busy machine."""
_MIN_CONCURRENT = 4
_EVALUATOR = "hermes.batch.grading.evaluator"
_LIBRARIES = ("site-packages", "dist-packages")


class EvaluationExhaustedError(GraderError):
    """Evaluating the text used up its time or memory, or crashed the process: the text's doing."""


class GraderProcess:
    """Calls `module.function(**arguments)` in a process of its own. Thread-safe."""

    def __init__(self, module: str, timeout_s: float = 10.0, *, wall_s: float | None = None) -> None:
        """`timeout_s` is processor time; `wall_s`, which a busy machine must not reach, is far more."""
        self._module = module
        self._timeout_s = timeout_s
        self._wall_s = wall_s or _WALL_FACTOR * timeout_s + _WALL_EXTRA_S
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(max(_MIN_CONCURRENT, usable_processors()))
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def call(
        self, function: str, *, prepare: tuple[str, Mapping[str, JSON]] | None = None, **arguments: JSON
    ) -> JSON:
        """The function's return value; GraderError if it raises, EvaluationExhaustedError at its limits.

        `prepare` is a function of the module that runs before, once and unlimited, with arguments that are
        ours, and whose effect later calls find.
        """
        limits = {"cpu_s": self._timeout_s, "wall_s": self._wall_s}
        request: JSONObject = {"function": function, "arguments": arguments, **limits}
        if prepare is not None:
            request["prepare"] = [prepare[0], dict(prepare[1])]
        with self._slots:
            return self._result(self._request(request))

    def close(self) -> None:
        with self._lock:
            self._end()

    def _result(self, reply: JSONObject) -> JSON:
        if "result" in reply:
            return reply["result"]
        if "exhausted" in reply:
            raise EvaluationExhaustedError(f"the evaluation was ended by its limits: {reply['exhausted']}")
        if "stalled" in reply:
            raise GraderError(f"the grader timed out after {reply['stalled']:g} s")
        raise GraderError(f"the grader failed: {reply['error']}")

    def _request(self, request: JSONObject) -> JSONObject:
        reader, writer = os.pipe()
        try:
            try:
                with self._lock:
                    self._send(self._channel or self._start(), request, writer)
            finally:
                os.close(writer)
            data = _read_all(reader, request["wall_s"] + _START_TIMEOUT_S)
        except (BrokenPipeError, ConnectionError):
            data = b""
        finally:
            os.close(reader)
        if not data:
            with self._lock:
                self._end()
            raise GraderError(f"the grader's process for {self._module} died")
        reply: JSONObject = json.loads(data)
        return reply

    def _send(self, channel: socket.socket, request: JSONObject, writer: int) -> None:
        body = json.dumps(request).encode()
        socket.send_fds(channel, [struct.pack("!I", len(body))], [writer])
        channel.sendall(body)

    def _start(self) -> socket.socket:
        prefix = _isolation(self._module)
        channel, far_end = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-P", "-m", _EVALUATOR, self._module, str(far_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the package's own output
                cwd="/" if prefix else tempfile.gettempdir(),
                env=_environment(),
                pass_fds=(far_end.fileno(),),
                start_new_session=True,
            )
        finally:
            far_end.close()
        self._channel = channel
        channel.settimeout(_START_TIMEOUT_S)
        try:
            ready = channel.recv(1)
        except TimeoutError:
            ready = b""
        if not ready:
            self._end()
            raise GraderError(f"the grader's process for {self._module} died while it started")
        return channel

    def _end(self) -> None:
        channel, self._channel = self._channel, None
        process, self._process = self._process, None
        if channel is not None:
            channel.close()
        if process is not None:
            try:
                process.wait(2.0)  # it ends with its channel, and takes what it started along
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _read_all(reader: int, timeout_s: float) -> bytes:
    """The text that the writers of a pipe wrote; empty if they write nothing in time."""
    data, deadline = bytearray(), time.monotonic() + timeout_s
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    while poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            return bytes(data)
        data += chunk
    return b""


def _environment() -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join(filter(None, sys.path))
    return {"PATH": os.defpath, "PYTHONPATH": path, "LANG": "C.UTF-8", **threads}


@cache
def _isolation(module: str) -> tuple[str, ...]:
    """A command prefix that hides the home directory, the network and other processes; empty without it."""
    if sys.platform != "linux" or unusable_reason("bubblewrap") is not None:
        return ()
    from hermes.sandbox.bubblewrap import find_bwrap
    from hermes.sandbox.bwrap_args import library_argv

    return tuple(library_argv(find_bwrap(), [*_library_directories(), _package_of(module)]))


def _package_of(module: str) -> Path:
    """The top-level package of a module, or its file."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None or spec.origin is None:
        raise GraderError(f"the grader's module {module} cannot be imported")
    return Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)


def _library_directories() -> list[Path]:
    """Where this Python and its packages lie; a directory of the path that is no library stays hidden."""
    package = Path(hermes.__file__).parent
    stdlib = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    libraries = [Path(entry) for entry in sys.path if Path(entry).name in _LIBRARIES]
    executables = [Path(sys.executable).parent, Path(sys.executable).resolve().parent]
    prefixes = [Path(sys.prefix, "pyvenv.cfg"), Path(sys.base_prefix, "lib")]
    return [path for path in (package, *stdlib, *libraries, *executables, *prefixes) if path.exists()]
