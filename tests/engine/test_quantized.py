"""Bases in 4 and 8 bits: the codes, one function for sampler and trainer, gradients, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hermes.engine.attention.packed import packed_attend
from hermes.engine.attention.packing import pack_unshared
from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.lora.adapter import Adapter
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.model.load import wrap_model
from hermes.engine.model.quantized import Int8Matrix, Nf4Matrix, QuantizedLayers, nf4_levels, quantize
from hermes.engine.spec import QUANTIZATIONS, Quantization
from hermes.engine.training.forward_backward import forward_backward
from hermes.engine.types import (
    AdamParams,
    Datum,
    EngineUserError,
    Ints,
    LoraConfig,
    Loss,
    SampleRequest,
    SamplingParams,
)
from tests.engine.layer_parts import CPU, texts
from tests.engine.naive import shake
from tests.engine.sampling_parts import prompt
from tests.engine.tiny import FAMILIES, tiny_model

PUBLISHED = (
    *(-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0, 0.0795803),
    *(0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0),
)
"""The levels of NF4 in the paper of QLoRA, rounded to seven digits."""


def quantized(family: str, kind: Quantization) -> LlamaBackbone:
    backbone = wrap_model(tiny_model(family), family, quantization=kind)
    assert isinstance(backbone, LlamaBackbone)
    return backbone


def dequantized(backbone: LlamaBackbone) -> LlamaBackbone:
    """The same numbers in a backbone that is not quantised."""
    return replace(backbone, layers=tuple(backbone.layers), spec=replace(backbone.spec, quantization=None))


def hidden(backbone: LlamaBackbone) -> Tensor:
    batch = pack_unshared(texts())
    tokens, positions = torch.as_tensor(batch.tokens), torch.as_tensor(batch.positions)
    return backbone.hidden(tokens, positions, packed_attend(batch, backbone.spec, CPU), None)


def datum(ids: Ints) -> Datum:
    weights = np.ones(len(ids) - 1, np.float32)
    return Datum(ids[:-1], {"target_tokens": ids[1:], "weights": weights})


def gradient(backbone: LlamaBackbone, **config: Any) -> tuple[Tensor, float]:
    adapter = Adapter(backbone.spec, LoraConfig(**{"rank": 4, "alpha": 6.0, "seed": 3, **config}), CPU)
    shake(adapter)
    data = [datum(text) for text in texts()]
    work = forward_backward(backbone, adapter, data, Loss("cross_entropy"), budget_tokens=10**5)
    while True:
        try:
            next(work)
        except StopIteration as end:
            return adapter.gradient.clone(), end.value.metrics["loss:sum"]


def test_the_levels_are_those_of_qlora() -> None:
    assert np.allclose(nf4_levels(CPU).numpy(), PUBLISHED, atol=1e-6)


@pytest.mark.parametrize("shape", [(8, 128), (3, 50), (1, 1)])
def test_a_matrix_is_stored_in_its_bits_and_comes_back_as_its_nearest_levels(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    four, eight = quantize(matrix, "nf4"), quantize(matrix, "int8")
    assert isinstance(four, Nf4Matrix) and isinstance(eight, Int8Matrix)
    blocks = -(-matrix.numel() // 64)
    assert (four.nbytes, eight.nbytes) == (blocks * (32 + 4), matrix.numel() + 4 * shape[0])
    restored = eight.dequantize(torch.float32)
    assert bool(((restored - matrix).abs() <= eight.scales / 2 * 1.001).all())
    flat = torch.nn.functional.pad(matrix.flatten(), (0, blocks * 64 - matrix.numel())).view(blocks, 64)
    distance = (flat[..., None] / four.scales[:, None, None] - nf4_levels(CPU)).abs().amin(-1)
    wanted = (distance * four.scales[:, None]).flatten()[: matrix.numel()].view(shape)
    assert torch.allclose((four.dequantize(torch.float32) - matrix).abs(), wanted, atol=1e-6)
    assert torch.equal(four.dequantize(torch.bfloat16), four.dequantize(torch.float32).bfloat16())


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_zeros_stay_zeros(kind: Quantization) -> None:
    assert not quantize(torch.zeros(2, 70), kind).dequantize(torch.float32).any()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_every_family_computes_with_the_dequantised_weights(family: str, kind: Quantization) -> None:
    backbone = quantized(family, kind)
    assert isinstance(backbone.layers, QuantizedLayers)
    assert torch.equal(hidden(backbone), hidden(dequantized(backbone)))
    original = wrap_model(tiny_model(family), family)
    assert isinstance(original, LlamaBackbone)
    distance = (hidden(backbone) - hidden(original)).norm() / hidden(original).norm()
    assert 0 < distance < (0.7 if kind == "nf4" else 0.07), "a random model amplifies"


@pytest.mark.parametrize("kind", QUANTIZATIONS)
@pytest.mark.parametrize(
    "config",
    [{}, {"train_mlp": False}, {"train_attn": False, "train_unembed": False}],
    ids=["all", "attention", "feed-forward"],
)
def test_gradients_are_those_of_autograd_on_the_dequantised_weights(
    kind: Quantization, config: dict[str, Any]
) -> None:
    backbone = quantized("qwen3", kind)
    computed, loss = gradient(backbone, **config)
    expected, expected_loss = gradient(dequantized(backbone), **config)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert torch.allclose(computed, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("shape", [(8, 128), (3, 50), (1, 1), (512, 4096)])
def test_the_kernel_of_a_gpu_gives_the_numbers_of_a_cpu(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for kind in QUANTIZATIONS:
        for dtype in (torch.float32, torch.bfloat16):
            expected = quantize(matrix, kind).dequantize(dtype)
            assert torch.equal(quantize(matrix.cuda(), kind).dequantize(dtype).cpu(), expected)


def options(folder: Path, **changes: Any) -> EngineOptions:
    return EngineOptions(str(folder), device="cpu", dtype="float32", kv_bytes=1 << 22, **changes)


@pytest.fixture(params=QUANTIZATIONS)
def engine(request: pytest.FixtureRequest, folder: Path) -> Iterator[Engine]:
    engine = Engine(options(folder, quantize=request.param))
    engine.start()
    yield engine
    engine.close()


def test_sampler_and_trainer_agree_and_training_lowers_the_loss(engine: Engine, tmp_path: Path) -> None:
    plain_bytes = 4 * sum(linear.inputs * linear.outputs for linear in engine.spec.linears.values())
    assert engine.stats().base_bytes < plain_bytes + 4 * engine.spec.vocab * engine.spec.hidden
    adapter = engine.create_adapter(LoraConfig(rank=4, seed=7)).result()
    data = [datum(text) for text in texts()]
    losses = []
    for _ in range(4):
        output = engine.forward_backward(adapter, data, Loss("cross_entropy")).result()
        losses.append(output.metrics["loss:sum"])
        engine.optim_step(adapter, AdamParams(learning_rate=0.01)).result()
    assert losses == sorted(losses, reverse=True)
    policy = engine.snapshot(adapter).result()
    params = SamplingParams(max_tokens=24, seed=3, stop=())
    sampled = engine.sample(policy, SampleRequest(prompt(20, 1), params, 4)).result()
    for sequence in sampled.sequences:
        ids = np.concatenate([prompt(20, 1), sequence.tokens])
        scored = engine.forward_backward(
            adapter, [datum(ids)], Loss("cross_entropy"), forward_only=True
        ).result()
        np.testing.assert_allclose(scored.logprobs[0][19:], sequence.logprobs, atol=2e-4)
    engine.save(adapter, tmp_path / "adapter", optimizer=False).result()
    from safetensors import safe_open

    with safe_open(tmp_path / "adapter" / "adapter_model.safetensors", "pt") as file:
        assert file.metadata()["base_quantization"] == engine.spec.quantization
    engine.load(adapter, tmp_path / "adapter", optimizer=False).result()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantize": "nf3"}, "'nf3' is not a quantization of the engine"),
        ({"quantize": "int8", "kind": "transformers"}, "it runs through transformers"),
    ],
)
def test_what_cannot_be_is_refused_before_the_weights_are_read(
    folder: Path, changes: dict[str, Any], words: str
) -> None:
    (folder / "model.safetensors").rename(folder / "kept")
    try:
        with pytest.raises(EngineUserError, match=words):
            Engine(options(folder, **changes))
    finally:
        (folder / "kept").rename(folder / "model.safetensors")


def test_a_family_without_support_is_named(tmp_path: Path) -> None:
    tiny_model("gemma").config.save_pretrained(tmp_path)
    with pytest.raises(EngineUserError, match=r"--quantize does not support .*its family is gemma"):
        Engine(options(tmp_path, quantize="nf4"))
