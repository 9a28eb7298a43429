"""Small functions and constants that environment files import from atroposlib."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Sequence
from typing import Any

from hermes.envs.tokenise import tokenize_for_trainer


async def parse_http_response(resp: Any, logger: logging.Logger | None = None) -> Any:
    """The JSON of an aiohttp response; an error status is logged with the body, and raised."""
    if resp.status >= 400:
        (logger or logging.getLogger(__name__)).error(
            "%s returned %s: %s", resp.url, resp.status, await resp.text()
        )
    resp.raise_for_status()
    return await resp.json()


def get_double_dash_flags() -> dict[str, Any]:
    """The flags of this process's command line; one without a value is True, `None` is None."""
    words, flags = sys.argv[1:], {}
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            continue
        name, separator, value = word[2:].partition("=")
        has_value = bool(separator)
        if not has_value and words and not words[0].startswith("--"):
            has_value, value = True, words.pop(0)
        flags[name] = (None if value == "None" else value) if has_value else True
    return flags


def parse_args_and_command() -> tuple[str | None, dict[str, Any]]:
    """The command (the first word, unless it is a flag) and the flags."""
    commands = [word for word in sys.argv[1:2] if not word.startswith("-")]
    return (commands[0] if commands else None), get_double_dash_flags()


def select_best_index(
    primary_scores: Sequence[float],
    secondary_scores: Sequence[float],
    primary_higher_is_better: bool = True,
    secondary_lower_is_better: bool = True,
) -> int:
    """Index of the best primary score; ties are broken by the secondary score, then by order."""
    if not primary_scores or len(primary_scores) != len(secondary_scores):
        raise ValueError("select_best_index needs as many secondary scores as primary ones, and at least one")
    first = 1 if primary_higher_is_better else -1
    second = -1 if secondary_lower_is_better else 1
    return max(
        range(len(primary_scores)),
        key=lambda index: (first * primary_scores[index], second * secondary_scores[index]),
    )


_ERROR = "-ERROR-"


def extract_tool_call(text: str, preferred_tags: Sequence[str] | None = None) -> str | None:
    """The text between the first pair of tags; None if there is none."""
    for tag in preferred_tags or ("tool_call",):
        if match := re.search(f"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", text, re.DOTALL):
            return match[1].strip()
    return None


def parse_tool_call(
    response: str,
    available_tools: Sequence[dict[str, Any]] | None = None,
    preferred_tags: Sequence[str] | None = None,
) -> tuple[str, dict[str, Any], bool]:
    """Name, arguments, and whether the call is invalid (the name is then `-ERROR-`)."""
    call = _read(extract_tool_call(response, preferred_tags))
    if not isinstance(call, dict):
        return _ERROR, {}, True
    name, arguments = call.get("name", ""), call.get("arguments", {})
    names = {tool.get("name") or tool.get("function", {}).get("name") for tool in available_tools or ()}
    if names and name not in names:
        return _ERROR, arguments, True
    return name, arguments, False


def _read(text: str | None) -> Any:
    """JSON; failing that, JSON with single quotes."""
    for form in (text, (text or "").replace("'", '"')):
        try:
            return json.loads(form or "", strict=False)
        except ValueError:
            continue
    return None


_THINKING = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_ASSISTANT_ROLES = ("agent", "assistant")
_OBSERVATION_ROLE = "environment"


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
