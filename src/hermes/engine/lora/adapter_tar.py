"""Files on the wire: a plain tar that is made while it is sent, and read from a file.

Only regular files at the top of the tar are taken out, by names that are known beforehand.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hermes.engine.types import EngineUserError

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What PEFT calls them."""
_BLOCK = tarfile.BLOCKSIZE
_CHUNK_BYTES = 1 << 20
_END = bytes(2 * _BLOCK)


class Tar:
    """An iterable of bytes whose number is known; the files must not change meanwhile."""

    def __init__(self, files: Mapping[str, Path | None]) -> None:
        """By their names in the tar; None is an empty one."""
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
    """Puts those of the names that the tar has into the folder. EngineUserError: it is no tar."""
    try:
        with tarfile.open(source, "r:") as tar:
            for member in tar:
                if member.name in names and member.isreg():
                    content = tar.extractfile(member)
                    assert content is not None, "a regular file has content"
                    with (folder / member.name).open("wb") as file:
                        shutil.copyfileobj(content, file)
    except tarfile.TarError as error:
        raise EngineUserError(f"what was sent is not a tar that can be read: {error}") from error
