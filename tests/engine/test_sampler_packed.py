"""Packed weights on a CPU: the same numbers as the plain ones, up to bf16's rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hermes.engine.attention import packed_attend
from hermes.engine.backbone import wrap_model
from hermes.engine.packed import PackedBackbone, head_product, pack
from hermes.engine.packing import pack_plainly
from tests.engine.sampling_parts import Bench
from tests.engine.tiny import tiny_model

needs_bf16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no instructions for bf16"
)


@needs_bf16
@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("family", ["llama", "llama-tied", "llama-bias", "qwen2", "qwen3"])
def test_packed_weights_give_the_plain_hidden_states(family: str, adapted: bool) -> None:
    exact = wrap_model(tiny_model(family), family)
    plain = wrap_model(tiny_model(family).to(torch.bfloat16), family)
    packed = pack(plain)
    assert isinstance(packed, PackedBackbone) and pack(packed) is packed
    lora = Bench(family).policy("p", seed=1).weights if adapted else None
    batch = pack_plainly([np.arange(3, 40), np.arange(5, 8)])
    tokens, positions = torch.as_tensor(batch.tokens), torch.as_tensor(batch.positions)
    found = []
    with torch.inference_mode():
        for backbone, view in ((exact, lora), (plain, lora), (packed, lora)):
            attend = packed_attend(batch, backbone.spec, backbone.device)
            hidden = backbone.hidden(tokens, positions, attend, view and view.cast(backbone.dtype))
            found.append(head_product(backbone, hidden).float())
    errors = [float((one - found[0]).square().mean().sqrt()) for one in found[1:]]
    assert errors[1] < 1.3 * errors[0] + 1e-3, "no further from fp32 than the plain bf16 product"
    assert np.corrcoef(found[2].flatten(), found[1].flatten())[0, 1] > 0.999


def test_what_has_no_packed_form_stays_as_it_is() -> None:
    for backbone in (wrap_model(tiny_model(), "fp32"), wrap_model(tiny_model("gemma3"), "generic")):
        assert pack(backbone) is backbone


@needs_bf16
def test_packed_weights_of_another_number_of_rows_are_as_good() -> None:
    backbone = pack(wrap_model(tiny_model().to(torch.bfloat16), "tiny"))
    for rows in (1, 3, 16, 100, 600):
        hidden = torch.randn(rows, 64).to(torch.bfloat16)
        wanted = hidden.float() @ backbone.head_weight.float().t()
        assert torch.allclose(head_product(backbone, hidden).float(), wanted, atol=0.05, rtol=0.02)
