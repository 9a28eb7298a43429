"""Conversations as token ids for a trainer, and tokenizers that return plain lists.

In transformers 5 apply_chat_template returns an object instead of the list that environments expect; with a
tokenizer of `load_tokenizer` it returns the list. `tokenize_for_trainer` is for conversations of which only
the text is known: sampled ids should be taken from the managed server, as they were sampled.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.core.sequence import MASKED
from hermes.envs.concurrency import run_until_signal
from hermes.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TRAINED_ROLES = ("assistant", "agent")


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a hub name, a folder, or the bundled model.

    A hub may be silent for minutes; CancelledError if a signal stops the environment meanwhile.
    """
    from hermes.models.tokens.tokenizer import open_tokenizer

    try:
        tokenizer = run_until_signal(lambda: open_tokenizer(_tokenizer_path(name)))
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(
            f"the tokenizer '{name}' cannot be loaded: {str(error).strip().splitlines()[0]}",
            "Set --env.tokenizer_name to the policy's hub name or folder, or to hermes/smollm2.",
        ) from error
    return return_lists(tokenizer)


def _tokenizer_path(name: str) -> str | Path:
    from hermes.config.paths import home
    from hermes.models.local import bundled

    return bundled.prepare(home()) if name == f"hermes/{bundled.NAME}" else name


def return_lists(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The same tokenizer; its apply_chat_template returns a list of ids by default."""
    original = tokenizer.apply_chat_template

    @functools.wraps(original)
    def apply_chat_template(conversation: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("tokenize", True) and kwargs.get("return_tensors") is None:
            kwargs.setdefault("return_dict", False)
        return original(conversation, *args, **kwargs)

    tokenizer.apply_chat_template = apply_chat_template  # type: ignore[method-assign]
    return tokenizer


def encode_chat(
    tokenizer: PreTrainedTokenizerBase, chat: Sequence[Any], *, add_generation_prompt: bool = False
) -> list[int]:
    """The ids of a conversation by the tokenizer's own template.

    Special tokens in the assistant's turns are encoded as such, in all other turns as ordinary characters.
    """
    from hermes.models.render.jinja import TemplateRefusalError
    from hermes.models.render.template import encode, render

    turns = list(chat)
    assistant = {index for index, message in enumerate(turns) if message["role"] in _TRAINED_ROLES}
    try:
        rendered = render(tokenizer, turns, trusted=assistant, add_generation_prompt=add_generation_prompt)
    except TemplateRefusalError as error:
        # The environment's own chat is at fault, not a model server.
        raise ValueError(error.message) from error
    return encode(tokenizer, rendered)


def tokenize_for_trainer(
    tokenizer: PreTrainedTokenizerBase,
    chat: Sequence[Any],
    include_messages: bool = False,
    train_on_all_assistant_turns: bool = False,
    finish_reason: str = "",
) -> dict[str, Any]:
    """`tokens` of the whole chat, and `masks`: the ids of the assistant's last turn, or of all its turns.

    An answer that was cut off (`finish_reason="length"`) has no end token: the one that the template adds is
    removed.
    """
    tokens = encode_chat(tokenizer, chat)
    masks = _mask_all_turns(tokenizer, chat, tokens) if train_on_all_assistant_turns else None
    if masks is None:
        start = len(encode_chat(tokenizer, chat[:-1], add_generation_prompt=True)) if len(chat) > 1 else 0
        masks = [MASKED] * min(start, len(tokens)) + tokens[start:]
    if finish_reason == "length" and tokens and tokens[-1] == tokenizer.eos_token_id:
        tokens, masks = tokens[:-1], masks[:-1]
    return {"tokens": tokens, "masks": masks, **({"messages": list(chat)} if include_messages else {})}


def _mask_all_turns(tokenizer: PreTrainedTokenizerBase, chat: Sequence[Any], tokens: list[int]) -> list[int]:
    masks = [MASKED] * len(tokens)
    for index, message in enumerate(chat):
        if message["role"] not in _TRAINED_ROLES:
            continue
        start = len(encode_chat(tokenizer, chat[:index], add_generation_prompt=True)) if index else 0
        end = min(len(encode_chat(tokenizer, chat[: index + 1])), len(tokens))
        masks[start:end] = tokens[start:end]
    return masks


def tokenize_for_trainer_dpo(
    tokenizer: PreTrainedTokenizerBase, pair: dict[str, Any], max_length: int | None = None
) -> dict[str, Any]:
    """A preference pair as text and as ids: a prompt (text or messages), a chosen and a rejected answer."""
    prompt = pair["prompt"]
    opening = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    row: dict[str, Any] = {name: pair[name] for name in ("prompt", "chosen", "rejected")}
    row |= {"prompt_input_ids": encode_chat(tokenizer, opening, add_generation_prompt=True)[:max_length]}
    for side in ("chosen", "rejected"):
        ids = encode_chat(tokenizer, [*opening, {"role": "assistant", "content": pair[side]}])[:max_length]
        row[f"{side}_input_ids"] = ids
        row[f"{side}_attention_mask"] = [1] * len(ids)
    row["prompt_attention_mask"] = [1] * len(row["prompt_input_ids"])
    return row
