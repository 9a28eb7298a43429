"""Run as a process of its own: prints the peak memory of training a long batch in three ways, least first."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from hermes.engine.lora.adapter import Adapter
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.load import wrap_model
from hermes.engine.training.forward_backward import forward_backward
from hermes.engine.types import Datum, LoraConfig, Loss

from .naive import cross_entropy, naive_step, peft_twin
from .tiny import tiny_model

SHAPE = {"vocab_size": 32768, "num_hidden_layers": 12, "max_position_embeddings": 4096}
LENGTH = 1500


def peak_bytes() -> int:
    """Of this program alone; `getrusage` would count what its parent held before it started."""
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def train(backbone: Backbone, data: list[Datum], budget_tokens: int) -> int:
    adapter = Adapter(backbone.spec, LoraConfig(rank=4, seed=0), torch.device("cpu"))
    work = forward_backward(backbone, adapter, data, Loss("cross_entropy"), budget_tokens=budget_tokens)
    for _ in work:
        pass
    return peak_bytes()


def main() -> None:
    torch.set_num_threads(1)
    tokens = np.random.default_rng(0).integers(0, 32768, LENGTH)
    data = [Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": np.ones(LENGTH - 1, np.float32)})]
    backbone = wrap_model(tiny_model(**SHAPE), "tiny")
    adapter = Adapter(backbone.spec, LoraConfig(rank=4, seed=0), torch.device("cpu"))
    twin = peft_twin(tiny_model(**SHAPE), adapter)
    before = peak_bytes()
    # A peak never falls, so the order is from what should need least to what should need most.
    peaks = {"recomputed": train(backbone, data, LENGTH // 2), "kept": train(backbone, data, LENGTH)}
    naive_step(twin, data, cross_entropy)
    peaks["naive"] = peak_bytes()
    print(json.dumps({name: peak - before for name, peak in peaks.items()}))


if __name__ == "__main__":
    main()
