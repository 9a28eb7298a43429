"""Keeping conversations short: thinking cut down, old turns left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hermes.envs.tokenise import tokenize_for_trainer

_THINKING = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_SPEAKERS = ("agent", "assistant")


def strip_thinking(response_text: str) -> str:
    """Without the first block of thinking."""
    return _THINKING.sub("", response_text, count=1)


def truncate_thinking(response_text: str, tokenizer: Any, max_think_tokens: int) -> str:
    """The first block of thinking cut to its end: its last paragraph if that fits, else its last tokens."""
    found = _THINKING.search(response_text)
    if found is None:
        return response_text
    thinking = found[1].strip()
    ids = tokenizer.encode(thinking, add_special_tokens=False)
    if len(ids) > max_think_tokens:
        last = thinking.rpartition("\n\n")[2].strip()
        last_ids = tokenizer.encode(last, add_special_tokens=False)
        fits = last != thinking and len(last_ids) <= max_think_tokens
        kept = tokenizer.decode(
            last_ids if fits else ids[len(ids) - max_think_tokens :], skip_special_tokens=True
        ).strip()
        thinking = f"... {kept}" if kept else ""
    inside = f"\n{thinking}\n" if thinking else ""
    return f"{response_text[: found.start()]}<think>{inside}</think>{response_text[found.end() :]}"


def ensure_trajectory_token_limit(
    trajectory: Sequence[dict[str, Any]], tokenizer: Any, max_trajectory_tokens: int
) -> list[dict[str, Any]]:
    """The steps of an episode, each within the limit: its oldest turns are left out of all its alternatives.

    The system prompt, the last observation and the last answer stay. A step that is still too long, or lacks
    messages or tokens, is left out whole.
    """
    kept = (
        _within(step, tokenizer, max_trajectory_tokens)
        for step in trajectory
        if step.get("messages") and step.get("tokens") and step.get("masks")
    )
    return [step for step in kept if step is not None]


def _within(step: dict[str, Any], tokenizer: Any, limit: int) -> dict[str, Any] | None:
    messages = [list(alternative) for alternative in step["messages"]]
    tokens, masks = step["tokens"], step["masks"]
    while max(map(len, tokens)) > limit:
        drop = min((count for count in map(_droppable, messages) if count), default=0)
        if drop == 0:
            return None
        messages = [[alternative[0], *alternative[1 + drop :]] for alternative in messages]
        made = [tokenize_for_trainer(tokenizer, alternative) for alternative in messages]
        tokens, masks = [one["tokens"] for one in made], [one["masks"] for one in made]
    return {**step, "messages": messages, "tokens": tokens, "masks": masks}


def _droppable(messages: Sequence[dict[str, Any]]) -> int:
    """How many turns after the first may go next: an observation with its answer, or one turn."""
    end = 0
    if len(messages) > 1 and messages[-1]["role"] in _SPEAKERS:
        end = 2 if len(messages) > 2 and messages[-2]["role"] not in _SPEAKERS else 1
    spare = len(messages) - 1 - end
    pair = spare >= 2 and messages[1]["role"] not in _SPEAKERS and messages[2]["role"] in _SPEAKERS
    return 2 if pair else min(1, max(0, spare))
