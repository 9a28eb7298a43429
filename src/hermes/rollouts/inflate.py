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
    zlib_like = codec()
    parts: list[bytes] = []
    room = limit_bytes
    while data:
        member = zlib_like.decompressobj(_GZIP)
        try:
            part = member.decompress(data, room + 1)
        except zlib_like.error as error:
            raise BadGzip(str(error)) from error
        if len(part) > room:
            raise TooLarge(f"more than {limit_bytes} bytes once inflated")
        if not member.eof:
            raise BadGzip("the stream ends early")
        parts.append(part)
        room -= len(part)
        data = member.unused_data.lstrip(b"\0")
    return b"".join(parts)


class Deflater:
    """One gzip stream, written piece by piece. Call in a thread: it lets others run."""

    def __init__(self) -> None:
        self._stream = codec().compressobj(1, zlib.DEFLATED, _GZIP)

    def piece(self, data: bytes) -> bytes:
        return bytes(self._stream.compress(data))

    def end(self) -> bytes:
        return bytes(self._stream.flush())
