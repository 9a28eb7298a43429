"""The engines' own `/generate`: ids in, ids and logprobs out. Pure functions from calls to bodies and back.

An answer that lacks ids, or a logprob for each of them, is an error: text tokenised again need not be what
was sampled.
"""

from __future__ import annotations

from typing import Any

from hermes.errors import ProviderError

Answers = tuple[list[list[int]], list[list[float]], list[str]]
"""For each answer its ids, their logprobs, and its finish reason."""

_NOT_SAMPLING = ("model", "prompt", "messages", "input_ids", "extra_body", "timeout")


def sampling_of(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The sampling settings among the arguments of a completion call."""
    return {
        name: value for name, value in kwargs.items() if name not in _NOT_SAMPLING and value is not None
    } | (kwargs.get("extra_body") or {})


def sglang_body(ids: list[int], kwargs: dict[str, Any]) -> dict[str, Any]:
    params = sampling_of(kwargs)
    if "max_tokens" in params:
        params["max_new_tokens"] = params.pop("max_tokens")
    return {"input_ids": ids, "sampling_params": params, "return_logprob": True}


def sglang_answers(answer: Any) -> Answers:
    ids, logprobs, reasons = [], [], []
    for one in answer if isinstance(answer, list) else [answer]:
        meta = one.get("meta_info") or {}
        sampled = meta.get("output_token_logprobs")
        if sampled is None:
            raise ProviderError("the server's /generate returned no output_token_logprobs.")
        ids.append([int(entry[1]) for entry in sampled])
        logprobs.append([float(entry[0]) for entry in sampled])
        reasons.append(finish_reason(meta.get("finish_reason")))
    return ids, logprobs, reasons


def sglang_prompt_body(ids: list[int], top_k: int) -> dict[str, Any]:
    return {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": top_k,
    }


def sglang_prompt_answer(answer: Any) -> tuple[list[list[int]], list[list[float]]]:
    """The first position has none: nothing comes before it."""
    one = answer[0] if isinstance(answer, list) else answer
    positions = (one.get("meta_info") or {}).get("input_top_logprobs")
    if positions is None:
        raise ProviderError("the server's /generate returned no input_top_logprobs.")
    ids = [[int(entry[1]) for entry in position or ()] for position in positions]
    return ids, [[float(entry[0]) for entry in position or ()] for position in positions]


def vllm_body(ids: list[int], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": {"prompt_token_ids": ids}, "logprobs": 0, **sampling_of(kwargs)}


def vllm_answers(answer: Any) -> Answers:
    ids, logprobs, reasons = [], [], []
    for positions, reason in zip(answer["logprobs"], answer["finish_reasons"], strict=True):
        chosen = [next(iter(position[0].items())) for position in positions]
        ids.append([int(token) for token, _ in chosen])
        logprobs.append([float(logprob) for _, logprob in chosen])
        reasons.append(finish_reason(reason))
    return ids, logprobs, reasons


def vllm_prompt_body(ids: list[int], top_k: int) -> dict[str, Any]:
    return {
        "prompt": {"prompt_token_ids": ids},
        "prompt_logprobs": top_k,
        "max_tokens": 1,
        "temperature": 0.0,
    }


def vllm_prompt_answer(answer: Any) -> tuple[list[list[int]], list[list[float]]]:
    positions = answer.get("prompt_logprobs")
    if positions is None:
        raise ProviderError("the server's /generate returned no prompt_logprobs.")
    if positions and isinstance(positions[0], list) and not _is_position(positions[0]):
        positions = positions[0]
    pairs = [_pairs(position) for position in positions]
    return [[token for token, _ in position] for position in pairs], [
        [logprob for _, logprob in position] for position in pairs
    ]


def _is_position(value: list[Any]) -> bool:
    """A list of one-entry dictionaries is one position; a list of positions has gaps or longer entries."""
    return bool(value) and all(isinstance(entry, dict) and len(entry) == 1 for entry in value)


def _pairs(position: Any) -> list[tuple[int, float]]:
    entries = position if isinstance(position, list) else [position or {}]
    found = [pair for entry in entries for pair in (entry or {}).items()]
    return [
        (int(token), float(value["logprob"] if isinstance(value, dict) else value)) for token, value in found
    ]


def finish_reason(value: Any) -> str:
    """Servers say it as a word or as an object with a type."""
    if isinstance(value, dict):
        value = value.get("type")
    return str(value) if value else "stop"
