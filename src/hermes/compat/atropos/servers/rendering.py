"""A conversation as the text of a prompt that knows which of its characters are the template's.

Only the template may write control tokens. Text that merely spells one is encoded as ordinary characters, so
that no user, tool or web page can end its own turn. What the model itself sampled stands for itself: its ids
are carried along and never encoded again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes.errors import ProviderError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class PromptPieces:
    """Text in pieces."""

    pieces: tuple[tuple[str, bool], ...]
    """(text, whether a control token spelled in it is only text)."""

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)

    def after(self, characters: int) -> PromptPieces:
        """Without its first characters."""
        left, kept = characters, []
        for text, spelled in self.pieces:
            if len(text) > left:
                kept.append((text[left:], spelled))
            left = max(0, left - len(text))
        return PromptPieces(tuple(kept))

    def encode(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        ids: list[int] = []
        for text, spelled in self.pieces:
            encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=spelled, verbose=False)
            ids += encoded["input_ids"]
        return ids


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    trusted: frozenset[int] = frozenset(),
) -> PromptPieces:
    """By the model's own template, ending where the assistant is to speak.

    `trusted` are the places of messages that the model sampled: what they spell is what was sampled.
    """
    marks = _control_marks(tokenizer)
    held: list[str] = []
    placeholder = _unused(messages, tools)

    def hold(text: str) -> str:
        def take(found: re.Match[str]) -> str:
            held.append(found[0])
            return f"{placeholder}{len(held) - 1}{placeholder}"

        return marks.sub(take, text)

    shown = [
        message if place in trusted else _map_text(message, hold) for place, message in enumerate(messages)
    ]
    text = _rendered(tokenizer, shown, _map_text(tools, hold) if tools else None)
    pieces: list[tuple[str, bool]] = []
    for index, part in enumerate(re.split(f"{placeholder}(\\d+){placeholder}", text)):
        if part:
            pieces.append((held[int(part)], True) if index % 2 else (part, False))
    return PromptPieces(tuple(pieces))


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Any], tools: Any) -> str:
    from jinja2 import TemplateError

    speaks = not messages or messages[-1].get("role") != "assistant"
    try:
        return str(
            tokenizer.apply_chat_template(
                list(messages),
                tokenize=False,
                add_generation_prompt=speaks,
                **({"tools": tools} if tools else {}),
            )
        )
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        raise ProviderError(f"the model's chat template refuses the conversation: {error}") from error


def _control_marks(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    marks = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return re.compile("|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)) or "(?!)")


def _unused(*contents: Any) -> str:
    """A run of a private-use character that is longer than any in the contents."""
    longest = 0

    def look(text: str) -> str:
        nonlocal longest
        longest = max(longest, *map(len, re.findall("\ue000+", text)), 0)
        return text

    _map_text(contents, look)
    return "\ue000" * (longest + 1)


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    """A copy in which every string but a key has been changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_text(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_map_text(part, change) for part in value]
    return value
