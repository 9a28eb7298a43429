"""Starts commands through a keeper process: the Hermes side.

Used by every sandbox that runs programs on this machine; `keeper` documents how commands are ended. One
supervisor serves one event loop.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib.resources
import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from hermes.errors import SandboxError
from hermes.sandbox.base import CommandResult
from hermes.sandbox.guards.bare_python import bare_python
from hermes.sandbox.process import DEFAULT_BYTES, Capture, Process

TIMED_OUT = 124
_KEEPER = "import sys; exec(compile(open(int(sys.argv[2])).read(), 'keeper', 'exec'))"
_START_TIMEOUT_S = 20.0
_READY_BYTES = 5
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

    def __init__(self, keeper: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self._keeper = keeper
        self._channel = channel
        self._keeper_pid = 0
        self._running: set[Process] = set()
        self._started = 0

    @classmethod
    async def open(
        cls, prefix: Sequence[str] = (), pass_fds: Sequence[int] = (), entrance: int | None = None
    ) -> SandboxSupervisor:
        """Starts the keeper with `prefix`, a command line that runs its last arguments in a sandbox.

        `entrance` is that of a control group which every command enters.
        """
        channel, keeper_channel = socket.socketpair()
        try:
            keeper = _start_keeper(prefix, keeper_channel.fileno(), pass_fds, entrance)
        except OSError as error:
            channel.close()
            raise SandboxError(f"the sandbox cannot be started: {error}.") from error
        finally:
            keeper_channel.close()
        channel.setblocking(False)
        supervisor = cls(keeper, channel)
        try:
            await supervisor._await_ready()
        except BaseException:
            await supervisor.close()
            raise
        return supervisor

    @property
    def keeper_pid(self) -> int:
        """The process id of the keeper, in whose network namespace every command runs."""
        return self._keeper_pid

    async def _await_ready(self) -> None:
        stderr = self._keeper.stderr
        assert stderr is not None
        ready = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_START_TIMEOUT_S):
                while len(ready) < _READY_BYTES and (
                    data := await asyncio.get_running_loop().sock_recv(self._channel, _READY_BYTES)
                ):
                    ready += data
        if len(ready) < _READY_BYTES:
            self._keeper.kill()
            message = (await asyncio.to_thread(stderr.read, 2_000)).decode("utf-8", "replace").strip()
            raise SandboxError(
                f"the sandbox cannot be started: {message or 'it ended without an error message'}"
            )
        stderr.close()
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
        """Ends everything and waits until it has ended."""
        self._channel.close()
        for process in tuple(self._running):
            process.kill_now()
        if self._running:
            await asyncio.wait([process.ended for process in self._running], timeout=_CLOSE_TIMEOUT_S)
        try:
            await asyncio.to_thread(self._keeper.wait, _CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            await asyncio.to_thread(self._keeper.wait)
        if self._keeper.stderr is not None:
            self._keeper.stderr.close()


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


def _start_keeper(
    prefix: Sequence[str], channel: int, pass_fds: Sequence[int], entrance: int | None
) -> subprocess.Popen[bytes]:
    entrances = () if entrance is None else (entrance,)
    reader, writer = os.pipe()
    numbers = [str(channel), str(reader), str(-1 if entrance is None else entrance)]
    try:
        # Through a pipe: the file may not exist inside the sandbox, and `ps` should not show the source.
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(importlib.resources.files("hermes.sandbox").joinpath("keeper.py").read_bytes())
        return subprocess.Popen(
            [*prefix, bare_python().executable, "-I", "-S", "-c", _KEEPER, *numbers],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(channel, reader, *entrances, *pass_fds),
            env={"LC_ALL": "C.UTF-8"},
            cwd="/",
            start_new_session=True,  # a Ctrl-C in the terminal must not reach the commands
        )
    finally:
        os.close(reader)


async def _feed(process: Process, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # a command need not read all of its input
        await process.feed(data)
    process.end_input()
