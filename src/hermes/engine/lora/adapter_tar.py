"""Adapter files as a tar: streamed while it is sent, and unpacked from a file.

Only regular files at the top level of the tar are unpacked, and only those with expected names.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from hermes.engine.types import EngineUserError

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""PEFT's file names."""
_BLOCK = tarfile.BLOCKSIZE
_CHUNK_BYTES = 1 << 20
_END = bytes(2 * _BLOCK)
_MAX_MEMBERS = 1000


class Tar:
    """An iterable over the bytes of a tar of known size; the files must not change meanwhile."""

    def __init__(self, files: Mapping[str, Path | None]) -> None:
        """Files by their names in the tar; None is an empty file."""
        self._files = files
        self._sizes = {name: path.stat().st_size if path else 0 for name, path in files.items()}

    @property
    def size_bytes(self) -> int:
        return sum(_BLOCK + size + -size % _BLOCK for size in self._sizes.values()) + len(_END)

    def __iter__(self) -> Iterator[bytes]:
        for name, path in self._files.items():
            info = tarfile.TarInfo(name)
            info.size = self._sizes[name]
            yield info.tobuf(tarfile.USTAR_FORMAT)
            if path is not None:
                with path.open("rb") as file:
                    while chunk := file.read(_CHUNK_BYTES):
                        yield chunk
                yield bytes(-info.size % _BLOCK)
        yield _END


def unpack(source: Path, folder: Path, names: Sequence[str]) -> None:
    """Unpacks the files with these names, if the tar has them. EngineUserError: it is not a tar.

    A file is written as it lies in the tar, so that no more is written than was sent: a sparse file, which
    would expand, is refused, and extended headers are skipped.
    """
    try:
        with source.open("rb") as stream:
            for info in _members(stream, source.stat().st_size):
                if info.name in names and info.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
                    with (folder / info.name).open("wb") as file:
                        _copy_bytes(stream, file, info.size)
    except tarfile.TarError as error:
        raise EngineUserError(f"the upload is not a tar that can be read: {error}") from error


def _members(stream: BinaryIO, total_bytes: int) -> Iterator[tarfile.TarInfo]:
    """The headers of a tar, each with the stream at the beginning of its content."""
    for _ in range(_MAX_MEMBERS):
        block = stream.read(_BLOCK)
        if not block.strip(b"\0"):
            return
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        begin = stream.tell()
        if not 0 <= info.size <= total_bytes - begin:
            raise tarfile.ReadError(f"{info.name[:200]!r} is longer than the archive")
        if info.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(f"{info.name[:200]!r} is a sparse file")
        yield info
        stream.seek(begin + info.size + -info.size % _BLOCK)
    raise tarfile.ReadError(f"it has more than {_MAX_MEMBERS} entries")


def _copy_bytes(stream: BinaryIO, file: BinaryIO, size: int) -> None:
    while size:
        chunk = stream.read(min(size, _CHUNK_BYTES))
        if not chunk:
            raise tarfile.ReadError("it ends in the middle of a file")
        file.write(chunk)
        size -= len(chunk)
