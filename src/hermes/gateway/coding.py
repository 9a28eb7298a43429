"""Bodies without their content coding, never larger than a bound: a few bytes can unpack to gigabytes."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import Protocol

from hermes.errors import UsageError


class Decoder(Protocol):
    def decode(self, data: bytes) -> bytes: ...


class _Plain:
    def decode(self, data: bytes) -> bytes:
        return data


_MOST_MEMBERS = 10_000
"""Most members of a gzip body: millions of empty ones are small, and cost a decoder each."""
_SLICE_BYTES = 4_096
"""Read at once: what follows a member is copied for each of them."""


class _Deflated:
    """gzip and deflate, of several members, as far as the bounds; what follows is left out."""

    def __init__(self, limit_bytes: int) -> None:
        self._left_bytes = limit_bytes
        self._left_members = _MOST_MEMBERS
        self._inner = zlib.decompressobj(wbits=47)

    def decode(self, data: bytes) -> bytes:
        slices = (data[at : at + _SLICE_BYTES] for at in range(0, len(data), _SLICE_BYTES))
        return b"".join(part for piece in slices for part in self._decode(piece))

    def _decode(self, data: bytes) -> Iterator[bytes]:
        while data and self._left_bytes > 0 and self._left_members > 0:
            if self._inner.eof:
                self._inner = zlib.decompressobj(wbits=47)
                self._left_members -= 1
            part = self._inner.decompress(data, self._left_bytes)
            self._left_bytes -= len(part)
            yield part
            data = self._inner.unused_data or self._inner.unconsumed_tail


def open_decoder(coding: str, limit_bytes: int) -> Decoder | None:
    """A decoder of a response's content coding; None: the record cannot read it."""
    if coding in ("", "identity"):
        return _Plain()
    if coding in ("gzip", "x-gzip", "deflate"):
        return _Deflated(limit_bytes)
    return None


def plain_body(body: bytes, coding: str, limit_bytes: int) -> bytes:
    """The body of a request without its content coding; as it is if the coding cannot be read.

    UsageError: it unpacks to more bytes than the limit.
    """
    if coding in ("", "identity") or not body:
        return body
    try:
        plain = _unpacked(body, coding, limit_bytes + 1)
    except (zlib.error, ImportError, ValueError):
        return body
    if plain is None:
        return body
    if len(plain) > limit_bytes:
        raise UsageError(f"the request unpacks to more than {limit_bytes} bytes")
    return plain


def _unpacked(body: bytes, coding: str, limit_bytes: int) -> bytes | None:
    if coding != "zstd":
        decoder = open_decoder(coding, limit_bytes)
        return decoder.decode(body) if decoder else None
    import zstandard

    try:
        reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body), read_across_frames=True)
        return reader.read(limit_bytes)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
