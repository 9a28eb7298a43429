"""The Triton kernels against the plain path, by Triton's interpreter: it needs the package, not a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hermes.engine.adapter import Adapter, Blocks
from hermes.engine.backbone import wrap_model
from hermes.engine.types import LoraConfig
from tests.engine.tiny import tiny_model

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")
@pytest.mark.parametrize("check", ["hidden", "draw", "copy"])
def test_a_kernel_gives_what_the_plain_path_gives(check: str) -> None:
    environ = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.engine.interpreted", check]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_b_matrices_on_one_diagonal_change_no_output_and_no_gradient() -> None:
    backbone = wrap_model(tiny_model("qwen2"), "tiny")
    adapter = Adapter(backbone.spec, LoraConfig(rank=4, seed=1), torch.device("cpu"))
    with torch.no_grad():
        adapter.parameters.normal_(std=0.1)
    blocks = Blocks.plan(backbone.spec, adapter.config, adapter.slots, torch.device("cpu"))
    assert blocks is not None
    plain = adapter.weights(torch.float32)
    results = []
    for weights in (plain, blocks.fill(plain)):
        layer, x = backbone.layers[0], torch.linspace(-1, 1, 5 * 64).view(5, 64)
        total = torch.zeros(())
        for site, weight in (((0, "qkv"), layer.qkv), ((0, "gate_up"), layer.gate_up), ((0, "o"), layer.o)):
            widths = [backbone.spec.linears[member].outputs for member in backbone.spec.groups[site]]
            delta = weights.at(site)
            assert delta is not None
            total = total + sum(out.square().sum() for out in delta.project(x, weight, None, widths))
        (gradient,) = torch.autograd.grad(total, adapter.parameters, retain_graph=True)
        results.append((total, gradient))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-4, atol=1e-3)
