"""One running command: its output, its input, its end.

The command is a child of the keeper, which reports on the control socket when the command has started and
when it and its descendants have ended. This side can only end it early: gracefully (`kill`) or at once
(`kill_now`, which does not wait and so can be used while a call is being cancelled).
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator

from hermes.errors import SandboxError

_KILLED = 137
_DRAIN_S = 1.0
"""How long to wait for output that a process which cannot be killed keeps open."""
_CHUNK_BYTES = 65_536


class Process:
    """A `BackgroundProcess`. Owns the descriptors that it is passed."""

    def __init__(
        self, id: str, command: str, control: socket.socket, output: int, stdin: int | None, capture: Capture
    ) -> None:
        loop = asyncio.get_running_loop()
        self.capture = capture
        self.started: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[int] = loop.create_future()
        self._id = id
        self._command = command
        self._control = control
        self._output: int | None = output
        self._stdin = stdin
        self._output_ended = asyncio.Event()
        os.set_blocking(output, False)
        loop.add_reader(output, self._read_output)
        self._listener = loop.create_task(self._listen())

    @property
    def id(self) -> str:
        return self._id

    @property
    def command(self) -> str:
        return self._command

    @property
    def exit_code(self) -> int | None:
        return self.ended.result() if self.ended.done() and not self.ended.cancelled() else None

    def output(self) -> str:
        return self.capture.text()

    async def wait(self, timeout_s: float | None) -> int | None:
        """The exit code, once the command and its descendants have ended; None at the time-out."""
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self.ended)
        except TimeoutError:
            return None

    async def kill(self) -> None:
        """SIGTERM for the whole tree, SIGKILL a second later for what is left of it."""
        with contextlib.suppress(OSError):  # it has ended in the meantime
            self._control.send(b"k")
        await asyncio.shield(self.ended)

    def kill_now(self) -> None:
        """SIGKILL for the whole tree; no effect if it has ended."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    async def write(self, text: str) -> None:
        """BrokenPipeError if the command no longer reads."""
        await self.feed(text.encode("utf-8", "surrogateescape"))

    async def feed(self, data: bytes) -> None:
        if self._stdin is None:
            raise BrokenPipeError(errno.EPIPE, "the command reads no input", self._command)
        os.set_blocking(self._stdin, False)
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._stdin, rest) :]
            except BlockingIOError:
                await self._writable(self._stdin)

    def end_input(self) -> None:
        if self._stdin is not None:
            asyncio.get_running_loop().remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = None

    async def _writable(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        loop.add_writer(descriptor, wake)
        try:
            # Also wait for the end: a pipe without a reader may never become writable.
            await asyncio.wait((ready, self.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._stdin is not None:  # else it is closed, and its number may have been reused
                loop.remove_writer(descriptor)
        if self.ended.done():
            raise BrokenPipeError(errno.EPIPE, "the command has ended", self._command)

    def _read_output(self) -> None:
        assert self._output is not None
        try:
            data = os.read(self._output, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if data:
            self.capture.feed(data)
        else:
            self._close_output()

    def _close_output(self) -> None:
        if self._output is not None:
            asyncio.get_running_loop().remove_reader(self._output)
            os.close(self._output)
            self._output = None
            self._output_ended.set()

    async def _listen(self) -> None:
        code = _KILLED  # for an end without a report: the keeper was killed, and the command with it
        try:
            async for line in self._lines():
                word, _, rest = line.partition(" ")
                if word == "exit":
                    code = int(rest)
                elif self.started.done():  # the start was cancelled
                    continue
                elif word == "started":
                    self.started.set_result(None)
                else:
                    number, _, stage = rest.partition(" ")
                    self.started.set_exception(_start_error(int(number), stage))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_S):
                    await self._output_ended.wait()
        finally:
            self._close_output()
            self.end_input()
            self._control.close()
            if not self.started.done():
                self.started.set_exception(SandboxError("the sandbox ended before the command started."))
            self.ended.set_result(code)

    async def _lines(self) -> AsyncIterator[str]:
        """The keeper's reports on the control socket, until it closes its end."""
        loop = asyncio.get_running_loop()
        buffer = b""
        with contextlib.suppress(ConnectionError):
            while data := await loop.sock_recv(self._control, 256):
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    yield line.decode()


def _start_error(number: int, stage: str) -> Exception:
    """An OSError if the directory or the arguments are to blame; otherwise the sandbox has failed."""
    reason = os.strerror(number)
    if stage == "cwd" or number in (errno.E2BIG, errno.EINVAL):
        return OSError(number, reason)
    return SandboxError(f"the sandbox cannot run commands: {reason} ({stage}).")


DEFAULT_BYTES = 1_000_000


class Capture:
    """Keeps at most about `max_bytes` of the output, half from the head and half from the tail."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._head_bytes = max_bytes - max_bytes // 2
        self._tail_bytes = max_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def feed(self, data: bytes) -> None:
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        # Trimmed only when twice too long, so that each byte is moved a bounded number of times.
        if len(self._tail) > 2 * self._tail_bytes:
            self._trim()

    @property
    def truncated(self) -> bool:
        return self._dropped > 0 or len(self._tail) > self._tail_bytes

    @property
    def data(self) -> bytes:
        """The stored bytes; with a gap between head and tail if `truncated`."""
        self._trim()
        return bytes(self._head + self._tail)

    def text(self) -> str:
        """The stored text, undecodable bytes replaced, with a note in place of a missing middle."""
        self._trim()
        if not self._dropped:
            return (self._head + self._tail).decode("utf-8", "replace")
        # A character that is split at the gap is left out instead of being replaced.
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._head))
        start = next((i for i in range(min(4, len(self._tail))) if self._tail[i] & 0xC0 != 0x80), 0)
        tail = self._tail[start:].decode("utf-8", "replace")
        return f"{head}\n… [{self._dropped} bytes left out] …\n{tail}"

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_bytes
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess
