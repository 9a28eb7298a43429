"""Opens the tokenizer of a model, by a folder or by a hub name.

The result is always the tokenizer that `AutoTokenizer` would return. But `AutoTokenizer` imports torch to
learn the model's type, which takes two thirds of the processor time of an environment's start and of its
memory. So a folder that states one of the classes below is opened by that class, which needs no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hermes.core import parse_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PLAIN_CLASSES = frozenset({"TokenizersBackend", "PreTrainedTokenizerFast"})
_CLASSES_BY_FAMILY = {
    "llama": _PLAIN_CLASSES,
    "qwen2": frozenset({"Qwen2Tokenizer"}),
    "qwen3": frozenset({"Qwen2Tokenizer"}),
}
"""By the `model_type` of the model. With other pairs `AutoTokenizer` may replace the stated class:
qwen2 with a plain class becomes Qwen2Tokenizer."""


def open_tokenizer(source: str | Path, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """OSError, ValueError, KeyError or ImportError of transformers if it cannot be opened."""
    import transformers

    name = _stated_class(Path(source))
    opener: Any = getattr(transformers, name) if name else transformers.AutoTokenizer
    arguments = {} if name else {"trust_remote_code": trust_remote_code}
    return cast("PreTrainedTokenizerBase", opener.from_pretrained(str(source), **arguments))


def open_tokenizer_if_any(source: str | Path) -> PreTrainedTokenizerBase | None:
    """None if the model has none that transformers can open: then it is used by token ids alone."""
    try:
        return open_tokenizer(source)
    except (OSError, ValueError, KeyError):
        return None


def _stated_class(folder: Path) -> str | None:
    """The class that a folder states, if `AutoTokenizer` would use it as it is."""
    model, tokenizer = _read_object(folder / "config.json"), _read_object(folder / "tokenizer_config.json")
    name = tokenizer.get("tokenizer_class")
    if "auto_map" in tokenizer or name not in _CLASSES_BY_FAMILY.get(model.get("model_type", ""), ()):
        return None
    return str(name) if (folder / "tokenizer.json").is_file() else None


def _read_object(path: Path) -> dict[str, Any]:
    """Empty if there is no such file. A broken one is left to transformers, which names the fault."""
    try:
        return parse_object(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
