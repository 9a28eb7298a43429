"""The bodies that SGLang and vLLM take and return: token ids in, token ids and logprobs out. Pure functions.

SGLang has `/generate`. vLLM's own server has `/v1/completions`, and Atropos's server around vLLM has a
`/generate` of another form.

A response without ids, or without a logprob for each of them, is an error: encoding the text again need not
give the sampled ids.
"""

from __future__ import annotations

from typing import Any

from hermes.core import explicit_sampling
from hermes.errors import ProviderError

Completions = tuple[list[list[int]], list[list[float]], list[str]]
"""One entry per completion: its ids, their logprobs, its finish reason."""

_NOT_SAMPLING = ("model", "prompt", "messages", "input_ids", "extra_body", "timeout")


def sampling_params(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The sampling settings among the arguments of a completion call, and the defaults of the others."""
    fields = {name: value for name, value in kwargs.items() if name not in _NOT_SAMPLING}
    return explicit_sampling(fields | (kwargs.get("extra_body") or {}))


def sglang_body(ids: list[int], kwargs: dict[str, Any]) -> dict[str, Any]:
    params = sampling_params(kwargs)
    if "max_tokens" in params:
        params["max_new_tokens"] = params.pop("max_tokens")
    return {"input_ids": ids, "sampling_params": params, "return_logprob": True}


def sglang_completions(response: Any) -> Completions:
    ids, logprobs, reasons = [], [], []
    for completion in response if isinstance(response, list) else [response]:
        meta = completion.get("meta_info") or {}
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


def sglang_prompt_logprobs(response: Any) -> tuple[list[list[int]], list[list[float]]]:
    """Top ids and logprobs of each prompt position; the first has none, because nothing precedes it."""
    completion = response[0] if isinstance(response, list) else response
    positions = (completion.get("meta_info") or {}).get("input_top_logprobs")
    if positions is None:
        raise ProviderError("the server's /generate returned no input_top_logprobs.")
    ids = [[int(entry[1]) for entry in position or ()] for position in positions]
    return ids, [[float(entry[0]) for entry in position or ()] for position in positions]


def vllm_body(model: str, ids: list[int], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": ids,
        "logprobs": 0,
        "return_token_ids": True,
        **sampling_params(kwargs),
    }


def vllm_completions(response: Any) -> Completions:
    ids, logprobs, reasons = [], [], []
    for choice in sorted(response["choices"], key=lambda choice: int(choice["index"])):
        sampled = choice.get("token_ids")
        stated = (choice.get("logprobs") or {}).get("token_logprobs")
        if sampled is None or stated is None or len(sampled) != len(stated):
            raise ProviderError(
                "the server's /v1/completions did not return the ids and logprobs of the sampled tokens.",
                "vLLM does from 0.10.2 on (return_token_ids).",
            )
        ids.append([int(token) for token in sampled])
        logprobs.append([float(logprob) for logprob in stated])
        reasons.append(finish_reason(choice.get("finish_reason")))
    return ids, logprobs, reasons


def vllm_prompt_body(model: str, ids: list[int], top_k: int) -> dict[str, Any]:
    return {"model": model, "prompt": ids, "prompt_logprobs": top_k, "max_tokens": 1, "temperature": 0.0}


def vllm_prompt_logprobs(response: Any, top_k: int) -> tuple[list[list[int]], list[list[float]]]:
    """Top ids and logprobs of each prompt position. vLLM returns the prompt's own token with them."""
    positions = response["choices"][0].get("prompt_logprobs")
    if positions is None:
        raise ProviderError("the server's /v1/completions returned no prompt_logprobs.")
    ranked = [sorted(_pairs(position), key=lambda pair: -pair[1])[:top_k] for position in positions]
    return _columns(ranked)


def atropos_vllm_body(ids: list[int], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": {"prompt_token_ids": ids}, "logprobs": 0, **sampling_params(kwargs)}


def atropos_vllm_completions(response: Any) -> Completions:
    ids, logprobs, reasons = [], [], []
    for positions, reason in zip(response["logprobs"], response["finish_reasons"], strict=True):
        chosen = [next(iter(position[0].items())) for position in positions]
        ids.append([int(token) for token, _ in chosen])
        logprobs.append([float(logprob) for _, logprob in chosen])
        reasons.append(finish_reason(reason))
    return ids, logprobs, reasons


def atropos_vllm_prompt_body(ids: list[int], top_k: int) -> dict[str, Any]:
    return {
        "prompt": {"prompt_token_ids": ids},
        "prompt_logprobs": top_k,
        "max_tokens": 1,
        "temperature": 0.0,
    }


def atropos_vllm_prompt_logprobs(response: Any) -> tuple[list[list[int]], list[list[float]]]:
    """Top ids and logprobs of each prompt position."""
    positions = response.get("prompt_logprobs")
    if positions is None:
        raise ProviderError("the server's /generate returned no prompt_logprobs.")
    if positions and isinstance(positions[0], list) and not _is_position(positions[0]):
        positions = positions[0]
    return _columns([_pairs(position) for position in positions])


def _columns(positions: list[list[tuple[int, float]]]) -> tuple[list[list[int]], list[list[float]]]:
    return [[token for token, _ in pairs] for pairs in positions], [
        [logprob for _, logprob in pairs] for pairs in positions
    ]


def _is_position(value: list[Any]) -> bool:
    """A list of one-entry dictionaries is one position; a list of positions has gaps or longer entries."""
    return bool(value) and all(isinstance(entry, dict) and len(entry) == 1 for entry in value)


def _pairs(position: Any) -> list[tuple[int, float]]:
    entries = position if isinstance(position, list) else [position or {}]
    return [
        (int(token), float(logprob["logprob"] if isinstance(logprob, dict) else logprob))
        for entry in entries
        for token, logprob in (entry or {}).items()
    ]


def finish_reason(value: Any) -> str:
    """Servers send a string, or an object with a `type`."""
    if isinstance(value, dict):
        value = value.get("type")
    return str(value) if value else "stop"
