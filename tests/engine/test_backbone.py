"""Both backbones give transformers' own logits, whatever is packed beside a sequence."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hermes.engine.attention.packed import packed_attend
from hermes.engine.attention.packing import Pack, pack, pack_unshared
from hermes.engine.lora.adapter import Adapter
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.model.load import Kind, load_backbone, wrap_model
from hermes.engine.types import EngineUserError, Ints, LoraConfig
from hermes.models.local.bundled import model_folder

from .tiny import FAMILIES, OTHERS, SHAPE, tiny_model


def sequences(vocab: int = 512, lengths: tuple[int, ...] = (40, 3, 17, 1)) -> list[Ints]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, vocab, length) for length in lengths]


def shared_sequences(vocab: int = 512) -> list[Ints]:
    """Two groups under one long beginning, one of them with a second level, and one sequence alone."""
    rng = np.random.default_rng(1)
    draw = lambda length: rng.integers(0, vocab, length)  # noqa: E731
    root, left, right = draw(12), draw(20), draw(9)
    below = np.concatenate([root, left, draw(10)])
    return [
        np.concatenate([root, left, draw(5)]),
        np.concatenate([below, draw(7)]),
        np.concatenate([below, draw(2)]),
        np.concatenate([root, right, draw(11)]),
        np.concatenate([root, right]),
        draw(6),
    ]


def run(backbone: Backbone, batch: Pack, checkpoint: bool = False) -> torch.Tensor:
    return backbone.hidden(
        torch.as_tensor(batch.tokens),
        torch.as_tensor(batch.positions),
        packed_attend(batch, backbone.spec, backbone.device),
        None,
        checkpoint=checkpoint,
    )


@torch.no_grad()
def expect_own_logits(model: torch.nn.Module, backbone: Backbone, texts: list[Ints], batch: Pack) -> None:
    logits = run(backbone, batch) @ backbone.head_weight.t()
    for member, rows in zip(batch.members, batch.rows, strict=True):
        own = model(input_ids=torch.as_tensor(texts[member])[None]).logits[0]
        torch.testing.assert_close(logits[torch.as_tensor(rows)], own, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["compact", "transformers"])
def test_logits_of_packed_sequences_equal_transformers(family: str, kind: Kind) -> None:
    texts = sequences()
    backbone = wrap_model(tiny_model(family), family, kind=kind)
    expect_own_logits(tiny_model(family), backbone, texts, pack_unshared(texts))


@pytest.mark.parametrize("family", OTHERS)
def test_families_without_a_compact_form_run_through_transformers(family: str) -> None:
    texts = sequences()
    backbone = wrap_model(tiny_model(family), family)
    expect_own_logits(tiny_model(family), backbone, texts, pack_unshared(texts))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma"])
def test_sharing_beginnings_changes_no_logit(family: str) -> None:
    texts = shared_sequences()
    (batch,) = pack(texts, 10_000)
    assert len(batch.tokens) < sum(map(len, texts))
    assert max(node.depth for node in batch.nodes) == 3
    expect_own_logits(tiny_model(family), wrap_model(tiny_model(family), family), texts, batch)


def test_the_bundled_model_is_compact_and_gives_its_own_logits(bundled_home: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = str(model_folder(bundled_home))
    backbone = load_backbone(folder, "cpu", torch.float32)
    assert isinstance(backbone, LlamaBackbone)
    assert (backbone.spec.layers, backbone.spec.tied, backbone.spec.eos_ids) == (30, True, (2,))
    own = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    texts = shared_sequences(49152)
    (batch,) = pack(texts, 10_000)
    expect_own_logits(own, backbone, texts, batch)


@pytest.mark.parametrize("kind", ["compact", "transformers"])
def test_a_checkpointed_pass_attends_again_in_its_backward_pass(kind: Kind) -> None:
    backbone = wrap_model(tiny_model(), "llama", kind=kind)
    adapter = Adapter(backbone.spec, LoraConfig(rank=2, seed=0), backbone.device)
    batch = pack_unshared(sequences())
    attend = packed_attend(batch, backbone.spec, backbone.device)
    for checkpoint, calls in ((False, 3), (True, 6)):
        layers: list[int] = []

        def count(layer: int, *qkv: torch.Tensor, seen: list[int] = layers) -> torch.Tensor:
            seen.append(layer)
            return attend(layer, *qkv)

        tokens, positions = torch.as_tensor(batch.tokens), torch.as_tensor(batch.positions)
        lora = adapter.weights(torch.float32)
        hidden = backbone.hidden(tokens, positions, count, lora, checkpoint=checkpoint)
        torch.autograd.grad(hidden.sum(), adapter.parameters)
        assert len(layers) == calls


def test_half_precision_weights_train_in_the_same_direction() -> None:
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        backbone = wrap_model(tiny_model().to(dtype), "llama")
        adapter = Adapter(backbone.spec, LoraConfig(rank=2, seed=0), backbone.device)
        batch = pack_unshared(sequences())
        tokens, positions = torch.as_tensor(batch.tokens), torch.as_tensor(batch.positions)
        attend = packed_attend(batch, backbone.spec, backbone.device)
        hidden = backbone.hidden(tokens, positions, attend, adapter.weights(dtype))
        assert hidden.dtype == dtype
        (gradient,) = torch.autograd.grad(hidden.float().square().sum(), adapter.parameters)
        assert gradient.dtype == torch.float32
        gradients.append(gradient)
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.99


def _refused(name: str) -> Any:
    import transformers as t

    shape = {**SHAPE, "head_dim": 16} if name == "gemma2" else SHAPE
    config: Any = {
        "gemma2": lambda: t.Gemma2Config(**shape),
        "granite": lambda: t.GraniteConfig(**shape, logits_scaling=7.0),
        "mamba": lambda: t.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=512, state_size=4),
    }[name]()
    return t.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("gemma2", "soft-capped"), ("granite", "changes logits"), ("mamba", "not an attention model")],
)
def test_a_model_that_would_not_be_exact_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(EngineUserError, match=reason):
        wrap_model(_refused(name), name)


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_what_ends_a_sequence_is_also_read_from_the_generation_configuration(
    family: str, tmp_path: Path
) -> None:
    model = tiny_model(family)
    model.generation_config.eos_token_id = [7, 2]
    model.save_pretrained(tmp_path)
    assert load_backbone(str(tmp_path), "cpu", torch.float32).spec.eos_ids == (2, 7)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_files_that_are_read_directly_give_the_bits_of_transformers(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    tiny_model(family).save_pretrained(tmp_path, max_shard_size="200KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    backbone = load_backbone(str(tmp_path), "cpu", dtype)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    expected = wrap_model(model, str(tmp_path))
    assert isinstance(backbone, LlamaBackbone) and isinstance(expected, LlamaBackbone)
    assert asdict(backbone.spec) == asdict(expected.spec)
    assert backbone.rope_scale == expected.rope_scale
    assert (backbone.head_weight is backbone.embed) == (expected.head_weight is expected.embed)
    pairs = [(getattr(backbone, name), getattr(expected, name)) for name in ("embed", "norm", "head_weight")]
    pairs += [(backbone.inv_freq, expected.inv_freq)]
    for layer, others in zip(backbone.layers, expected.layers, strict=True):
        pairs += [(getattr(layer, field.name), getattr(others, field.name)) for field in fields(layer)]
    for ours, theirs in pairs:
        assert (ours is None) == (theirs is None)
        assert ours is None or (ours.dtype == theirs.dtype and torch.equal(ours, theirs))


def test_an_engine_with_a_llama_samples_and_trains_without_transformers(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    program = (
        "import sys; from hermes.engine.engine import Engine; from hermes.engine.info import EngineOptions; "
        "engine = Engine(EngineOptions(sys.argv[1], device='cpu', dtype='float32')); engine.start(); "
        "print([name for name in ('transformers', 'sympy', 'torch._dynamo') if name in sys.modules]); "
        "engine.close()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"


def test_weights_that_are_missing_or_cut_off_are_no_random_numbers(tmp_path: Path) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path)
    from safetensors.torch import load_file, save_file

    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.0.self_attn.q_proj.weight"]
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(EngineUserError, match=r"have no model\.layers\.0\.self_attn\.q_proj\.weight"):
        load_backbone(str(tmp_path), "cpu", torch.float32)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(EngineUserError, match=r"could not be loaded: model\.safetensors"):
        load_backbone(str(tmp_path), "cpu", torch.float32)


def test_a_model_that_cannot_be_found_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(EngineUserError, match="could not be loaded"):
        load_backbone(str(tmp_path), "cpu", torch.float32)
    with pytest.raises(EngineUserError, match="no compact form"):
        wrap_model(tiny_model("gemma"), "gemma", kind="compact")
