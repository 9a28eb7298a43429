"""Adapter files go both ways between the engine and PEFT, and the logits agree in fp32: to 1e-4 with tiny
models, to the rounding of PEFT's own with the bundled one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.peft import CONFIG_FILE, WEIGHTS_FILE, load_peft, save_peft
from hermes.engine.model.load import Kind, load_backbone, wrap_model
from hermes.engine.types import EngineUserError, LoraConfig
from hermes.models.local.bundled import model_folder
from tests.engine.peft_folders import foreign

from .test_lora import TOKENS, logits, trained
from .tiny import tiny_model

_ROUNDING_FACTOR = 4
"""Errors of two orders of summation are of one size, but not equal."""


@torch.no_grad()
def peft_logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=torch.as_tensor(TOKENS)[None]).logits[0]
    return found


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("llama", "compact"),
        ("llama-tied", "compact"),
        ("qwen3", "compact"),
        ("gemma", "transformers"),
        ("phi3", "transformers"),
    ],
)
@pytest.mark.filterwarnings("error:.*[Mm]issing:UserWarning")
def test_an_adapter_of_ours_loads_with_peft(family: str, kind: Kind, tmp_path: Path) -> None:
    from peft import PeftModel

    backbone = wrap_model(tiny_model(family), family, kind=kind)
    weights, config = trained(backbone)
    save_peft(tmp_path, weights, config, backbone.spec)
    twin = PeftModel.from_pretrained(tiny_model(family), tmp_path)
    expected = logits(backbone, weights)
    torch.testing.assert_close(peft_logits(twin), expected, atol=1e-4, rtol=1e-4)
    assert (peft_logits(tiny_model(family)) - expected).abs().max() > 0.1


@pytest.mark.parametrize("flags", [{"train_mlp": False}, {"train_attn": False, "train_unembed": False}])
def test_what_is_not_trained_is_not_in_the_files(flags: dict[str, bool], tmp_path: Path) -> None:
    backbone = wrap_model(tiny_model(), "llama")
    weights, config = trained(backbone, **flags)
    save_peft(tmp_path, weights, config, backbone.spec)
    targets = json.loads((tmp_path / CONFIG_FILE).read_text())["target_modules"]
    mlp = ["down_proj", "gate_proj", "up_proj"]
    assert targets == (
        mlp if flags.get("train_attn") is False else ["k_proj", "lm_head", "o_proj", "q_proj", "v_proj"]
    )
    assert load_peft(tmp_path, backbone.spec)[1] == LoraConfig(rank=4, **flags)


@pytest.mark.slow
def test_an_adapter_of_the_bundled_model_loads_with_peft(bundled_home: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = str(model_folder(bundled_home))
    backbone = load_backbone(folder, "cpu", torch.float32)
    weights, config = trained(backbone, rank=8)
    save_peft(tmp_path, weights, config, backbone.spec)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    plain, ours = peft_logits(model), logits(backbone, weights)
    twin = PeftModel.from_pretrained(model, tmp_path)
    theirs = peft_logits(twin)
    exact = peft_logits(twin.double())
    # Both are the same sums in fp32, in orders that depend on the processor. PEFT's own logits (up to 38) lie
    # 0.0008 from those in fp64 on an ARM N1: how far ours may lie follows from that.
    rounding = (theirs - exact).abs().max()
    assert (ours - exact).abs().max() < _ROUNDING_FACTOR * rounding
    assert rounding < 1e-2 and (plain - ours).abs().max() > 10


FOREIGN: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}),
    ("llama-tied", {"r": 4, "lora_alpha": 4, "target_modules": "all-linear"}),
    ("llama-tied", {"r": 4, "lora_alpha": 32, "target_modules": ["gate_proj", "lm_head"]}),
    ("qwen2", {"r": 4, "lora_alpha": 8, "target_modules": ["k_proj", "down_proj"], "use_rslora": True}),
    (
        "qwen3",
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": ["q_proj", "k_proj", "up_proj"],
            "rank_pattern": {"q_proj": 2, "model.layers.1.mlp.up_proj": 6},
            "alpha_pattern": {"k_proj": 20},
        },
    ),
    ("gemma", {"r": 4, "lora_alpha": 8, "target_modules": ["o_proj"], "layers_to_transform": [1]}),
]


@pytest.mark.parametrize(("family", "config"), FOREIGN)
def test_an_adapter_of_pefts_loads_here_and_goes_back(
    family: str, config: dict[str, Any], tmp_path: Path
) -> None:
    from peft import PeftModel

    twin = foreign(family, tmp_path / "theirs", **config)
    backbone = wrap_model(tiny_model(family), family)
    weights, read = load_peft(tmp_path / "theirs", backbone.spec)
    torch.testing.assert_close(logits(backbone, weights), peft_logits(twin), atol=1e-4, rtol=1e-4)
    save_peft(tmp_path / "ours", weights, read, backbone.spec)
    again = PeftModel.from_pretrained(tiny_model(family), tmp_path / "ours")
    torch.testing.assert_close(peft_logits(again), peft_logits(twin), atol=1e-4, rtol=1e-4)


def test_training_goes_on_from_an_adapter_of_pefts(tmp_path: Path) -> None:
    twin = foreign("llama", tmp_path, r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    backbone = wrap_model(tiny_model(), "llama")
    adapter = Adapter(backbone.spec, LoraConfig(rank=4, seed=0), backbone.device)
    adapter.load_state(load_peft(tmp_path, backbone.spec)[0], None)
    torch.testing.assert_close(logits(backbone, adapter.freeze()), peft_logits(twin), atol=1e-4, rtol=1e-4)


def _edit(
    folder: Path, settings: dict[str, Any] | None = None, drop: str = "", add: str = "", rename: str = ""
) -> None:
    if settings:
        config = json.loads((folder / CONFIG_FILE).read_text())
        (folder / CONFIG_FILE).write_text(json.dumps({**config, **settings}))
    tensors = load_file(folder / WEIGHTS_FILE)
    if drop:
        tensors = {name: tensor for name, tensor in tensors.items() if drop not in name}
    if add:
        tensors[add] = torch.zeros(4, 5)
    save_file(tensors, folder / WEIGHTS_FILE)


Q = "base_model.model.model.layers.0.self_attn.q_proj"
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"settings": {"use_dora": True}}, "use_dora"),
    ({"settings": {"peft_type": "IA3"}}, "plain LoRA"),
    ({"settings": {"bias": "all"}}, "plain LoRA"),
    ({"settings": {"modules_to_save": ["lm_head"]}}, "modules_to_save"),
    ({"drop": "layers.0.self_attn.q_proj.lora_B"}, r"layers\.0\.self_attn\.q_proj has only one"),
    ({"add": f"{Q}.lora_A.weight"}, r"layers\.0\.self_attn\.q_proj maps 64 to 64, but has A \(4, 5\)"),
    ({"add": "base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight"}, "no place for .*layers.9"),
    ({"add": f"{Q}.lora_magnitude_vector"}, "no place for"),
    ({"drop": "lora"}, "no matrices"),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
def test_files_that_do_not_fit_are_refused_with_the_name(
    fault: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    backbone = wrap_model(tiny_model(), "llama")
    save_peft(tmp_path, *trained(backbone), backbone.spec)
    _edit(tmp_path, **fault)
    with pytest.raises(EngineUserError, match=reason):
        load_peft(tmp_path, backbone.spec)


def test_a_folder_that_is_no_adapter_is_refused(tmp_path: Path) -> None:
    spec = wrap_model(tiny_model(), "llama").spec
    with pytest.raises(EngineUserError, match="not an adapter"):
        load_peft(tmp_path, spec)
    (tmp_path / CONFIG_FILE).write_text("{}")
    (tmp_path / WEIGHTS_FILE).write_bytes(b"torn")
    with pytest.raises(EngineUserError, match="not an adapter"):
        load_peft(tmp_path, spec)
