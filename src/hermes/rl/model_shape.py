"""The shape of a base model, as far as memory and time depend on it. Pure but for reading config.json.

A model that is not in a folder here has the shape of the published Qwen3 model that is nearest in size, with
the number of parameters that its name states; `assumed_from` says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from hermes.core import parse_object
from hermes.errors import UsageError
from hermes.training.schedule import parameters_of

BUNDLED = "hermes/smollm2"
_LAYER_BYTES = {None: 2.0, "nf4": 0.5625, "int8": 1.0}
"""The size of one weight in a layer, with its share of the scales."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    stated_parameters: float | None = None
    """From the model's name, where the other numbers are those of another model."""
    assumed_from: str | None = None
    quantization: str | None = None
    """nf4 or int8: how the layers' matrices are stored."""

    @property
    def weight_bytes(self) -> float:
        """The size of one copy of the weights, in bf16 where they are not quantised."""
        layers = self.parameters - self.embedding_parameters
        return layers * _LAYER_BYTES[self.quantization] + 2 * self.embedding_parameters

    @property
    def embedding_parameters(self) -> float:
        """Embedding and LM head, which are never quantised."""
        return min(self.parameters, float((1 if self.tied else 2) * self.vocab * self.hidden))

    @property
    def parameters(self) -> float:
        """In linear layers and embeddings."""
        if self.stated_parameters is not None:
            return self.stated_parameters
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        block = attention + 3 * self.hidden * self.intermediate
        return float(self.layers * block + (1 if self.tied else 2) * self.vocab * self.hidden)

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers in bf16."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2

    def adapter_parameters(self, rank: int) -> float:
        """The parameters of a LoRA on all linear layers and the output projection."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = (self.hidden + query) + 2 * (self.hidden + key) + (query + self.hidden)
        block = attention + 3 * (self.hidden + self.intermediate)
        return float(rank * (self.layers * block + self.hidden + self.vocab))

    def activation_bytes_per_token(self) -> int:
        """The bytes that the backward pass keeps of one token in bf16, as the engine plans it."""
        return 2 * self.layers * (8 * self.hidden + 4 * self.intermediate)


SMOLLM2 = ModelShape(30, 576, 1536, 9, 3, 64, 49_152, tied=True)
_QWEN3 = {
    "Qwen3-0.6B": ModelShape(28, 1024, 3072, 16, 8, 128, 151_936, tied=True),
    "Qwen3-1.7B": ModelShape(28, 2048, 6144, 16, 8, 128, 151_936, tied=True),
    "Qwen3-4B": ModelShape(36, 2560, 9728, 32, 8, 128, 151_936, tied=True),
    "Qwen3-8B": ModelShape(36, 4096, 12_288, 32, 8, 128, 151_936, tied=False),
    "Qwen3-14B": ModelShape(40, 5120, 17_408, 40, 8, 128, 151_936, tied=False),
    "Qwen3-32B": ModelShape(64, 5120, 25_600, 64, 8, 128, 151_936, tied=False),
}
QWEN3_8B = _QWEN3["Qwen3-8B"]
HUB_NAMES = {"smollm2": BUNDLED, **{name.lower(): f"Qwen/{name}" for name in _QWEN3}}
"""The full names of the models with a known shape, by what people write, in small letters."""


def shape_of(model: str) -> ModelShape:
    """UsageError: neither a folder with config.json nor a name that states a size."""
    if model == BUNDLED:
        return SMOLLM2
    config = Path(model).expanduser() / "config.json"
    if config.is_file():
        return _read_config(config)
    name = Path(model).name
    if name in _QWEN3:
        return _QWEN3[name]
    parameters = parameters_of(model)
    if parameters is None:
        raise UsageError(
            f"the size of '{model}' is unknown: it is no folder with a config.json and its name has no size",
            "give a folder, hermes/smollm2, or a name such as Qwen/Qwen3-8B",
        )
    return _nearest(parameters)


def _nearest(parameters: float) -> ModelShape:
    name = min(_QWEN3, key=lambda name: abs(math.log(_QWEN3[name].parameters / parameters)))
    return replace(_QWEN3[name], stated_parameters=parameters, assumed_from=name)


def _read_config(path: Path) -> ModelShape:
    try:
        config = parse_object(path.read_text("utf-8"))
        config = config.get("text_config", config)
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        return ModelShape(
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            intermediate=int(config["intermediate_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            vocab=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} does not describe a model that can be planned for: {type(error).__name__}: {error}",
            "it needs the fields of a transformers configuration of a causal language model",
        ) from error
