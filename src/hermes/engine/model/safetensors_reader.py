"""Reads tensors of a model's safetensors files, whole or in parts; the rest never enters memory.

Files are mapped one at a time, and what is needed of them is copied.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hermes.engine.types import EngineUserError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
ALL = slice(None)


class SafetensorsReader:
    """Has one file open: a model's layers are in their order."""

    def __init__(self, folder: Path, name: str, dtype: torch.dtype, device: torch.device) -> None:
        """EngineUserError: the folder has no safetensors. `name`: of the model, for errors."""
        self._dtype, self._device = dtype, device
        self._folder, self._name = folder, name
        self._files = _weight_files(folder, name)
        self._open: tuple[str, Any] | None = None
        self._prefix = "" if "embed_tokens.weight" in self._files else "model."

    def has(self, names: Iterable[str]) -> bool:
        """Whether it has all of these."""
        return all(self._full_name(name) in self._files for name in names)

    def matrix(self, name: str, rows: slice = ALL, columns: slice = ALL) -> Tensor:
        return self._placed(self._slice(name, 2)[rows, columns])

    def vector(self, name: str, part: slice = ALL) -> Tensor:
        return self._placed(self._slice(name, 1)[part])

    def stacked(self, parts: Mapping[str, slice]) -> Tensor:
        """The rows of several matrices, or parts of several vectors, one after the other."""
        return self._placed(torch.cat([self._slice(name)[part] for name, part in parts.items()]))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def _placed(self, values: Tensor) -> Tensor:
        return values.to(self._device, self._dtype, copy=True).contiguous()

    def _slice(self, name: str, dimensions: int | None = None) -> Any:
        """The weights, to be cut while they are read; `dimensions`: how many they have to have."""
        values = self._any_slice(name)
        shape = values.get_shape()
        if dimensions is not None and len(shape) != dimensions:
            raise EngineUserError(
                f"The base model '{self._name}' has {name} in {len(shape)} dimensions, not in {dimensions}.",
                "Use a folder whose safetensors files belong to its config.json.",
            )
        return values

    def _any_slice(self, name: str) -> Any:
        from safetensors import SafetensorError, safe_open

        full_name = self._full_name(name)
        file = self._files.get(full_name)
        if file is None:
            raise EngineUserError(
                f"The base model '{self._name}' has no weights named {full_name}.",
                "Use a folder whose safetensors files belong to its config.json.",
            )
        try:
            if self._open is None or self._open[0] != file:
                self._open = None  # unmapped before the next one is mapped
                self._open = file, safe_open(self._folder / file, framework="pt")
            return self._open[1].get_slice(full_name)
        except (SafetensorError, FileNotFoundError) as error:
            raise EngineUserError(
                f"The base model '{self._name}' could not be loaded: {file}: {error}",
                "Download or copy it again.",
            ) from error

    def _full_name(self, name: str) -> str:
        return name if name.startswith("lm_head.") else f"{self._prefix}{name}"


def has_safetensors(folder: Path) -> bool:
    return (folder / _INDEX).is_file() or (folder / _SINGLE).is_file()


def _weight_files(folder: Path, source: str) -> dict[str, str]:
    """The file of every tensor."""
    if (folder / _INDEX).is_file():
        return _read_index(folder / _INDEX, source)
    if not (folder / _SINGLE).is_file():
        raise EngineUserError(
            f"'{source}' has no {_SINGLE} and no {_INDEX}: only safetensors can be read in parts.",
            "Save it once with model.save_pretrained(folder), and use that folder.",
        )
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / _SINGLE, framework="pt") as file:
            return dict.fromkeys(file.keys(), _SINGLE)
    except (SafetensorError, OSError, ValueError) as error:
        raise EngineUserError(
            f"The base model '{source}' could not be loaded: {_SINGLE}: {error}", "Download or copy it again."
        ) from error


def _read_index(path: Path, source: str) -> dict[str, str]:
    """Name of the weights → name of their file, which lies beside the index."""
    try:
        names: dict[str, str] = json.loads(path.read_text())["weight_map"]
        if all(Path(name).name == name for name in names.values()):
            return names
        problem = "it names a file in another folder"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = f"{type(error).__name__} {error}"
    raise EngineUserError(
        f"The base model '{source}' could not be loaded: {path.name}: {problem}", "Download or copy it again."
    )
