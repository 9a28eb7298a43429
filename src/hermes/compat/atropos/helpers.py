"""Small functions and constants that environment files import from atroposlib."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, create_model

from hermes.envs.modes.evaluate import table
from hermes.envs.tokenise import tokenize_for_trainer

if TYPE_CHECKING:
    import numpy as np

ENV_NAMESPACE = "env"
OPENAI_NAMESPACE = "openai"
SERVER_MANAGER_NAMESPACE = "server"
NAMESPACE_SEP = "."


async def parse_http_response(resp: Any, logger: logging.Logger | None = None) -> Any:
    """The JSON of an aiohttp response; an error status is logged with the body, and raised."""
    if resp.status >= 400:
        (logger or logging.getLogger(__name__)).error(
            "%s returned %s: %s", resp.url, resp.status, await resp.text()
        )
    resp.raise_for_status()
    return await resp.json()


def display_metrics_table(
    task_name: str, metrics: dict[str, Any], start_time: float, end_time: float
) -> None:
    sys.stdout.write(table(task_name, metrics, {}, end_time - start_time))


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


def merge_dicts(*dicts: dict[str, Any]) -> dict[str, Any]:
    """One dictionary of all; later ones override earlier ones."""
    return {key: value for mapping in dicts for key, value in mapping.items()}


def extract_namespace(model: Any, prefix: str) -> dict[str, Any]:
    """The entries whose key begins with the prefix, without it."""
    data = model if isinstance(model, dict) else model.model_dump(by_alias=True)
    return {key[len(prefix) :]: value for key, value in data.items() if key.startswith(prefix)}


def get_prefixed_pydantic_model(base_model: type[BaseModel], prefix: str) -> type[BaseModel]:
    """The same model with a prefix before the name of each field."""
    fields: dict[str, Any] = {
        prefix + name: (field.annotation, field) for name, field in base_model.model_fields.items()
    }
    return create_model(f"{base_model.__name__}Prefixed", **fields)


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


async def generate_with_diverse_first_tokens(
    self: Any,
    messages: list[dict[str, Any]],
    prefill: str = "",
    n: int = 8,
    max_tokens: int = 4096,
    temperature: float = 1.0,
) -> list[str]:
    """Completions that begin with different tokens, drawn by their probability."""
    opening = await self.server.chat_completion(
        messages=[*messages, {"role": "assistant", "content": prefill}],
        n=1,
        max_tokens=1,
        temperature=0.0,
        logprobs=True,
        top_logprobs=20,
    )
    top_logprobs = opening.choices[0].logprobs.content[0].top_logprobs
    logprobs = {candidate.token: candidate.logprob for candidate in top_logprobs}
    # The Gumbel top-k trick: the highest noisy logprobs are a draw without replacement.
    noisy = {
        token: logprob / temperature - math.log(-math.log(random.uniform(1e-12, 1 - 1e-12)))
        for token, logprob in logprobs.items()
    }
    first_tokens = sorted(noisy, key=noisy.__getitem__, reverse=True)[:n]

    async def complete(first_token: str) -> str:
        response = await self.server.chat_completion(
            messages=[*messages, {"role": "assistant", "content": prefill + first_token}],
            n=1,
            max_tokens=max_tokens - 1,
            temperature=temperature,
        )
        return first_token + str(response.choices[0].message.content)

    return list(await asyncio.gather(*map(complete, first_tokens)))


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


def allclose_to_first(
    values: Any,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
    return_vector: bool = False,
) -> Any:
    """Whether all arrays are close to the first; with `return_vector`, one boolean per array."""
    import numpy as np

    rows = np.asarray(values)
    close = np.isclose(rows, rows[0], rtol=rtol, atol=atol, equal_nan=equal_nan)
    rows_close = close.reshape(len(rows), -1).all(axis=1)
    return rows_close if return_vector else bool(rows_close.all())


def compute_stats(data: Sequence[Any]) -> dict[str, float]:
    """`mean` and `var` of all numbers in a nested, possibly jagged list."""
    numbers = list(_numbers(data))
    if not numbers:
        raise ValueError("there are no numbers to take the mean of")
    mean = sum(numbers) / len(numbers)
    return {"mean": mean, "var": sum((number - mean) ** 2 for number in numbers) / len(numbers)}


def _numbers(data: Any) -> Iterator[float]:
    if isinstance(data, int | float):
        yield data
    elif hasattr(data, "__iter__") and not isinstance(data, str):
        for part in data:
            yield from _numbers(part)
    elif hasattr(data, "item"):
        yield data.item()
    else:
        raise ValueError(f"{data!r} is not a number")


def compute_discounted_returns(rewards: Any, gamma: float) -> np.ndarray[Any, Any]:
    """The discounted return of each step."""
    import numpy as np

    values = np.asarray(rewards, dtype=np.float64 if isinstance(rewards, np.ndarray) else np.float32)
    returns = np.empty_like(values)
    running = 0.0
    for step in range(len(values) - 1, -1, -1):
        running = float(values[step]) + gamma * running
        returns[step] = running
    return returns


def compute_grpo_process_supervision_advantages(
    rewards: Sequence[Sequence[float]], gamma: float | None = None, std_tol: float = 1e-8
) -> list[np.ndarray[Any, Any]]:
    """Rewards normalised over all steps of the group, then summed from the end, discounted by `gamma`."""
    import numpy as np

    stats = compute_stats(rewards)
    spread = stats["var"] ** 0.5
    if spread < std_tol:
        raise ValueError(
            f"the rewards are all the same (standard deviation {spread:g}): there is no advantage"
        )
    normal = [(np.asarray(steps, dtype=np.float64) - stats["mean"]) / spread for steps in rewards]
    return [compute_discounted_returns(steps, 1.0 if gamma is None else gamma) for steps in normal]


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
