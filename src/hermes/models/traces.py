"""The exact tokens of a response, where the server gives them; never obtained by re-tokenising text.

Forms read: vLLM's `token_ids` and `prompt_token_ids` (asked for with `return_token_ids`), SGLang's
`meta_info.output_token_logprobs`, and token texts of the form `token_id:123`. A server that gives
only some of what a trace needs gives none.
"""

from __future__ import annotations

import math

from hermes.core import JSON, JSONObject, TokenTrace


def read_trace(raw: JSONObject) -> TokenTrace | None:
    """The trace of the first choice, or None if prompt ids, sampled ids or logprobs are missing."""
    choice = raw["choices"][0]
    prompt_ids = prompt_ids_of(raw)
    sampled_ids, logprobs = sampled_of(choice)
    if prompt_ids is None or sampled_ids is None or logprobs is None or len(sampled_ids) != len(logprobs):
        return None
    return TokenTrace(prompt_ids, sampled_ids, logprobs, policy_version_of(raw))


def prompt_ids_of(raw: JSONObject) -> tuple[int, ...] | None:
    choice = raw["choices"][0]
    return _ids(raw.get("prompt_token_ids")) or _ids(choice.get("prompt_token_ids"))


def sampled_of(choice: JSONObject) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None]:
    """Sampled ids and their logprobs; either may be missing."""
    pairs = _object(choice.get("meta_info")).get("output_token_logprobs")
    if isinstance(pairs, list) and pairs:
        return _ids([pair[1] for pair in pairs]), _floats([pair[0] for pair in pairs])
    texts, logprobs = _logprobs(_object(choice.get("logprobs")))
    return _ids(choice.get("token_ids")) or _ids_in(texts), _floats(logprobs)


def policy_version_of(raw: JSONObject) -> str | None:
    """Which weights answered, where the server names them (SGLang's weight_version)."""
    choice = raw["choices"][0]
    version = _object(choice.get("meta_info")).get("weight_version") or _object(raw.get("metadata")).get(
        "weight_version"
    )
    return None if version is None else str(version)


def _logprobs(data: JSONObject) -> tuple[JSON, JSON]:
    """Token texts and logprobs, from the chat form (`content`) or the completions form."""
    content = data.get("content")
    if isinstance(content, list):
        return [entry.get("token") for entry in content], [entry.get("logprob") for entry in content]
    return data.get("tokens"), data.get("token_logprobs")


def _ids(values: JSON) -> tuple[int, ...] | None:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        return None
    return tuple(values)


def _ids_in(texts: JSON) -> tuple[int, ...] | None:
    """Ids written as `token_id:123`, vLLM's form for tokens that are no valid text."""
    if not isinstance(texts, list):
        return None
    found = [text.removeprefix("token_id:") for text in texts if isinstance(text, str)]
    exact = len(found) == len(texts) and all(
        text.isascii() and text.isdigit() and len(text) < len(whole)
        for text, whole in zip(found, texts, strict=True)
    )
    return tuple(int(text) for text in found) if exact else None


def _floats(values: JSON) -> tuple[float, ...] | None:
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        return None
    return tuple(float(value) for value in values) if all(map(math.isfinite, values)) else None


def _object(value: JSON) -> JSONObject:
    return value if isinstance(value, dict) else {}
