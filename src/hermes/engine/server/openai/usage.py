"""What a request took, as OpenAI counts it: a prompt once, however many samples it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hermes.engine.types import SampleRequest, SampleResult


def usage_of(requests: Sequence[SampleRequest], results: Sequence[SampleResult]) -> dict[str, Any]:
    prompt = sum(len(request.prompt) for request in requests)
    sampled = sum(len(sequence.tokens) for result in results for sequence in result.sequences)
    cached = sum(result.cached_tokens for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
