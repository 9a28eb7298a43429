"""Exports trained weights as a PEFT folder, a merged model or a GGUF file.

The adapter is copied from the engine's files, or downloaded from the service, and names its base model as
transformers finds it on this machine. A merged model is complete: it needs neither the adapter nor the base
model. Other weights at the target are never overwritten. A download goes through the public SDK: the service
exports the weights, and they are fetched file by file.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.config.environment import without_stored
from hermes.disk.drafts import draft_folder, sweep
from hermes.errors import HermesError, MissingDependencyError, UsageError
from hermes.rl.weights.source import ADAPTER_FILES, WeightsSource
from hermes.serving.fetch import fetch_file

if TYPE_CHECKING:
    import tinker

    from hermes.training.service.client import ServiceConnection


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

    if source.service is None:
        raise HermesError(f"the files of {source.path} are not on this machine", "they were removed")
    download(connect(source.home, source.service), source.path, target)


_TIMEOUT_S = 600.0
_CLOSE_TIMEOUT_S = 5.0
_TRAINING = "weights"
_EXPORT_TTL_S = 3600
"""How long the service keeps the export: the shortest time it offers."""


def download(connection: ServiceConnection, path: str, target: Path) -> None:
    """Writes the adapter's files into the folder. `path`: tinker://RUN/KIND/NAME, or tinker://RUN."""
    import tinker

    from hermes.training.service.client import check_reachable

    if connection.local:
        check_reachable(connection.url)
    try:
        service = tinker.ServiceClient(base_url=connection.base_url, api_key=connection.key)
        try:
            rest = tinker.RestClient(base_url=connection.base_url, api_key=connection.key)
            _export_and_fetch(service, rest, _training_path(rest, path), target)
        finally:
            with contextlib.suppress(tinker.TinkerError, TimeoutError):
                service.close("success").result(timeout=_CLOSE_TIMEOUT_S)
    except (tinker.TinkerError, OSError, ValueError) as error:
        raise HermesError(
            f"{path} cannot be fetched from {connection.url}: {error}",
            "check TINKER_API_KEY and that it is up",
        ) from error


def _training_path(rest: tinker.RestClient, path: str) -> str:
    """The checkpoint that training resumes from: a service exports no others."""
    run_id, _, name = path.removeprefix("tinker://").partition("/")
    kind, _, name = name.partition("/")
    if kind == _TRAINING:
        return path
    saved = rest.list_checkpoints(run_id).result().checkpoints
    paths = {checkpoint.tinker_path: checkpoint.time for checkpoint in saved}
    names = [saved for saved in paths if f"/{_TRAINING}/" in saved]
    if name:
        names = [saved for saved in names if saved == f"tinker://{run_id}/{_TRAINING}/{name}"]
    if not names:
        raise HermesError(
            f"the service has no checkpoint tinker://{run_id}/{_TRAINING}/{name or '…'} to export",
            f"it has: {', '.join(sorted(paths)) or 'none of this run'}",
        )
    return max(names, key=lambda saved: paths[saved])


def _export_and_fetch(
    service: tinker.ServiceClient, rest: tinker.RestClient, weights_path: str, target: Path
) -> None:
    client = service.create_training_client_from_state(weights_path)
    export = client.save_weights_external(f"export-{time.time_ns()}", ttl_seconds=_EXPORT_TTL_S)
    files = rest.get_external_weights_urls(export.result().path).result().urls
    target.mkdir(parents=True, exist_ok=True)
    for name, address in files.items():
        fetch_file(address, target / Path(name).name, _TIMEOUT_S)
