"""A base model's configuration: what is read from the file is what transformers reads."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from hermes.engine.model.config import read_config, read_stated_config
from hermes.engine.model.llama import linears_of, unsupported_reason
from hermes.engine.model.llama_files import rotary_frequencies
from hermes.engine.spec import read_spec
from tests.engine.tiny import FAMILIES, OTHERS, tiny_model

SCALED = {"llama3-rope", "yarn"}
SHARED = {
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 4096,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "vocab_size": 512,
}
HUB_FILES: dict[str, dict[str, Any]] = {
    "llama-2": {
        **SHARED,
        "model_type": "llama",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pretraining_tp": 1,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    },
    "llama-3.1": {
        **SHARED,
        "model_type": "llama",
        "attention_bias": False,
        "eos_token_id": [128001, 128008],
        "head_dim": 16,
        "mlp_bias": False,
        "rope_scaling": None,
        "tie_word_embeddings": True,
    },
    "mistral": {
        **SHARED,
        "model_type": "mistral",
        "eos_token_id": 2,
        "sliding_window": None,
        "tie_word_embeddings": False,
    },
    "qwen2.5": {
        **SHARED,
        "model_type": "qwen2",
        "eos_token_id": 151645,
        "max_window_layers": 2,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    "qwen3": {
        **SHARED,
        "model_type": "qwen3",
        "attention_bias": False,
        "eos_token_id": 151645,
        "head_dim": 24,
        "max_window_layers": 3,
        "rope_scaling": None,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
}
"""As the files of published models, which state no rope_parameters, with small numbers."""
ODD_VALUES = (
    None,
    "",
    "gelu",
    True,
    False,
    0,
    -1,
    3,
    2.5,
    [],
    [7, 8],
    {},
    {"rope_type": "linear", "factor": 2.0},
)
ADDED = ("attention_bias", "mlp_bias", "head_dim", "rope_parameters", "rope_scaling", "sliding_window")
ADDED += ("use_sliding_window", "quantization_config", "partial_rotary_factor", "layer_types", "rope_type")
UNUSED = {"bos_token_id", "max_window_layers", "pretraining_tp"}
"""transformers refuses odd values of these as well; the engine does not read them."""


def outcome(config: Any) -> Any:
    """Everything that the engine takes from a configuration."""
    reason = unsupported_reason(config) or getattr(config, "quantization_config", None)
    if reason:
        return reason
    spec = read_spec(config, "model", *linears_of(config), None)
    frequencies, scale = rotary_frequencies(config)
    return {field.name: getattr(spec, field.name) for field in fields(spec)}, frequencies.tolist(), scale


def check_equal(folder: Path) -> bool:
    """Compares with transformers, and returns whether the file was read without it."""
    stated = read_stated_config(folder)
    if stated is not None:
        assert outcome(stated) == outcome(AutoConfig.from_pretrained(folder)), folder.joinpath(
            "config.json"
        ).read_text()
    return stated is not None


@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
def test_files_that_transformers_wrote(family: str, tmp_path: Path) -> None:
    tiny_model(family).config.save_pretrained(tmp_path)
    assert check_equal(tmp_path) == (family in {*FAMILIES} - SCALED)
    config = read_config(str(tmp_path))
    assert outcome(config) == outcome(AutoConfig.from_pretrained(tmp_path))


@pytest.mark.parametrize("name", HUB_FILES)
def test_files_of_published_models_with_any_field_missing_added_or_odd(name: str, tmp_path: Path) -> None:
    file, stated = tmp_path / "config.json", HUB_FILES[name]
    file.write_text(json.dumps(stated))
    assert check_equal(tmp_path)
    for field in ({*stated, *ADDED} - UNUSED) - {"model_type"}:
        file.write_text(json.dumps({key: value for key, value in stated.items() if key != field}))
        check_equal(tmp_path)
        for value in ODD_VALUES:
            file.write_text(json.dumps({**stated, field: value}))
            check_equal(tmp_path)


def test_what_is_no_configuration_is_left_to_transformers(tmp_path: Path) -> None:
    assert read_stated_config(tmp_path) is None
    for text in ("", "[]", "{", '"llama"', '{"model_type": "llama"}'):
        (tmp_path / "config.json").write_text(text)
        assert read_stated_config(tmp_path) is None
    with pytest.raises(OSError, match="nowhere"):
        read_config(str(tmp_path / "nowhere"))
