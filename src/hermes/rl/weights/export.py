"""Exports trained weights as a PEFT folder, a merged model or a GGUF file.

The adapter is copied from the engine's files, or downloaded from the service, and names its base model as
transformers finds it on this machine. A merged model is complete: it needs neither the adapter nor the base
model. Other weights at the target are never overwritten.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hermes.config.environment import without_stored
from hermes.disk.drafts import draft_folder, sweep
from hermes.errors import HermesError, MissingDependencyError, UsageError
from hermes.rl.weights.source import ADAPTER_FILES, WeightsSource

_QUANTIZATION_KEY = "base_quantization"
"""Written by the engine (engine.lora.peft) into the metadata of the weights."""
_CONVERTER = "convert_hf_to_gguf.py"


def export_adapter(source: WeightsSource, output: Path | None = None) -> Path:
    """Writes the adapter to a folder that peft loads."""
    target = output or source.adapter_folder
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target)
    with draft_folder(target) as draft:
        if source.folder is None:
            _download(source, draft.path)
        else:
            for name in ADAPTER_FILES:
                shutil.copyfile(source.folder / name, draft.path / name)
        _set_base_model(draft.path, _base_model(source, draft.path))
        _check_same_weights(draft.path, target)
        target.mkdir(exist_ok=True)
        for file in draft.path.iterdir():
            file.replace(target / file.name)
    return target


def base_quantization(adapter: Path) -> str | None:
    """How the base model was quantised that the adapter in this folder was trained on; None: it was not."""
    from safetensors import safe_open

    with safe_open(adapter / "adapter_model.safetensors", "np") as file:
        metadata: dict[str, str] = file.metadata() or {}
    return metadata.get(_QUANTIZATION_KEY)


def export_merged(source: WeightsSource, output: Path | None = None) -> Path:
    """Writes the base model with the adapter merged into it."""
    target = output or source.merged_folder
    if output is None and (target / "config.json").exists():
        return target
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is not empty", "name a folder that is not there yet")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingDependencyError("transformers", "train", "merging an adapter into its model") from error
    from transformers.utils import logging

    from hermes.engine.lora.peft import merge_peft

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    adapter = export_adapter(source)
    base = _base_model(source, adapter)
    model = AutoModelForCausalLM.from_pretrained(base)
    merge_peft(model, adapter)
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target)
    with draft_folder(target) as draft:
        whole = draft.path / target.name  # with the permissions of a new folder
        model.save_pretrained(whole)
        AutoTokenizer.from_pretrained(base).save_pretrained(whole)
        whole.rename(target)
    return target


def export_gguf(source: WeightsSource, output: Path | None = None) -> Path:
    """Writes a GGUF file with llama.cpp's converter, if that is installed."""
    converter = find_converter()
    target = output or source.gguf_path
    target.parent.mkdir(parents=True, exist_ok=True)
    merged = export_merged(source)
    sweep(target)
    with draft_folder(target) as draft:
        whole = draft.path / target.name
        command = [sys.executable, str(converter), str(merged), "--outfile", str(whole)]
        env = without_stored(os.environ)
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode != 0:
            reason = done.stderr.strip()[-300:]
            raise HermesError(f"{converter} failed: {reason}", "see what it needs installed")
        whole.replace(target)
    return target


def find_converter() -> Path:
    candidates = [shutil.which(_CONVERTER), str(Path(os.environ.get("LLAMA_CPP", "")) / _CONVERTER)]
    for candidate in candidates:
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    raise HermesError(
        f"GGUF needs llama.cpp's {_CONVERTER}, which is not on the PATH",
        "get llama.cpp and set LLAMA_CPP to its folder",
    )


def _base_model(source: WeightsSource, adapter: Path) -> str:
    """The base model, as transformers finds it."""
    from hermes.models.local import bundled

    model = source.base_model or _adapter_config(adapter)["base_model_name_or_path"]
    return str(bundled.prepare(source.home)) if model == f"hermes/{bundled.NAME}" else model


def _adapter_config(adapter: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    return config


def _set_base_model(adapter: Path, base: str) -> None:
    config = {**_adapter_config(adapter), "base_model_name_or_path": base}
    (adapter / "adapter_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _check_same_weights(adapter: Path, target: Path) -> None:
    """UsageError if the target has files of another adapter."""
    for name in ADAPTER_FILES[1:]:
        if (target / name).exists() and not filecmp.cmp(adapter / name, target / name, shallow=False):
            raise UsageError(f"{target} has other weights already", "name another folder with --output")


def _download(source: WeightsSource, target: Path) -> None:
    from hermes.rl.service import connect
    from hermes.rl.weights.download import download

    if source.service is None:
        raise HermesError(f"the files of {source.path} are not on this machine", "they were removed")
    download(connect(source.home, source.service), source.path, target)
