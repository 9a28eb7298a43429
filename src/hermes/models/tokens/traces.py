"""Reads the exact tokens of a response, where the server returns them; text is never tokenised again.

Formats: vLLM's `token_ids` and `prompt_token_ids` (requested with `return_token_ids`), SGLang's
`meta_info.output_token_logprobs`, and token texts of the form `token_id:123`. A response
with only some of the fields of a trace has none.
"""

from __future__ import annotations

import math
import re

from hermes.core import JSON, JSONObject, TokenTrace
from hermes.models.fields import as_list, as_object, as_objects, as_text


def read_trace(raw: JSONObject, choice: JSONObject) -> TokenTrace | None:
    """The trace of a response's choice, or None if prompt ids, sampled ids or logprobs are missing."""
    prompt_ids = _ids(raw.get("prompt_token_ids", choice.get("prompt_token_ids")))
    sampled_ids, logprobs = sampled_of(choice)
    if prompt_ids is None or sampled_ids is None or logprobs is None or len(sampled_ids) != len(logprobs):
        return None
    return TokenTrace(prompt_ids, sampled_ids, logprobs, policy_version_of(raw, choice))


def sampled_of(choice: JSONObject) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None]:
    """Sampled ids and their logprobs; either may be missing."""
    pairs = as_list(as_object(choice.get("meta_info")).get("output_token_logprobs"))
    if pairs and all(isinstance(pair, list) and len(pair) >= 2 for pair in pairs):
        return _ids([pair[1] for pair in pairs]), _floats([pair[0] for pair in pairs])
    texts, logprobs = _logprobs(as_object(choice.get("logprobs")))
    sampled_ids = _ids(choice.get("token_ids"))
    return _ids_in_texts(texts) if sampled_ids is None else sampled_ids, _floats(logprobs)


def policy_version_of(raw: JSONObject, choice: JSONObject) -> str | None:
    """The version of the weights that sampled, where the server reports it (SGLang's weight_version)."""
    fields = {**as_object(raw.get("metadata")), **as_object(choice.get("meta_info"))}
    version = fields.get("weight_version")
    return None if version is None else str(version)


def _logprobs(data: JSONObject) -> tuple[JSON, JSON]:
    """Token texts and logprobs, from the chat form (`content`) or the completions form."""
    if "content" in data:
        entries = as_objects(data["content"])
        return [entry.get("token") for entry in entries], [entry.get("logprob") for entry in entries]
    return data.get("tokens"), data.get("token_logprobs")


def _ids(values: JSON) -> tuple[int, ...] | None:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        return None
    return tuple(values)


def _ids_in_texts(texts: JSON) -> tuple[int, ...] | None:
    """Ids written as `token_id:123`, vLLM's format for tokens that are not valid text."""
    matches = [re.fullmatch(r"token_id:([0-9]+)", as_text(text)) for text in as_list(texts)]
    return tuple(int(match[1]) for match in matches if match) if matches and all(matches) else None


def _floats(values: JSON) -> tuple[float, ...] | None:
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        return None
    return tuple(float(value) for value in values) if all(map(math.isfinite, values)) else None
