"""Starts commands through a keeper process: the Hermes side.

Used by every sandbox that runs programs on this machine; `keeper` documents how commands are ended. One
supervisor serves one event loop; one server, which forks the keepers, serves this process and ends with it.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import contextlib
import importlib.resources
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from hermes.errors import SandboxError
from hermes.sandbox.base import CommandResult
from hermes.sandbox.guards.bare_python import bare_python
from hermes.sandbox.keeper import READY
from hermes.sandbox.process import DEFAULT_BYTES, Capture, Process
from hermes.sandbox.workspace import INNER_ID

TIMED_OUT = 124
_KEEPER = "import sys; exec(compile(open(int(sys.argv[2])).read(), 'keeper', 'exec'))"
_START_TIMEOUT_S = 20.0
_MOST_ANSWER_BYTES = 2_000
_HOLD = "echo $$; read line"
"""Ends when its input closes."""
_SEND_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 10.0

Rlimit = tuple[str, int, int]
"""Name in the `resource` module, soft and hard limit."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A program to run."""

    argv: Sequence[str]
    """The program by absolute path, then its arguments."""
    command: str
    """Its name in messages."""
    cwd: str
    env: Mapping[str, str]
    """Its complete environment."""
    rlimits: Sequence[Rlimit] = ()
    max_output_bytes: int = DEFAULT_BYTES
    attached: bytes = b""
    """The bytes that the program can read from descriptor 3; without it that descriptor is closed."""


@dataclass(frozen=True, slots=True)
class ProcessResult:
    exit_code: int
    """128 + signal for a killed process; 124 for a time-out."""
    capture: Capture
    duration_ms: float
    timed_out: bool

    def result(self) -> CommandResult:
        return CommandResult(
            self.exit_code, self.capture.text(), self.duration_ms, self.timed_out, self.capture.truncated
        )


class SandboxSupervisor:
    """Runs programs until it is closed; then, or when this process ends for any reason, all of them end."""

    def __init__(self, channel: socket.socket, holder: _Holder | None) -> None:
        self._channel = channel
        self._holder = holder
        self._keeper_pid = 0
        self._running: set[Process] = set()
        self._started = 0

    @classmethod
    async def open(
        cls, prefix: Sequence[str] = (), pass_fds: Sequence[int] = (), entrance: int | None = None
    ) -> SandboxSupervisor:
        """Commands run in the namespaces of `prefix`, a command line that runs its last arguments in its own.

        `entrance` is that of a control group which every command enters.
        """
        channel, keeper_channel = socket.socketpair()
        channel.setblocking(False)
        supervisor = cls(channel, None)
        try:
            if prefix:
                supervisor._holder = await _Holder.open(prefix, pass_fds)
            holder = supervisor._holder.pid if supervisor._holder else 0
            server = await asyncio.to_thread(_server)
            server.fork(keeper_channel.fileno(), entrance, holder)
            keeper_channel.close()
            await supervisor._await_ready()
        except BaseException as error:
            keeper_channel.close()
            await supervisor.close()
            if isinstance(error, OSError):
                raise SandboxError(f"the sandbox cannot be started: {error}.") from error
            raise
        return supervisor

    @property
    def holder_pid(self) -> int:
        """A process in whose network namespace every command runs."""
        return self._holder.pid if self._holder else self._keeper_pid

    async def _await_ready(self) -> None:
        ready = await _receive(self._channel, _MOST_ANSWER_BYTES, _START_TIMEOUT_S) or b""
        if ready[:1] != READY:
            message = ready[1:].decode("utf-8", "replace")
            raise SandboxError(
                f"the sandbox cannot be started: {message or 'its keeper ended without an error message'}"
            )
        (self._keeper_pid,) = struct.unpack("!I", ready[1:])
        self._channel.settimeout(_SEND_TIMEOUT_S)

    async def start(self, launch: Launch, *, stdin: bool) -> Process:
        """OSError if the directory or the arguments are to blame. Without `stdin`, the input is empty."""
        control, their_control = socket.socketpair()
        output, their_output = os.pipe()
        their_input, our_input = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY), None)
        try:
            self._send(launch, (their_control.fileno(), their_input, their_output))
        except BaseException:
            control.close()
            os.close(output)
            if our_input is not None:
                os.close(our_input)
            raise
        finally:
            their_control.close()
            os.close(their_output)
            os.close(their_input)
        control.setblocking(False)
        self._started += 1
        capture = Capture(launch.max_output_bytes)
        process = Process(f"p{self._started}", launch.command, control, output, our_input, capture)
        self._running.add(process)
        process.ended.add_done_callback(lambda _: self._running.discard(process))
        try:
            await process.started
        except asyncio.CancelledError:
            process.kill_now()
            raise
        except (OSError, SandboxError):
            await process.ended
            raise
        return process

    def _send(self, launch: Launch, descriptors: tuple[int, int, int]) -> None:
        """Blocking, so that it cannot be cancelled half-way; the keeper reads at once."""
        request = {
            "argv": list(launch.argv),
            "cwd": launch.cwd,
            "env": dict(launch.env),
            "rlimits": list(launch.rlimits),
            "attached": base64.b64encode(launch.attached).decode(),
        }
        body = json.dumps(request).encode()
        try:
            socket.send_fds(self._channel, [struct.pack("!I", len(body))], descriptors)
            self._channel.sendall(body)
        except OSError as error:
            raise SandboxError("the sandbox has ended; no more commands can run in it.") from error

    async def run(
        self, launch: Launch, *, timeout_s: float | None, stdin: bytes | None = None
    ) -> ProcessResult:
        """Runs a program to its end or to the time-out. If cancelled, it leaves nothing running."""
        begin = time.perf_counter()
        process = await self.start(launch, stdin=stdin is not None)
        feeding = asyncio.create_task(_feed(process, stdin)) if stdin is not None else None
        try:
            code = await process.wait(timeout_s)
            if code is None:
                await process.kill()
        finally:
            process.kill_now()
            if feeding is not None:
                feeding.cancel()
        timed_out = code is None
        duration_ms = (time.perf_counter() - begin) * 1000
        return ProcessResult(TIMED_OUT if code is None else code, process.capture, duration_ms, timed_out)

    async def kill_all(self) -> None:
        """Ends the programs that are running, and waits until they have ended."""
        for process in tuple(self._running):
            process.kill_now()
        if self._running:
            await asyncio.wait([process.ended for process in self._running], timeout=_CLOSE_TIMEOUT_S)
        if self._running:
            raise SandboxError("processes in the sandbox cannot be ended.")

    async def close(self) -> None:
        """Ends everything and waits until it has ended. Idempotent."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)
        for process in tuple(self._running):
            process.kill_now()
        if self._running:
            await asyncio.wait([process.ended for process in self._running], timeout=_CLOSE_TIMEOUT_S)
        keeper_pid, self._keeper_pid = self._keeper_pid, 0
        if keeper_pid:
            self._channel.setblocking(False)
            if await _receive(self._channel, 1, _CLOSE_TIMEOUT_S) is None:  # it sends nothing more, and ends
                with contextlib.suppress(ProcessLookupError):
                    os.kill(keeper_pid, signal.SIGKILL)
        self._channel.close()
        if self._holder is not None:
            await self._holder.close()


class _Holder:
    """A shell that does nothing but keep the namespaces of a sandbox."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self._process = process
        self._channel = channel
        self.pid = 0

    @classmethod
    async def open(cls, prefix: Sequence[str], pass_fds: Sequence[int]) -> _Holder:
        """OSError, or SandboxError with what the prefix printed."""
        channel, theirs = socket.socketpair()
        channel.setblocking(False)
        try:
            process = _start_holder(prefix, theirs.fileno(), pass_fds)
        except OSError:
            channel.close()
            raise
        finally:
            theirs.close()
        holder = cls(process, channel)
        try:
            await holder._await_pid()
        except BaseException:
            await holder.close()
            raise
        return holder

    async def _await_pid(self) -> None:
        line = b""
        while not line.endswith(b"\n") and (data := await _receive(self._channel, 20, _START_TIMEOUT_S)):
            line += data
        stderr = self._process.stderr
        assert stderr is not None
        if not line.endswith(b"\n"):
            self._process.kill()
            message = (await asyncio.to_thread(stderr.read, 2_000)).decode("utf-8", "replace").strip()
            raise SandboxError(
                f"the sandbox cannot be started: {message or 'it ended without an error message'}"
            )
        stderr.close()
        self.pid = int(line)

    async def close(self) -> None:
        self._channel.close()
        try:
            await asyncio.to_thread(self._process.wait, _CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        if self._process.stderr is not None:
            self._process.stderr.close()


def _start_holder(prefix: Sequence[str], channel: int, pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*prefix, "/bin/sh", "-c", _HOLD],
        stdin=channel,
        stdout=channel,
        stderr=subprocess.PIPE,
        pass_fds=tuple(pass_fds),
        env={"LC_ALL": "C.UTF-8"},
        cwd="/",
        start_new_session=True,
    )


async def _receive(channel: socket.socket, size: int, timeout_s: float) -> bytes | None:
    """At most so many bytes; none: the other end is closed. None: nothing came in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.get_running_loop().sock_recv(channel, size)
    except TimeoutError:
        return None
    except ConnectionError:
        return b""


class LazySupervisor:
    """A supervisor that is opened by the first command: many rollouts never run one.

    An error while opening is raised by the first command.
    """

    def __init__(self, open_supervisor: Callable[[], Awaitable[SandboxSupervisor]]) -> None:
        self._open_supervisor = open_supervisor
        self._opening = asyncio.Lock()
        self._supervisor: SandboxSupervisor | None = None

    async def start(self, launch: Launch, *, stdin: bool) -> Process:
        return await (await self._get()).start(launch, stdin=stdin)

    async def run(
        self, launch: Launch, *, timeout_s: float | None, stdin: bytes | None = None
    ) -> ProcessResult:
        return await (await self._get()).run(launch, timeout_s=timeout_s, stdin=stdin)

    async def kill_all(self) -> None:
        async with self._opening:
            if self._supervisor is not None:
                await self._supervisor.kill_all()

    async def close(self) -> None:
        async with self._opening:
            if self._supervisor is not None:
                await self._supervisor.close()

    async def _get(self) -> SandboxSupervisor:
        async with self._opening:
            if self._supervisor is None:
                self._supervisor = await self._open_supervisor()
            return self._supervisor


class KeeperServer:
    """The process that forks keepers: one for this process, started by the first sandbox."""

    def __init__(self) -> None:
        """OSError if it cannot be started."""
        self.owner_pid = os.getpid()
        self._channel, theirs = socket.socketpair()
        self._sending = threading.Lock()
        reader, writer = os.pipe()
        try:
            # Through a pipe: `ps` should not show the source.
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(importlib.resources.files("hermes.sandbox").joinpath("keeper.py").read_bytes())
            self._process = subprocess.Popen(
                [bare_python().executable, "-I", "-S", "-c", _KEEPER, str(theirs.fileno()), str(reader)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), reader),
                env={"LC_ALL": "C.UTF-8"},
                cwd="/",
                start_new_session=True,  # a Ctrl-C in the terminal must not reach the commands
            )
        except OSError:
            self._channel.close()
            raise
        finally:
            theirs.close()
            os.close(reader)
        self._channel.settimeout(_START_TIMEOUT_S)
        atexit.register(self._end)

    @property
    def running(self) -> bool:
        return self.owner_pid == os.getpid() and self._process.poll() is None

    def fork(self, channel: int, entrance: int | None, holder: int) -> None:
        """Makes a keeper at the other end of the channel; OSError if the server has ended."""
        descriptors = [channel] if entrance is None else [channel, entrance]
        body = json.dumps({"holder": holder, "id": INNER_ID}).encode()
        with self._sending:
            socket.send_fds(self._channel, [struct.pack("!I", len(body))], descriptors)
            self._channel.sendall(body)

    def _end(self) -> None:
        if self.owner_pid == os.getpid():
            with contextlib.suppress(OSError):  # it has ended
                self._channel.shutdown(socket.SHUT_RDWR)  # a fork of this process may hold a copy
            self._channel.close()
            self._process.wait()


_servers: list[KeeperServer] = []
_starting = threading.Lock()


def _server() -> KeeperServer:
    """The running one of this process. A fork of this process starts its own."""
    with _starting:
        if not _servers or not _servers[-1].running:
            _servers[:] = [KeeperServer()]
        return _servers[-1]


async def _feed(process: Process, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # a command need not read all of its input
        await process.feed(data)
    process.end_input()
