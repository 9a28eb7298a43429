"""Small random models of every family, built in a moment and the same every time."""

from __future__ import annotations

from typing import Any

import torch

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.15,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}

FAMILIES = (
    "llama",
    "llama-tied",
    "llama-bias",
    "llama3-rope",
    "yarn",
    "mistral",
    "qwen2",
    "qwen3",
)
OTHERS = ("gemma", "gemma3", "mistral-window", "phi3", "smollm3")


def tiny_model(family: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A random causal language model of transformers, fp32, in evaluation mode."""
    torch.manual_seed(seed)
    config = _config(family, {**SHAPE, **changes})
    from transformers import AutoModelForCausalLM

    maker: Any = AutoModelForCausalLM
    model = maker.from_config(config, dtype=torch.float32)
    for name, one in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            one.data.add_(0.1 * torch.randn_like(one))
    return model.eval().requires_grad_(False)


def _config(family: str, shape: dict[str, Any]) -> Any:
    import transformers as t

    if family == "gemma":
        return t.GemmaConfig(**shape, head_dim=24)
    if family == "gemma3":
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        return t.Gemma3TextConfig(
            **shape, head_dim=24, sliding_window=7, layer_types=kinds, query_pre_attn_scalar=32
        )
    if family == "phi3":
        return t.Phi3Config(**shape)
    if family == "smollm3":
        return t.SmolLM3Config(**shape, no_rope_layers=[1, 0, 1])
    if family == "mistral-window":
        return t.MistralConfig(**shape, sliding_window=7)
    if family == "mistral":
        return t.MistralConfig(**shape, sliding_window=None)
    if family == "qwen2":
        return t.Qwen2Config(**shape)
    if family == "qwen3":
        return t.Qwen3Config(**shape, head_dim=24, tie_word_embeddings=True)
    extras: dict[str, dict[str, Any]] = {
        "llama": {},
        "llama-tied": {"tie_word_embeddings": True},
        "llama-bias": {"attention_bias": True},
        "llama3-rope": {"rope_parameters": LLAMA3_ROPE},
        "yarn": {"rope_parameters": YARN_ROPE},
    }
    extra = extras[family]
    return t.LlamaConfig(**shape, **extra)
