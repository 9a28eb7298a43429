"""A conversation as prompt tokens, by the model's own chat template.

Only the template may write control tokens. Text that merely spells one (`<|im_end|>` in a web page, say)
is encoded as ordinary characters, so that no content can end its own turn or open another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hermes.core import JSONObject, Message, Role
from hermes.errors import ProviderError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encode_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """The prompt's ids, ending where the assistant is to speak."""
    marks = _control_marks(tokenizer)
    placeholder = _unused(message.content for message in messages)
    spelled = [mark for message in messages for mark in marks.findall(message.content)]
    turns: list[JSONObject] = [
        {"role": message.role.value, "content": marks.sub(placeholder, message.content)}
        for message in messages
    ]
    first, *others = _rendered(tokenizer, turns).split(placeholder)
    if len(others) != len(spelled):
        raise ProviderError("the chat template repeats or leaves out text that spells a control token.")
    ids = _encode(tokenizer, first)
    for mark, piece in zip(spelled, others, strict=True):
        ids += _encode(tokenizer, mark, spelled=True) + _encode(tokenizer, piece)
    return ids


def result_role(tokenizer: PreTrainedTokenizerBase) -> Role:
    """The role in which to tell tool results that are already written out.

    The tool's own, if the template treats it like any other; a template that wraps, moves or refuses tool
    turns gets them as the user's.
    """
    opening: list[JSONObject] = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]
    try:
        before, _, after = _rendered(tokenizer, [*opening, {"role": "user", "content": "C"}]).rpartition(
            "user"
        )
        told = _rendered(tokenizer, [*opening, {"role": "tool", "content": "C"}])
    except ProviderError:
        return Role.USER
    return Role.TOOL if told == f"{before}tool{after}" else Role.USER


def _control_marks(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    marks = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return re.compile("|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)) or "(?!)")


def _unused(contents: Iterable[str]) -> str:
    """A run of a private-use character that is longer than any in the contents."""
    runs = re.findall("\ue000+", "\n".join(contents))
    return "\ue000" * (1 + max(map(len, runs), default=0))


def _rendered(tokenizer: PreTrainedTokenizerBase, turns: list[JSONObject]) -> str:
    from jinja2 import TemplateError

    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    except (TemplateError, ValueError) as error:
        raise ProviderError(f"the model's chat template refuses the conversation: {error}") from error


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, *, spelled: bool = False) -> list[int]:
    encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=spelled, verbose=False)
    return list(encoded["input_ids"])
