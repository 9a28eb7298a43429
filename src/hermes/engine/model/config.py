"""The configuration of a base model, from a folder or a hub name.

transformers' `AutoConfig` knows every family, and to import it takes two seconds of processor time in every
process of the engine. So the config.json of a Llama-like model is read here, if it states everything that
transformers would otherwise fill in from the defaults of the family. The engine reads the same model from
both (by the tests); whatever is unusual is left to transformers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hermes.core import parse_object
from hermes.engine.model.llama import FAMILIES

if TYPE_CHECKING:
    from hermes.engine.spec import ModelConfig

_COUNTS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)
_STATED_BY_FAMILY = {"mistral": ("sliding_window",), "qwen3": ("head_dim",)}
"""Fields for which the default of the family is a number of its own."""
_UNUSUAL = ("auto_map", "partial_rotary_factor", "quantization_config")


def read_config(source: str) -> ModelConfig:
    """OSError, ValueError or KeyError of transformers: there is no configuration that it can read."""
    stated = read_stated_config(Path(source))
    if stated is not None:
        return stated
    from transformers import AutoConfig

    hide_progress_bars()
    config: ModelConfig = AutoConfig.from_pretrained(source)
    return config


def read_stated_config(folder: Path) -> SimpleNamespace | None:
    """The fields of a folder's config.json; None if transformers has to read it."""
    try:
        fields = parse_object((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if fields.get("model_type") not in FAMILIES or not _is_stated(fields):
        return None
    rope_theta = _default_rope_theta(fields)
    if rope_theta is None:
        return None
    return SimpleNamespace(
        **{**fields, "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta}}
    )


def hide_progress_bars() -> None:
    """Disables the progress bars of transformers in a log, where every change of a bar is a line."""
    if not sys.stderr.isatty():
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _is_stated(fields: dict[str, Any]) -> bool:
    """Whether no default of the family matters."""
    if any(name in fields for name in _UNUSUAL):
        return False
    if any(name not in fields for name in _STATED_BY_FAMILY.get(fields["model_type"], ())):
        return False
    window = fields.get("sliding_window")
    if not (window is None or (_is_count(window) and fields.get("use_sliding_window") is False)):
        return False
    if not all(_is_count(fields.get(name)) for name in _COUNTS):
        return False
    if "layer_types" in fields and not _attends_fully(fields):
        return False
    heads = fields["num_attention_heads"]
    if fields["hidden_size"] % heads or heads % fields["num_key_value_heads"]:
        return False
    if fields.get("head_dim") is not None or fields["model_type"] == "qwen3":
        has_head_dim = _is_count(fields.get("head_dim"))
    else:  # the other families divide the width by the heads
        has_head_dim = True
    booleans = ("attention_bias", "mlp_bias", "use_sliding_window")
    return (
        has_head_dim
        and isinstance(fields.get("hidden_act"), str)
        and isinstance(fields.get("rms_norm_eps"), float)
        and isinstance(fields.get("tie_word_embeddings"), bool)
        and _are_token_ids(fields.get("eos_token_id", ""))
        and all(isinstance(fields.get(name, False), bool) for name in booleans)
    )


def _attends_fully(fields: dict[str, Any]) -> bool:
    """Whether layer_types says so. transformers reads a mistral that has the field as a ministral."""
    return (
        fields["model_type"] in ("qwen2", "qwen3")
        and fields["layer_types"] == ["full_attention"] * fields["num_hidden_layers"]
    )


def _default_rope_theta(fields: dict[str, Any]) -> float | None:
    """The base of the rotary frequencies; None if they are scaled, or if two places state different ones."""
    if fields.get("rope_scaling") is not None:
        return None
    rope = fields.get("rope_parameters")
    if rope is None:  # older files
        rope = {"rope_type": "default", "rope_theta": fields.get("rope_theta")}
    if not isinstance(rope, dict) or set(rope) != {"rope_type", "rope_theta"}:
        return None
    theta = rope["rope_theta"]
    is_number = isinstance(theta, int | float) and not isinstance(theta, bool) and theta > 0
    if rope["rope_type"] != "default" or not is_number or fields.get("rope_theta", theta) != theta:
        return None
    return float(theta)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _are_token_ids(value: Any) -> bool:
    """One id, a list of them, or null."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    return all(isinstance(token, int) and not isinstance(token, bool) for token in values)
