"""Reads the metadata and the tensors of a GGUF file, as far as the bundled model needs them.

Supports version 3, little-endian, and three tensor types (F32, Q4_1, Q8_0); anything else is an error. Used
instead of the `gguf` package, which spends seconds on the vocabulary.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import JSON, JSONObject

if TYPE_CHECKING:
    import torch

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_BLOCK = 32
"""Values in a block of a quantised tensor."""


class GGUFError(ValueError):
    """The file has a format that this reader does not support, or is damaged."""


_DAMAGE = (struct.error, ValueError, KeyError, TypeError, OverflowError, MemoryError, RuntimeError)


@dataclass(frozen=True, slots=True)
class GGUFFile:
    metadata: JSONObject
    tensors: dict[str, Callable[[], torch.Tensor]]
    """By name, each read and dequantised to float32 when called."""


def read_gguf(path: Path) -> GGUFFile:
    """Opens `path`; each tensor stays on disk until its reader is called."""
    try:
        with path.open("rb") as file:
            if file.read(8) != _MAGIC + struct.pack("<I", 3):
                raise GGUFError(f"{path} is not a GGUF file of version 3")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise GGUFError(f"{path} cannot be read: {error.strerror}") from error
    cursor = _Cursor(data, at=8)
    try:
        return _read_header(cursor)
    except _DAMAGE as error:
        raise GGUFError(f"{path} is damaged near byte {min(cursor.at, len(data))}: {error}") from error


def _read_header(cursor: _Cursor) -> GGUFFile:
    data = cursor.data
    tensor_count, value_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {cursor.string(): cursor.value(cursor.scalar("I")) for _ in range(value_count)}
    infos = [_tensor_info(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if alignment == 0:
        raise GGUFError("an alignment of 0")
    start = -(-cursor.at // alignment) * alignment
    return GGUFFile(
        metadata, {name: _reader(data, start + at, kind, shape) for name, shape, kind, at in infos}
    )


class _Cursor:
    def __init__(self, data: mmap.mmap, at: int) -> None:
        self.data = data
        self.at = at

    def scalar(self, code: str) -> JSON:
        value = struct.unpack_from(f"<{code}", self.data, self.at)[0]
        self.at += struct.calcsize(f"<{code}")
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        if length > len(self.data) - self.at:
            raise GGUFError(f"a text of {length} bytes")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8")

    def value(self, kind: int) -> JSON:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind in (_STRING, _ARRAY):
            return [self.value(kind) for _ in range(count)]
        code = f"<{count}{_SCALARS[kind]}"
        self.at += struct.calcsize(code)
        return list(struct.unpack_from(code, self.data, self.at - struct.calcsize(code)))


def _tensor_info(cursor: _Cursor) -> tuple[str, list[int], int, int]:
    name = cursor.string()
    dimensions = [cursor.scalar("Q") for _ in range(cursor.scalar("I"))]
    return name, dimensions[::-1], cursor.scalar("I"), cursor.scalar("Q")


def _reader(data: mmap.mmap, at: int, kind: int, shape: list[int]) -> Callable[[], torch.Tensor]:
    def read() -> torch.Tensor:
        import torch

        if kind not in _DEQUANTISERS:
            raise GGUFError(f"tensors of type {kind} are not supported")
        values_per_block, block_bytes, dequantise = _DEQUANTISERS[kind]
        blocks = math.prod(shape) // values_per_block
        if blocks * block_bytes > len(data) - at:
            raise GGUFError(f"a tensor of the shape {shape} is longer than the file")
        try:
            raw = torch.frombuffer(bytearray(data[at : at + blocks * block_bytes]), dtype=torch.uint8)
            return dequantise(raw.view(blocks, block_bytes)).reshape(shape)
        except _DAMAGE as error:
            raise GGUFError(f"a tensor of the shape {shape} is damaged: {error}") from error

    return read


def _f32(blocks: torch.Tensor) -> torch.Tensor:
    import torch

    return blocks.view(torch.float32)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    """Scale and offset in half precision, then 32 values of four bits, the low halves first."""
    import torch

    scale, offset = (blocks[:, at : at + 2].contiguous().view(torch.float16).float() for at in (0, 2))
    packed = blocks[:, 4:]
    return torch.cat((packed & 15, packed >> 4), dim=1) * scale + offset


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    """A scale in half precision, then 32 values of eight bits."""
    import torch

    scale = blocks[:, :2].contiguous().view(torch.float16).float()
    return blocks[:, 2:].contiguous().view(torch.int8) * scale


_DEQUANTISERS: dict[int, tuple[int, int, Callable[[torch.Tensor], torch.Tensor]]] = {
    0: (1, 4, _f32),
    3: (_BLOCK, 20, _q4_1),
    8: (_BLOCK, 34, _q8_0),
}
"""Per tensor type: values and bytes in a block, and how to read it."""
