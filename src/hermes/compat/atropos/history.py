"""Shortening conversations: truncated thinking, dropped turns (`atroposlib.utils.message_history_utils`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hermes.envs.tokenise import tokenize_for_trainer

_THINKING = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_ASSISTANT_ROLES = ("agent", "assistant")
_OBSERVATION_ROLE = "environment"


def strip_thinking(response_text: str) -> str:
    """The text without the first block of thinking."""
    return _THINKING.sub("", response_text, count=1)


def truncate_thinking(response_text: str, tokenizer: Any, max_think_tokens: int) -> str:
    """Cuts the first block of thinking to its last paragraph if that fits, else to its last tokens."""
    match = _THINKING.search(response_text)
    if match is None or "</think>" in response_text[: match.start()]:
        return response_text
    thinking = match[1].strip()
    ids = tokenizer.encode(thinking, add_special_tokens=False)
    if len(ids) > max_think_tokens:
        last = thinking.rpartition("\n\n")[2].strip()
        last_ids = tokenizer.encode(last, add_special_tokens=False)
        fits = last != thinking and len(last_ids) <= max_think_tokens
        ending = tokenizer.decode(
            last_ids if fits else ids[len(ids) - max_think_tokens :], skip_special_tokens=True
        ).strip()
        thinking = f"... {ending}" if ending else ""
    inside = f"\n{thinking}\n" if thinking else ""
    return f"{response_text[: match.start()]}<think>{inside}</think>{response_text[match.end() :]}"


def ensure_trajectory_token_limit(
    trajectory: Sequence[dict[str, Any]], tokenizer: Any, max_trajectory_tokens: int
) -> list[dict[str, Any]]:
    """The steps of an episode, each within the limit: the oldest turns are dropped from all its alternatives.

    The system prompt, the last answer and the observation before it (a message of the role `environment`)
    stay. A step that is still too long, or has no messages or tokens, is dropped.
    """
    shortened = (
        _shorten(step, tokenizer, max_trajectory_tokens)
        for step in trajectory
        if step.get("messages") and step.get("tokens") and step.get("masks")
    )
    return [step for step in shortened if step is not None]


def _shorten(step: dict[str, Any], tokenizer: Any, limit: int) -> dict[str, Any] | None:
    messages = [list(alternative) for alternative in step["messages"]]
    tokens, masks = step["tokens"], step["masks"]
    while max(map(len, tokens)) > limit:
        drop = min((count for count in map(_droppable, messages) if count), default=0)
        if drop == 0:
            return None
        messages = [[alternative[0], *alternative[1 + drop :]] for alternative in messages]
        encoded = [tokenize_for_trainer(tokenizer, alternative) for alternative in messages]
        tokens, masks = [item["tokens"] for item in encoded], [item["masks"] for item in encoded]
    return {**step, "messages": messages, "tokens": tokens, "masks": masks}


def _droppable(messages: Sequence[dict[str, Any]]) -> int:
    """How many turns after the first to drop next: an observation with its answer, or one turn.

    Only a message of the role `environment` counts as an observation, as in the original: where observations
    have the role `user`, the last one may be dropped, and the step stays instead of being lost.
    """
    end = 0
    if len(messages) > 1 and messages[-1]["role"] in _ASSISTANT_ROLES:
        end = 2 if len(messages) > 2 and messages[-2]["role"] == _OBSERVATION_ROLE else 1
    spare = len(messages) - 1 - end
    pair = spare >= 2 and messages[1]["role"] == _OBSERVATION_ROLE and messages[2]["role"] in _ASSISTANT_ROLES
    return 2 if pair else min(1, max(0, spare))
