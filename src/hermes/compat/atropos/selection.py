"""Best-of-n selection, and sampling with different first tokens."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from typing import Any


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
