"""Bounded gzip compression and decompression, with `isal`'s faster zlib where it is installed."""

from __future__ import annotations

import asyncio
import functools
import zlib
from types import ModuleType

GZIP_FROM_BYTES = 1000
"""Smaller responses are sent uncompressed."""
_GZIP_WINDOW = 31  # zlib's `wbits` for the gzip format
_WINDOW_BYTES = 64 << 10
_MAX_MEMBERS = 20_000
"""bgzip, the tool that writes the most, writes one for 64 KB."""
_INLINE_BYTES = 256 << 10
_INLINE_INFLATED_BYTES = 2 << 20
_INLINE_DEFLATE_BYTES = 64 << 10


class BadGzip(Exception):
    """The data is not gzip, is truncated, or is damaged."""


class TooLarge(Exception):
    """The data is larger than the limit once decompressed."""


@functools.cache
def codec() -> ModuleType:
    """zlib, or isal's module of the same interface."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


async def decompress(data: bytes, limit_bytes: int) -> bytes:
    """`inflate`, in a thread unless it is quick."""
    if len(data) <= _INLINE_BYTES:
        try:
            return inflate(data, min(limit_bytes, _INLINE_INFLATED_BYTES))
        except TooLarge:
            if limit_bytes <= _INLINE_INFLATED_BYTES:
                raise
    return await asyncio.to_thread(inflate, data, limit_bytes)


def inflate(data: bytes, limit_bytes: int) -> bytes:
    """All members of a gzip stream, concatenated. BadGzip; TooLarge."""
    if not data:
        return b""
    part, rest = _inflate_member(data, limit_bytes)
    if not rest:
        return _within(part, limit_bytes)
    return _inflate_further(_within(part, limit_bytes), rest, limit_bytes)


def _within(part: bytes, limit_bytes: int) -> bytes:
    if len(part) > limit_bytes:
        raise _too_much(limit_bytes)
    return part


def _too_much(limit_bytes: int) -> TooLarge:
    return TooLarge(f"more than {limit_bytes} bytes once decompressed")


def _inflate_further(first: bytes, data: bytes, limit_bytes: int) -> bytes:
    """The first member and those after it, read in windows: a member costs no copy of all that follows."""
    zlib_like = codec()
    output, members = bytearray(first), 1
    member, position, window = zlib_like.decompressobj(_GZIP_WINDOW), 0, b""
    while window or position < len(data):
        if not window:
            window, position = data[position : position + _WINDOW_BYTES], position + _WINDOW_BYTES
        try:
            output += member.decompress(window, limit_bytes - len(output) + 1)
        except zlib_like.error as error:
            raise BadGzip(str(error)) from error
        if len(output) > limit_bytes:
            raise _too_much(limit_bytes)
        window = member.unconsumed_tail
        if member.eof:
            window = member.unused_data.lstrip(b"\0")
            members += 1
            if members > _MAX_MEMBERS:
                raise BadGzip(f"more than {_MAX_MEMBERS} members")
            member = zlib_like.decompressobj(_GZIP_WINDOW)
            while not window and position < len(data):
                window = data[position : position + _WINDOW_BYTES].lstrip(b"\0")
                position += _WINDOW_BYTES
            if not window:
                return bytes(output)
    raise BadGzip("the stream ends early")


def _inflate_member(data: bytes, room: int) -> tuple[bytes, bytes]:
    """The first member, up to one byte more than there is room for, and the data after it.

    The last four bytes of a stream are the size of its last member. Allocating that much first, which is
    nearly always all of it, saves a quarter of the time: the buffer need not grow step by step.
    """
    zlib_like = codec()
    member = zlib_like.decompressobj(_GZIP_WINDOW)
    try:
        part: bytes = member.decompress(data, min(int.from_bytes(data[-4:], "little"), room) + 1)
        if not member.eof and len(part) <= room:
            part += member.decompress(member.unconsumed_tail, room + 1 - len(part))
    except zlib_like.error as error:
        raise BadGzip(str(error)) from error
    if not member.eof and len(part) <= room:
        raise BadGzip("the stream ends early")
    return part, member.unused_data.lstrip(b"\0")


async def compress(data: bytes) -> bytes:
    """`data` as one gzip stream; in a thread unless it is quick."""
    if len(data) <= _INLINE_DEFLATE_BYTES:
        return _deflate(data)
    return await asyncio.to_thread(_deflate, data)


def _deflate(data: bytes) -> bytes:
    deflater = Deflater()
    return deflater.compress(data) + deflater.flush()


class Deflater:
    """One gzip stream, written in parts. Call it in a thread: zlib releases the interpreter."""

    def __init__(self) -> None:
        self._stream = codec().compressobj(1, zlib.DEFLATED, _GZIP_WINDOW)

    def compress(self, data: bytes) -> bytes:
        return bytes(self._stream.compress(data))

    def flush(self) -> bytes:
        return bytes(self._stream.flush())
