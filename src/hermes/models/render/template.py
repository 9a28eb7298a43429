"""A conversation rendered and encoded with the model's own tokenizer and chat template.

This is the only place where Hermes applies a tokenizer's chat template to text it did not write itself.
Special tokens that occur in content are escaped (`escape`), so that only the template's own are encoded as
such.
"""

from __future__ import annotations

import inspect
import re
import secrets
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hermes.core import JSON, JSONObject, Message, Role
from hermes.core.message import hide_thinking
from hermes.errors import ProviderError
from hermes.models.render.escape import Rendered, SpecialTokenEscaper, literal, special_pattern
from hermes.models.render.jinja import TemplateRefusalError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def render_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> Rendered:
    """The prompt of a conversation of plain text, ending with the opening of the assistant's turn."""
    turns = [{"role": message.role.value, "content": message.content} for message in messages]
    return render(tokenizer, turns)


def render(
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: JSONObject | None = None,
    *,
    trusted: Set[int] = frozenset(),
    add_generation_prompt: bool = True,
) -> Rendered:
    """The conversation as text. TemplateRefusalError if the template does not accept it.

    `template_kwargs` are variables of the model's template, such as enable_thinking. `trusted` are the
    indices of turns that the model sampled: a special token in their text was sampled as one, and is not
    escaped.
    """
    escaper = SpecialTokenEscaper(_special(tokenizer), turns, tools, template_kwargs)
    text = _apply_template(
        tokenizer,
        [turn if index in trusted else escaper.escape(turn) for index, turn in enumerate(turns)],
        escaper.escape(tools),
        escaper.escape(template_kwargs),
        add_generation_prompt=add_generation_prompt,
    )
    return escaper.restore(text)


def seen_thinking(
    messages: Sequence[Message], render: Callable[[tuple[Message, ...]], Rendered]
) -> tuple[Message, ...] | None:
    """The messages without the thinking that the template drops from earlier turns; None if it drops none."""
    marks = {
        index: f"thinking-{index}-{secrets.token_hex(8)}"
        for index, message in enumerate(messages)
        if message.reasoning is not None
    }
    if not marks:
        return None
    marked = (
        replace(message, reasoning=marks[index]) if index in marks else message
        for index, message in enumerate(messages)
    )
    text = render(tuple(marked)).text
    hidden = {index for index, mark in marks.items() if mark not in text}
    return hide_thinking(messages, hidden) if hidden else None


def render_content(tokenizer: PreTrainedTokenizerBase, text: str) -> Rendered:
    """A piece of content by itself: every special token in its text is literal."""
    return literal(_special(tokenizer), text)


def encode(tokenizer: PreTrainedTokenizerBase, rendered: Rendered, start: int = 0) -> list[int]:
    """The ids of the text from `start` on."""
    ids: list[int] = []
    for text, is_literal in rendered.pieces(start):
        encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=is_literal, verbose=False)
        ids += encoded["input_ids"]
    return ids


def result_role(tokenizer: PreTrainedTokenizerBase) -> Role:
    """The role for tool results that are already written out as text.

    The tool role if the template renders it like any other; `user` for a template that wraps, moves or
    rejects tool turns.
    """
    opening: list[JSONObject] = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]
    try:
        as_user = _apply_template(tokenizer, [*opening, {"role": "user", "content": "C"}])
        as_tool = _apply_template(tokenizer, [*opening, {"role": "tool", "content": "C"}])
    except TemplateRefusalError:
        return Role.USER
    before, _, after = as_user.rpartition("user")
    return Role.TOOL if as_tool == f"{before}tool{after}" else Role.USER


def _special(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    return special_pattern(
        token.content for token in tokenizer.added_tokens_decoder.values() if token.special
    )


def _apply_template(
    tokenizer: PreTrainedTokenizerBase,
    turns: JSON,
    tools: JSON = None,
    template_kwargs: JSON = None,
    *,
    add_generation_prompt: bool = True,
) -> str:
    from jinja2 import TemplateError

    apply = tokenizer.apply_chat_template
    kwargs = template_kwargs or {}
    reserved = kwargs and sorted(kwargs.keys() & {*inspect.signature(apply).parameters, "messages", "tools"})
    if reserved:
        raise ProviderError(f"'{reserved[0]}' is not a variable of the chat template that a request may set")
    try:
        text = apply(
            turns, tools=tools or None, tokenize=False, add_generation_prompt=add_generation_prompt, **kwargs
        )
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        raise TemplateRefusalError(f"the model's chat template rejects the conversation: {error}") from error
    return str(text)
