"""Adapters act where they should: merged, side by side in one pack, and on the output projection alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hermes.engine.attention.packed import packed_attend
from hermes.engine.attention.packing import pack_unshared
from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.weights import LoraSpans, LoraView, LoraWeights
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.load import Kind, wrap_model
from hermes.engine.spec import HEAD
from hermes.engine.types import Ints, LoraConfig

from .naive import shake
from .tiny import tiny_model

TOKENS = np.random.default_rng(0).integers(0, 512, 23)


@torch.no_grad()
def logits(backbone: Backbone, lora: LoraView | None, *texts: Ints) -> torch.Tensor:
    batch = pack_unshared(texts or [TOKENS])
    hidden = backbone.hidden(
        torch.as_tensor(batch.tokens),
        torch.as_tensor(batch.positions),
        packed_attend(batch, backbone.spec, backbone.device),
        lora,
    )
    out = hidden @ backbone.head_weight.t()
    return out if lora is None else lora.apply(HEAD, hidden, (out,))[0]


def trained(backbone: Backbone, **config: Any) -> tuple[LoraWeights, LoraConfig]:
    adapter = Adapter(backbone.spec, LoraConfig(**{"rank": 4, "seed": 1, **config}), backbone.device)
    shake(adapter)
    return adapter.freeze(), adapter.config


@pytest.mark.parametrize("kind", ["compact", "transformers"])
def test_merged_weights_give_the_same_logits_and_leave_the_base_alone(kind: Kind) -> None:
    backbone = wrap_model(tiny_model("llama-tied"), "llama", kind=kind)
    before = logits(backbone, None)
    weights, _ = trained(backbone)
    torch.testing.assert_close(
        logits(backbone.merged(weights), None), logits(backbone, weights), atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(logits(backbone, None), before, atol=0, rtol=0)


@pytest.mark.parametrize("kind", ["compact", "transformers"])
def test_several_adapters_act_on_their_own_tokens_of_one_pack(kind: Kind) -> None:
    backbone = wrap_model(tiny_model(), "llama", kind=kind)
    one, other = trained(backbone)[0], trained(backbone, rank=2, seed=9, train_mlp=False)[0]
    texts = [TOKENS[:9], TOKENS[3:12], TOKENS[5:]]
    together = logits(backbone, LoraSpans(((0, 9, one), (9, 18, None), (18, 36, other))), *texts)
    alone = [logits(backbone, lora, text) for lora, text in zip((one, None, other), texts, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=1e-4)


def test_on_a_tied_model_the_output_projections_adapter_leaves_the_embedding_alone() -> None:
    backbone = wrap_model(tiny_model("llama-tied"), "llama")
    weights, _ = trained(backbone, train_attn=False, train_mlp=False)
    (part,) = weights.groups[HEAD].parts
    assert part is not None
    hidden = logits(backbone, None) @ torch.linalg.pinv(backbone.head_weight.t())
    delta = part.scale * hidden @ weights.groups[HEAD].a.t() @ part.b.t()
    torch.testing.assert_close(
        logits(backbone, weights), logits(backbone, None) + delta, atol=1e-3, rtol=1e-3
    )
