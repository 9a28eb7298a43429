"""A second process for bodies that take long to parse, so that none ever holds up other requests.

Small bodies are taken on the spot. A large one that needs no parsing is recognised in a thread, which lets
others run. One that must be parsed goes, unless it is quite small, to a child process, started when first
needed; it ends with its parent, however that ends, because its input does.

On the pipe, both ways: a 4-byte length, that many bytes of JSON, then the bytes the JSON speaks of.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
from typing import BinaryIO

from hermes.core.json import JSONObject
from hermes.rollouts.parsing.parse import BodyError, parse, parse_slowly, recognised
from hermes.rollouts.parsing.recognise import IncomingGroup

INLINE_BYTES = 1 << 20
"""A single group that needs no parsing is recognised on the spot up to this size."""
INLINE_PARSED_BYTES = 1 << 17
"""The same for what is a list or has to be parsed: each small object in it costs as much as a kilobyte of
numbers."""
_LENGTH = struct.Struct(">I")


class WorkerLost(Exception):
    """The child process died over a body; the next one gets a fresh child."""


class Parser:
    """Parses bodies without blocking the event loop for more than a few milliseconds."""

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def parse(self, body: bytes, *, many: bool) -> list[IncomingGroup]:
        """As `parsing.parse`; WorkerLost if the child died."""
        if len(body) <= INLINE_PARSED_BYTES:
            return parse(body, many=many)
        quick = not many and len(body) <= INLINE_BYTES
        known = recognised(body, many=many) if quick else await asyncio.to_thread(recognised, body, many=many)
        if known:
            return known
        async with self._turn:
            try:
                return await self._ask_child(body, many)
            except (OSError, asyncio.IncompleteReadError) as error:
                await self.close()
                raise WorkerLost(f"the process that parses large bodies ended: {error}") from error
            except asyncio.CancelledError:
                self._dismiss()  # half an answer may be in the pipe
                raise

    @property
    def child_pid(self) -> int | None:
        return self._child.pid if self._child else None

    async def close(self) -> None:
        """Ends the child."""
        if child := self._dismiss():
            await child.wait()

    def _dismiss(self) -> asyncio.subprocess.Process | None:
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        return child

    async def _ask_child(self, body: bytes, many: bool) -> list[IncomingGroup]:
        child = self._child or await self._start()
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(_framed({"many": many, "bytes": len(body)}))
        child.stdin.write(body)
        await child.stdin.drain()
        (length,) = _LENGTH.unpack(await child.stdout.readexactly(_LENGTH.size))
        answer = json.loads(await child.stdout.readexactly(length))
        if "errors" in answer:
            raise BodyError(answer["errors"])
        return [
            IncomingGroup(env_id, size, await child.stdout.readexactly(count))
            for env_id, size, count in answer["groups"]
        ]

    async def _start(self) -> asyncio.subprocess.Process:
        self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "hermes.rollouts.parsing.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=INLINE_BYTES,
        )
        return self._child


def _framed(header: JSONObject) -> bytes:
    text = json.dumps(header).encode()
    return _LENGTH.pack(len(text)) + text


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """The child's loop, until the input ends."""
    while len(prefix := source.read(_LENGTH.size)) == _LENGTH.size:
        request = json.loads(source.read(*_LENGTH.unpack(prefix)))
        body = source.read(request["bytes"])
        groups: list[IncomingGroup] = []
        try:
            groups = parse_slowly(body, many=request["many"])
            header: JSONObject = {"groups": [(g.env_id, g.size, len(g.payload)) for g in groups]}
        except BodyError as error:
            header = {"errors": error.details}
        sink.write(_framed(header))
        sink.writelines(group.payload for group in groups)
        sink.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)
