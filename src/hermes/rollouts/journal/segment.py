"""The files of the log: numbered segments of checksummed records.

A segment is a magic line and records, each a header (length, checksum, number, kind) and a payload. Numbers
only grow. A record that is cut short or fails its checksum ends the last segment: it was never acknowledged,
because acknowledgement waits for the disk. Anywhere else it is damage, and an error.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from hermes.errors import StoreError
from hermes.rollouts.compression import codec

MAGIC = b"hermes rollouts 1\n"
HEADER = struct.Struct("<IIQB")
_META_LENGTH = struct.Struct("<I")
_SUFFIX = ".log"


class RecordKind(IntEnum):
    GROUP = 1
    """A posted group: its description as JSON, then its bytes."""
    EVENT = 2
    """Any other change of the state, as JSON."""
    SNAPSHOT = 3
    """The state without the groups' bytes, as JSON; earlier records are needed only for those bytes."""
    COPY = 4
    """A group that was moved out of an old segment; laid out as GROUP."""


_KINDS = frozenset(RecordKind)


class LogSegment:
    """One open file. It is closed when nothing refers to it, so a pending read never fails."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT | os.O_EXCL if create else 0)
        self.fd = os.open(path, flags, 0o600)
        self.size = os.fstat(self.fd).st_size
        self.last_number = 0
        self.emptying = False
        """Its live groups are being copied to another segment."""
        self.live: dict[int, int] = {}
        """Ids of the groups whose bytes are stored here and still needed → their size in bytes."""

    def read(self, start: int, end: int) -> bytes:
        data = os.pread(self.fd, end - start, start)
        while len(data) < end - start:
            more = os.pread(self.fd, end - start - len(data), start + len(data))
            if not more:
                raise StoreError(
                    f"{self.path} has become shorter", "another program changed the state directory"
                )
            data += more
        return data

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class RecordLocation(NamedTuple):
    """Where a group's record is stored."""

    segment: LogSegment
    start: int
    """Where the record's payload starts."""
    body: int
    """Where the group's bytes start within the file."""
    end: int

    def read(self) -> bytes:
        return self.segment.read(self.body, self.end)


class SegmentRecord(NamedTuple):
    number: int
    kind: RecordKind
    payload: bytes
    start: int
    """Where the payload starts within the file."""

    def group(self, segment: LogSegment) -> tuple[bytes, RecordLocation]:
        """The group's metadata, and the location of its bytes."""
        (length,) = _META_LENGTH.unpack_from(self.payload)
        body = _META_LENGTH.size + length
        location = RecordLocation(segment, self.start, self.start + body, self.start + len(self.payload))
        return self.payload[_META_LENGTH.size : body], location


def group_payload(meta: bytes, body: bytes) -> tuple[bytes, bytes]:
    """The payload of a group's record, in two parts."""
    return _META_LENGTH.pack(len(meta)) + meta, body


def header(number: int, kind: RecordKind, parts: tuple[bytes, ...]) -> bytes:
    return HEADER.pack(sum(map(len, parts)), _checksum(number, kind, parts), number, kind)


def _checksum(number: int, kind: int, parts: tuple[bytes, ...]) -> int:
    crc32 = codec().crc32
    value: int = crc32(HEADER.pack(0, 0, number, kind))
    for part in parts:
        value = crc32(part, value)
    return value


def list_segments(directory: Path) -> list[Path]:
    """Oldest first."""
    return sorted(path for path in directory.glob(f"*{_SUFFIX}") if path.stem.isdecimal())


def segment_path(directory: Path, index: int) -> Path:
    return directory / f"{index:08d}{_SUFFIX}"


def scan(segment: LogSegment) -> Iterator[SegmentRecord]:
    """The valid records from the beginning; the caller compares their end with the file's size."""
    with segment.path.open("rb") as file:
        file.seek(len(MAGIC))
        while len(head := file.read(HEADER.size)) == HEADER.size:
            length, checksum, number, kind = HEADER.unpack(head)
            start = file.tell()
            if kind not in _KINDS or length > segment.size - start:
                return
            payload = file.read(length)
            if len(payload) < length or _checksum(number, kind, (payload,)) != checksum:
                return
            yield SegmentRecord(number, RecordKind(kind), payload, start)
