"""Reads what a server says a call consumed, in the dialects that servers use.

The five counters are disjoint. Servers report cached, written and thinking tokens as part of the
prompt or completion count, so those parts are subtracted here; where a server's own total shows that
it counts thinking beside the completion, it is not. A server that reports nothing gives None.
"""

from __future__ import annotations

from hermes.core import JSON, JSONObject, Usage

_BYTES_PER_TOKEN = 3
"""Below what tokenizers reach on prose and code, so that an estimate is seldom too low."""


def read_usage(raw: JSONObject) -> Usage | None:
    """The usage of a response, or None if it does not say."""
    data = raw.get("usage")
    if not isinstance(data, dict) or not _count(data, "prompt_tokens") + _count(data, "completion_tokens"):
        return None
    prompt, completion = _count(data, "prompt_tokens"), _count(data, "completion_tokens")
    details = _object(data, "prompt_tokens_details")
    cached = (
        _count(details, "cached_tokens")
        or _count(data, "prompt_cache_hit_tokens")
        or _count(data, "cache_read_input_tokens")
    )
    written = _count(details, "cache_write_tokens") or _count(data, "cache_creation_input_tokens")
    thinking = _count(_object(data, "completion_tokens_details"), "reasoning_tokens") or _count(
        data, "reasoning_tokens"
    )
    beside = thinking and _count(data, "total_tokens") == prompt + completion + thinking
    return Usage(
        input_tokens=max(0, prompt - cached - written),
        cached_input_tokens=cached,
        cache_write_tokens=written,
        output_tokens=completion if beside else max(0, completion - thinking),
        reasoning_tokens=thinking,
    )


def reported_cost_usd(raw: JSONObject) -> float | None:
    """What the server itself says the call cost (OpenRouter does), or None."""
    cost = _object(raw, "usage").get("cost")
    return float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) else None


def estimate_tokens(text: str) -> int:
    """A cautious guess at the length of a text, for reserving budget before the server has counted."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


def _count(data: JSONObject, key: str) -> int:
    value: JSON = data.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _object(data: JSONObject, key: str) -> JSONObject:
    value: JSON = data.get(key)
    return value if isinstance(value, dict) else {}
