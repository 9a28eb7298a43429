"""Parses bodies without blocking the event loop: large ones in a thread or a child process.

Small bodies are parsed inline. The fast path runs in a thread for a large body; it releases the interpreter.
A large body that the fast path does not accept is sent to a child process, which is started when first
needed. The child ends when its input is closed, so it never outlives its parent.

Messages on the pipe, in both directions: a 4-byte length, a JSON header of that length, then the bytes it
describes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
from typing import BinaryIO

from hermes.core.json import JSONObject
from hermes.rollouts.parsing.fast_path import IncomingGroup
from hermes.rollouts.parsing.parse import BodyError, parse, parse_fast, parse_validated

INLINE_BYTES = 1 << 20
"""Up to this size, the fast path for a single group runs inline."""
INLINE_PARSED_BYTES = 1 << 17
"""The same for lists and for full parsing: each small object costs as much as a kilobyte of numbers."""
_LENGTH = struct.Struct(">I")


class WorkerLost(Exception):
    """The child process died while parsing; the next body starts a new one."""


class Parser:
    """Parses bodies without blocking the event loop for more than a few milliseconds."""

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._child_lock = asyncio.Lock()

    async def parse(self, body: bytes, *, many: bool) -> list[IncomingGroup]:
        """As `parse.parse`; WorkerLost if the child died."""
        if len(body) <= INLINE_PARSED_BYTES:
            return parse(body, many=many)
        if not many and len(body) <= INLINE_BYTES:
            groups = parse_fast(body, many=many)
        else:
            groups = await asyncio.to_thread(parse_fast, body, many=many)
        if groups:
            return groups
        async with self._child_lock:
            try:
                return await self._parse_in_child(body, many)
            except (OSError, asyncio.IncompleteReadError) as error:
                await self.close()
                raise WorkerLost(f"the process that parses large bodies ended: {error}") from error
            except asyncio.CancelledError:
                self._kill_child()  # part of a response may be in the pipe
                raise

    @property
    def child_pid(self) -> int | None:
        return self._child.pid if self._child else None

    async def close(self) -> None:
        """Ends the child process."""
        if child := self._kill_child():
            await child.wait()

    def _kill_child(self) -> asyncio.subprocess.Process | None:
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        return child

    async def _parse_in_child(self, body: bytes, many: bool) -> list[IncomingGroup]:
        child = self._child or await self._start()
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(_frame({"many": many, "bytes": len(body)}))
        child.stdin.write(body)
        await child.stdin.drain()
        (length,) = _LENGTH.unpack(await child.stdout.readexactly(_LENGTH.size))
        header = json.loads(await child.stdout.readexactly(length))
        if "errors" in header:
            raise BodyError(header["errors"])
        return [
            IncomingGroup(env_id, size, await child.stdout.readexactly(count))
            for env_id, size, count in header["groups"]
        ]

    async def _start(self) -> asyncio.subprocess.Process:
        self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "hermes.rollouts.parsing.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=INLINE_BYTES,
        )
        return self._child


def _frame(header: JSONObject) -> bytes:
    text = json.dumps(header).encode()
    return _LENGTH.pack(len(text)) + text


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """The child's loop, until its input is closed."""
    while len(prefix := source.read(_LENGTH.size)) == _LENGTH.size:
        request = json.loads(source.read(*_LENGTH.unpack(prefix)))
        body = source.read(request["bytes"])
        groups: list[IncomingGroup] = []
        try:
            groups = parse_validated(body, many=request["many"])
            header: JSONObject = {"groups": [(g.env_id, g.size, len(g.payload)) for g in groups]}
        except BodyError as error:
            header = {"errors": error.details}
        sink.write(_frame(header))
        sink.writelines(group.payload for group in groups)
        sink.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)
