"""Choosing among answers, and making them differ."""

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
    """The first of the best by the primary scores; among equals, by the secondary."""
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
    """Answers that begin with different tokens, drawn by how likely each is."""
    opening = await self.server.chat_completion(
        messages=[*messages, {"role": "assistant", "content": prefill}],
        n=1,
        max_tokens=1,
        temperature=0.0,
        logprobs=True,
        top_logprobs=20,
    )
    likely = {one.token: one.logprob for one in opening.choices[0].logprobs.content[0].top_logprobs}
    # Adding Gumbel noise to the logprobs and taking the highest draws without replacement.
    noisy = {
        token: logprob / temperature - math.log(-math.log(random.uniform(1e-12, 1 - 1e-12)))
        for token, logprob in likely.items()
    }
    firsts = sorted(noisy, key=noisy.__getitem__, reverse=True)[:n]

    async def go_on(first: str) -> str:
        answer = await self.server.chat_completion(
            messages=[*messages, {"role": "assistant", "content": prefill + first}],
            n=1,
            max_tokens=max_tokens - 1,
            temperature=temperature,
        )
        return first + str(answer.choices[0].message.content)

    return list(await asyncio.gather(*map(go_on, firsts)))
