"""Packed weights on a CPU: the same numbers as the plain ones, up to the order of summation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from hermes.engine.attention.packed import packed_attend
from hermes.engine.attention.packing import pack_unshared
from hermes.engine.lora.weights import LoraView
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.cpu_prepacked import PackedBackbone, lm_head_linear, prepack
from hermes.engine.model.load import wrap_model
from hermes.engine.spec import HEAD
from tests.engine.processor import needs_bf16, needs_layout
from tests.engine.sampling_parts import Bench
from tests.engine.tiny import tiny_model


@needs_bf16
@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("family", ["llama", "llama-tied", "llama-bias", "qwen2", "qwen3"])
def test_packed_weights_give_the_plain_hidden_states(family: str, adapted: bool) -> None:
    exact = wrap_model(tiny_model(family), family)
    plain = wrap_model(tiny_model(family).to(torch.bfloat16), family)
    packed = prepack(plain)
    assert isinstance(packed, PackedBackbone) and prepack(packed) is packed
    lora = Bench(family).policy("p", seed=1).weights if adapted else None
    found = [logits(backbone, lora) for backbone in (exact, plain, packed)]
    errors = [float((one - found[0]).square().mean().sqrt()) for one in found[1:]]
    assert errors[1] < 1.3 * errors[0] + 1e-3, "no further from fp32 than the plain bf16 product"
    assert np.corrcoef(found[2].flatten(), found[1].flatten())[0, 1] > 0.999


@needs_layout
@pytest.mark.parametrize("family", ["llama", "llama-tied", "llama-bias", "qwen2", "qwen3"])
def test_packed_fp32_weights_are_exact_with_an_adapter_over_them_or_merged_in(family: str) -> None:
    plain = wrap_model(tiny_model(family), family)
    packed = prepack(plain)
    assert isinstance(packed, PackedBackbone)
    first = Bench(family).policy("p", seed=1).weights
    assert first is not None
    wanted = logits(plain, first)
    for found in (logits(packed, first), logits(prepack(plain, first), None)):
        assert torch.allclose(found, wanted, atol=1e-4, rtol=1e-4)
    assert torch.allclose(logits(packed, None), logits(plain, None), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(logits(packed, None), wanted, atol=0.1)


@needs_layout
@pytest.mark.parametrize("family", ["llama-tied", "qwen2", "qwen3"])
def test_a_single_row_is_exact_with_plain_matrices_or_packed_ones_and_with_an_adapter(family: str) -> None:
    plain = wrap_model(tiny_model(family), family)
    packed = prepack(plain)
    assert isinstance(packed, PackedBackbone)
    weights = Bench(family).policy("p", seed=1).weights
    assert weights is not None
    wanted = logits(plain, weights, tokens=1)
    for plain_single_row in (False, True):
        form = dataclasses.replace(packed, plain_single_row=plain_single_row)
        found = logits(form, weights, tokens=1)
        assert torch.allclose(found, wanted, atol=1e-4, rtol=1e-4)
        assert torch.allclose(logits(form, None, 1), logits(plain, None, 1), atol=1e-4, rtol=1e-4)
    merged = logits(prepack(plain, weights), None, tokens=1)
    assert torch.allclose(merged, wanted, atol=1e-4, rtol=1e-4)


def logits(backbone: Backbone, lora: LoraView | None, tokens: int = 40) -> torch.Tensor:
    """Of a text and of a shorter one, so many tokens together."""
    batch = pack_unshared([np.arange(3, 4)] if tokens == 1 else [np.arange(3, tokens), np.arange(5, 8)])
    with torch.inference_mode():
        attend = packed_attend(batch, backbone.spec, backbone.device)
        ids, positions = torch.as_tensor(batch.tokens), torch.as_tensor(batch.positions)
        hidden = backbone.hidden(ids, positions, attend, lora)
        out = lm_head_linear(backbone, hidden)
        return (out if lora is None else lora.apply(HEAD, hidden, (out,))[0]).float()


def test_what_has_no_packed_form_stays_as_it_is() -> None:
    for backbone in (wrap_model(tiny_model().half(), "fp16"), wrap_model(tiny_model("gemma3"), "generic")):
        assert prepack(backbone) is backbone


@needs_bf16
def test_packed_weights_of_another_number_of_rows_are_as_good() -> None:
    backbone = prepack(wrap_model(tiny_model().to(torch.bfloat16), "tiny"))
    for rows in (1, 3, 16, 100, 600):
        hidden = torch.randn(rows, 64).to(torch.bfloat16)
        wanted = hidden.float() @ backbone.head_weight.float().t()
        assert torch.allclose(lm_head_linear(backbone, hidden).float(), wanted, atol=0.05, rtol=0.02)
