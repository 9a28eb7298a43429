"""Adapter files as a tar: streamed while it is sent, and unpacked from a file.

Only regular files at the top level of the tar are unpacked, and only those with expected names.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hermes.engine.types import EngineUserError

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""PEFT's file names."""
_BLOCK = tarfile.BLOCKSIZE
_CHUNK_BYTES = 1 << 20
_END = bytes(2 * _BLOCK)


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
    """Unpacks the files with these names, if the tar has them. EngineUserError: it is not a tar."""
    try:
        with tarfile.open(source, "r:") as tar:
            for member in tar:
                if member.name in names and member.isreg():
                    content = tar.extractfile(member)
                    assert content is not None, "a regular file has content"
                    with (folder / member.name).open("wb") as file:
                        shutil.copyfileobj(content, file)
    except tarfile.TarError as error:
        raise EngineUserError(f"the upload is not a tar that can be read: {error}") from error
