"""Tools and texts for chats in tokens."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from hermes.core import JSONObject

TOOLS: tuple[JSONObject, ...] = (
    {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
)


LONG = 100_000


def encode_plain(tokenizer: PreTrainedTokenizerBase, text: str, size: int) -> list[int]:
    """A tokenisation no encoder would choose: the text in arbitrary pieces, marks as plain characters."""
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    return [
        index
        for part in parts
        for index in tokenizer(part, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    ]
