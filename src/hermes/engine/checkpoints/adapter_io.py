"""Saves adapters as folders: PEFT files, and the optimizer state that an exact resumption needs.

A folder is replaced atomically: the new one is written and flushed next to it, and then renamed. A full disk
or a kill at any moment leaves either the old folder or the new one, never a mixture.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from hermes.engine.checkpoints.store import replace_folder
from hermes.engine.lora.weights import LoraWeights
from hermes.engine.spec import ModelSpec
from hermes.engine.types import EngineUserError, LoraConfig
from hermes.errors import HostError

_OPTIMIZER, _STATE = "optimizer.safetensors", "state.json"
_FORMAT = 1


def save_adapter(
    folder: Path,
    weights: LoraWeights,
    config: LoraConfig,
    spec: ModelSpec,
    optimizer: Mapping[str, Tensor] | None = None,
) -> int:
    """Writes the folder; returns its size in bytes. HostError: writing failed, nothing has changed."""
    from safetensors.torch import save_file

    from hermes.engine.lora.peft import save_peft

    draft = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        save_peft(draft, weights, config, spec)
        if optimizer is not None:
            save_file(
                {name: tensor.cpu().contiguous() for name, tensor in optimizer.items()}, draft / _OPTIMIZER
            )
            (draft / _STATE).write_text(json.dumps({"format": _FORMAT, "lora": asdict(config)}))
        size = sum(_flush(path) for path in draft.iterdir())
        replace_folder(draft, folder)
    except Exception as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError) or "Error while serializing" in str(error):
            raise HostError(
                f"The adapter could not be saved in {folder.parent}: {error}",
                "Free some space there, or choose another folder.",
            ) from error
        raise
    return size


def load_adapter(
    folder: Path, spec: ModelSpec, optimizer: bool
) -> tuple[LoraWeights, LoraConfig, dict[str, Tensor] | None]:
    """Weights, configuration and optimizer state of a folder.

    EngineUserError: it is not an adapter, or has no optimizer state although `optimizer` is set.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from hermes.engine.lora.peft import load_peft

    weights, config = load_peft(folder, spec)
    if not optimizer:
        return weights, config, None
    try:
        return weights, config, load_file(folder / _OPTIMIZER)
    except (OSError, SafetensorError) as error:
        raise EngineUserError(
            f"{folder} has no optimizer state that can be read: {error}", "Load it without the optimizer."
        ) from error


def _flush(path: Path) -> int:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size
