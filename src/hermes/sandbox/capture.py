"""A command's output in bounded memory: all of it, or its head and tail."""

from __future__ import annotations

import codecs

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
