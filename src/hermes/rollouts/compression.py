"""Gzip, both ways, bounded. Uses the `isal` package's faster drop-in for zlib where it is installed."""

from __future__ import annotations

import asyncio
import functools
import zlib
from types import ModuleType

_GZIP = 31  # zlib's window argument for the gzip format
_INLINE_BYTES = 256 << 10
_INLINE_INFLATED_BYTES = 2 << 20


class BadGzip(Exception):
    """Not gzip, or cut short, or damaged."""


class TooLarge(Exception):
    """More than the limit once inflated."""


@functools.cache
def codec() -> ModuleType:
    """zlib, or what does the same faster."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


async def inflated(data: bytes, limit_bytes: int) -> bytes:
    """`inflate`, off the event loop unless it is quick."""
    if len(data) <= _INLINE_BYTES:
        try:
            return inflate(data, min(limit_bytes, _INLINE_INFLATED_BYTES))
        except TooLarge:
            if limit_bytes <= _INLINE_INFLATED_BYTES:
                raise
    return await asyncio.to_thread(inflate, data, limit_bytes)


def inflate(data: bytes, limit_bytes: int) -> bytes:
    """All members of a gzip stream, one after the other."""
    parts: list[bytes] = []
    room = limit_bytes
    while data:
        part, data = _member(data, room)
        if len(part) > room:
            raise TooLarge(f"more than {limit_bytes} bytes once inflated")
        parts.append(part)
        room -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _member(data: bytes, room: int) -> tuple[bytes, bytes]:
    """The first member, as far as one byte more than there is room for, and what follows it.

    A stream says at its end how long its last member is. Asking for just that much first, which is nearly
    always all, spares a quarter of the time: the buffer need not grow step by step.
    """
    zlib_like = codec()
    member = zlib_like.decompressobj(_GZIP)
    try:
        part: bytes = member.decompress(data, min(int.from_bytes(data[-4:], "little"), room) + 1)
        if not member.eof and len(part) <= room:
            part += member.decompress(member.unconsumed_tail, room + 1 - len(part))
    except zlib_like.error as error:
        raise BadGzip(str(error)) from error
    if not member.eof and len(part) <= room:
        raise BadGzip("the stream ends early")
    return part, member.unused_data.lstrip(b"\0")


class Deflater:
    """One gzip stream, written piece by piece. Call in a thread: it lets others run."""

    def __init__(self) -> None:
        self._stream = codec().compressobj(1, zlib.DEFLATED, _GZIP)

    def piece(self, data: bytes) -> bytes:
        return bytes(self._stream.compress(data))

    def end(self) -> bytes:
        return bytes(self._stream.flush())
