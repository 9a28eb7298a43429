"""Server-sent events: the data of each event, from bytes as they arrive."""

from __future__ import annotations

from collections.abc import Iterator


class EventDecoder:
    """One stream. Lines end with LF or CRLF; other separators may occur inside a JSON text."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> Iterator[bytes]:
        """The data of every event that is now complete."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data.clear()

    def end(self) -> Iterator[bytes]:
        """The last event, where the server did not close it with an empty line."""
        yield from self.feed(b"\n\n")
