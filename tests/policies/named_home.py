"""A home with a run that has ended, and adapters of two of its steps."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from hermes.core.clock import now_ms
from hermes.rl.run import RlRun, RunState, RunStatus
from hermes.rl.run_config import RunConfig

RUN = "letters-1118"


def write_adapter(model: Path, folder: Path, targets: list[str], seed: int) -> None:
    """An adapter that changes what the model says."""
    torch.manual_seed(seed)
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model), LoraConfig(r=2, target_modules=targets)
    )
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 1)
    adapted.save_pretrained(str(folder))


def home_with_run(folder: Path, model: Path) -> Path:
    run = RlRun(folder, RUN)
    for step in (2, 4):
        adapter = run.folder / "engine" / "01RUN" / "sampler_weights" / f"step-{step}"
        write_adapter(model, adapter, ["q_proj", "down_proj"], step)
    section = {"model": str(model), "device": "cpu", "service": None, "toolsets": []}
    RunConfig.parse({"env": {}, "run": section}, "test").write(run.folder)
    path = "tinker://01RUN/{}/step-{}"
    kept = [[step, path.format("weights", step), path.format("sampler_weights", step)] for step in (2, 4)]
    state = {"format": 1, "kind": "rl", "settings": {}, "kept": kept, "best": None}
    (run.folder / "training.json").write_text(json.dumps(state))
    run.write_status(RunStatus(state=RunState.COMPLETED, started_at_ms=now_ms(), ended_at_ms=now_ms()))
    return run.home
