"""What a run has learned, as files others can load: a PEFT folder, a merged model, a GGUF file.

The adapter is copied as the engine saved it, with the base model's name as it can be found on this machine. A
merged model is complete: it needs neither the adapter nor its base any more.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hermes.config.drafts import draft_folder, sweep
from hermes.config.environment import without_stored
from hermes.errors import HermesError, MissingDependencyError, UsageError
from hermes.rl.results import kept
from hermes.rl.run import Run

_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_CONVERTER = "convert_hf_to_gguf.py"


def choose(run: Run, step: int | None) -> dict[str, Any]:
    """The checkpoint of that step; None: the newest."""
    checkpoints = kept(run)
    if not checkpoints:
        raise UsageError(f"run {run.run_id} has no checkpoint yet", "it saves one at its end at the latest")
    if step is None:
        return checkpoints[-1]
    for each in checkpoints:
        if each["step"] == step:
            return each
    steps = ", ".join(str(each["step"]) for each in checkpoints)
    raise UsageError(f"run {run.run_id} has no checkpoint of step {step}", f"it has: {steps}")


def export_adapter(run: Run, step: int | None = None, output: Path | None = None) -> Path:
    """Copies the adapter to a folder that peft loads."""
    checkpoint = choose(run, step)
    source: Path = checkpoint["folder"]
    target = output or run.folder / "weights" / f"step-{checkpoint['step']}"
    missing = [name for name in _ADAPTER if not (source / name).is_file()]
    if missing:
        _download(run, checkpoint, target)
        _name_base(target, base_folder(run))
        return target
    target.mkdir(parents=True, exist_ok=True)
    for name in _ADAPTER:
        shutil.copyfile(source / name, target / name)
    _name_base(target, base_folder(run))
    return target


def export_merged(run: Run, step: int | None = None, output: Path | None = None) -> Path:
    """The base model with the adapter in it."""
    checkpoint = choose(run, step)
    target = output or run.folder / "merged" / f"step-{checkpoint['step']}"
    if output is None and (target / "config.json").exists():
        return target
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is not empty", "name a folder that is not there yet")
    try:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingDependencyError("peft", "train", "merging an adapter into its model") from error
    adapter = export_adapter(run, checkpoint["step"])
    base = base_folder(run)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(adapter))
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target)
    with draft_folder(target) as draft:
        whole = draft.path / target.name  # with the rights of any new folder
        model.merge_and_unload().save_pretrained(whole)
        AutoTokenizer.from_pretrained(base).save_pretrained(whole)
        whole.rename(target)
    return target


def export_gguf(run: Run, step: int | None = None, output: Path | None = None) -> Path:
    """By llama.cpp's converter, where that is installed."""
    converter = find_converter()
    checkpoint = choose(run, step)
    target = output or run.folder / "weights" / f"step-{checkpoint['step']}.gguf"
    target.parent.mkdir(parents=True, exist_ok=True)
    merged = export_merged(run, checkpoint["step"])
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
    places = [shutil.which(_CONVERTER), str(Path(os.environ.get("LLAMA_CPP", "")) / _CONVERTER)]
    for place in places:
        if place and Path(place).is_file():
            return Path(place)
    raise HermesError(
        f"GGUF needs llama.cpp's {_CONVERTER}, which is not on the PATH",
        "get llama.cpp and set LLAMA_CPP to its folder",
    )


def base_folder(run: Run) -> str:
    """The base model, as transformers finds it."""
    from hermes.models import bundled

    model: str = run.config()["run"]["model"]
    return str(bundled.prepare(run.home)) if model == f"hermes/{bundled.NAME}" else model


def _name_base(folder: Path, base: str) -> None:
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = base
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")


def _download(run: Run, checkpoint: dict[str, Any], target: Path) -> Path:
    """From a service elsewhere."""
    from hermes.rl.download import download
    from hermes.rl.service import connect

    service = run.config()["run"]["service"]
    if service is None:
        raise HermesError(f"{checkpoint['path']} is not in {run.folder / 'engine'}", "its files were removed")
    return download(connect(run.home, service), checkpoint["weights"], target)
