"""Reads one rank's part of a model's safetensors files; the rest never enters its memory.

Files are mapped one at a time, and what is needed of them is copied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hermes.engine.types import EngineUserError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
ALL = slice(None)


class CheckpointReader:
    """Has one file open: a model's layers are in their order."""

    def __init__(self, source: str, dtype: torch.dtype, device: torch.device) -> None:
        """EngineUserError: there is no folder or hub repository with safetensors."""
        self._dtype, self._device = dtype, device
        self._folder = _folder(source)
        self._files = _weight_files(self._folder, source)
        self._open: tuple[str, Any] | None = None
        self._prefix = "" if "embed_tokens.weight" in self._files else "model."
        self._name = source

    def has(self, name: str) -> bool:
        return self._full_name(name) in self._files

    def matrix(self, name: str, rows: slice = ALL, columns: slice = ALL) -> Tensor:
        return self._placed(self._slice(name)[rows, columns])

    def vector(self, name: str, part: slice = ALL) -> Tensor:
        return self._placed(self._slice(name)[part])

    def stacked(self, parts: Mapping[str, slice]) -> Tensor:
        """The rows of several matrices, or parts of several vectors, one after the other."""
        return self._placed(torch.cat([self._slice(name)[part] for name, part in parts.items()]))

    def _placed(self, values: Tensor) -> Tensor:
        return values.to(self._device, self._dtype, copy=True).contiguous()

    def _slice(self, name: str) -> Any:
        from safetensors import safe_open

        full_name = self._full_name(name)
        file = self._files.get(full_name)
        if file is None:
            raise EngineUserError(
                f"The base model '{self._name}' has no weights named {full_name}.",
                "Use a folder whose safetensors files belong to its config.json.",
            )
        if self._open is None or self._open[0] != file:
            self._open = None  # unmapped before the next one is mapped
            self._open = file, safe_open(self._folder / file, framework="pt")
        return self._open[1].get_slice(full_name)

    def _full_name(self, name: str) -> str:
        return name if name.startswith("lm_head.") else f"{self._prefix}{name}"


def _folder(source: str) -> Path:
    """The folder itself, or where the hub's files were downloaded to."""
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=["*.safetensors", "*.json"]))
    except (OSError, ValueError) as error:
        raise EngineUserError(
            f"The base model '{source}' could not be loaded: {str(error).splitlines()[0]}",
            "Use a folder with config.json and safetensors, or a hub name that can be reached.",
        ) from error


def _weight_files(folder: Path, source: str) -> dict[str, str]:
    """The file of every tensor."""
    if (folder / _INDEX).is_file():
        index: dict[str, str] = json.loads((folder / _INDEX).read_text())["weight_map"]
        return index
    if not (folder / _SINGLE).is_file():
        raise EngineUserError(
            f"'{source}' has no {_SINGLE} and no {_INDEX}: only safetensors can be read in parts.",
            "Save it once with model.save_pretrained(folder), and use that folder.",
        )
    from safetensors import safe_open

    with safe_open(folder / _SINGLE, framework="pt") as file:
        return dict.fromkeys(file.keys(), _SINGLE)
