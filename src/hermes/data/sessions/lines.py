"""The lines of a session file with their places, so that a message is read again when it is stored.

Only regular files are opened, and no link leads out of the folder that was named. A line over the limit is
reported and passed over without being held in memory. `.zst` files are unpacked into a temporary file.
"""

from __future__ import annotations

import os
import stat
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hermes.core import JSONObject
from hermes.data.formats.base import BadRowError
from hermes.data.lines import parse_line
from hermes.data.sessions.base import Notes
from hermes.errors import HostError, MissingDependencyError, UsageError
from hermes.safety.paths import open_inside

MAX_LINE_BYTES = 32 << 20
_MAX_UNPACKED_BYTES, _FREE_UNPACKED_BYTES, _MAX_RATIO = 4 << 30, 256 << 20, 100
"""A session is text, which shrinks to a tenth or so: what grows more is not unpacked onto the disk."""
_COPY_BYTES = 1 << 20


class PlacedLine(NamedTuple):
    place: int
    """The arguments of `SessionFile.row`."""
    row: JSONObject
    size_bytes: int


class SessionFile:
    """One file of JSON lines, open for as long as its sessions are read."""

    def __init__(self, root: Path, path: Path) -> None:
        """UsageError: it is no regular file, or it cannot be read."""
        self.path = path
        self._file = _open(root, path)
        self.updated_ms = int(os.fstat(self._file.fileno()).st_mtime * 1000)
        if path.suffix == ".zst":
            self._file = _unpacked(path, self._file)
        self._offsets = array("q")
        self._numbers = array("l")

    def rows(self, notes: Notes, limit: int | None = None) -> Iterator[PlacedLine]:
        """Every line that is a JSON object, from the first one; the others are problems."""
        self._file.seek(0)
        offset = number = 0
        while limit is None or number < limit:
            data = self._file.readline(MAX_LINE_BYTES + 1)
            if not data:
                return
            start, number = offset, number + 1
            offset += len(data)
            if len(data) > MAX_LINE_BYTES:
                while not data.endswith(b"\n") and (data := self._file.readline(_COPY_BYTES)):
                    offset += len(data)
                notes.problem(number, f"longer than {MAX_LINE_BYTES >> 20} MiB")
                continue
            if not data.strip():
                continue
            line = parse_line(number, data)
            if line.row is None:
                torn = (
                    "" if data.endswith(b"\n") else "; it has no end: the file is cut, or still being written"
                )
                notes.problem(number, f"{line.problem}{torn}")
                continue
            self._offsets.append(start)
            self._numbers.append(number)
            yield PlacedLine(len(self._offsets) - 1, line.row, len(data))
            self._file.seek(offset)

    def row(self, index: int) -> JSONObject:
        """BadRowError: the file has changed since its lines were placed."""
        self._file.seek(self._offsets[index])
        row = parse_line(self._numbers[index], self._file.readline(MAX_LINE_BYTES + 1)).row
        if row is None:
            raise BadRowError("the file was changed while it was read")
        return row

    def number(self, index: int) -> int:
        return self._numbers[index]

    def close(self) -> None:
        self._file.close()


def _open(root: Path, path: Path) -> BinaryIO:
    try:
        descriptor = open_inside(root, str(path.relative_to(root)), os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, PermissionError) as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}", "name a file you can read"
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(
            f"{path} is not a regular file", "a session is a file; pipes and devices are not read"
        )
    return os.fdopen(descriptor, "rb", buffering=1 << 18)


def _unpacked(path: Path, packed: BinaryIO) -> BinaryIO:
    try:
        import zstandard
    except ImportError as error:
        raise MissingDependencyError("zstandard", "train", "reading .zst files") from error
    target: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115
    size_bytes = 0
    packed_bytes = os.fstat(packed.fileno()).st_size
    limit_bytes = min(_MAX_UNPACKED_BYTES, max(_FREE_UNPACKED_BYTES, _MAX_RATIO * packed_bytes))
    try:
        with packed, zstandard.ZstdDecompressor().stream_reader(packed) as reader:
            while data := reader.read(_COPY_BYTES):
                size_bytes += len(data)
                if size_bytes > limit_bytes:
                    raise UsageError(
                        f"{path} unpacks to more than {limit_bytes >> 20} MiB", "unpack it yourself: zstd -d"
                    )
                target.write(data)
    except zstandard.ZstdError as error:
        raise UsageError(f"cannot unpack {path}: {error}", "is it a zstd file?") from error
    except OSError as error:
        raise HostError(
            f"cannot unpack {path} into {tempfile.gettempdir()}: {error.strerror}",
            "set TMPDIR to a larger disk",
        ) from error
    return target
