"""The tokens of one model call: what was given, what was sampled and how likely it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hermes.core import TokenTrace

Decode = Callable[[Sequence[int]], list[str]]
"""Ids to the text of each."""

_LEVELS = 6
_PROMPT_TAIL = 200
_MAX_SAMPLED = 4000


class ShownToken(NamedTuple):
    text: str
    token_id: int
    logprob: float | None
    """None: it was given, not sampled, and carries no loss."""
    level: int
    """0: almost certain … 5: less likely than one in a hundred."""


@dataclass(frozen=True, slots=True)
class TokenView:
    prompt: list[ShownToken]
    """The end of the prompt; the loss mask is 0 there."""
    prompt_tokens: int
    sampled: list[ShownToken]
    """The loss mask is 1 on them."""
    sampled_tokens: int
    mean_logprob: float | None
    decoded: bool
    """False: no tokenizer of the model is on this machine, so ids are shown."""
    policy_version: str | None


def token_view(trace: TokenTrace, decode: Decode | None) -> TokenView:
    tail = trace.prompt_ids[-_PROMPT_TAIL:]
    sampled = trace.sampled_ids[:_MAX_SAMPLED]
    texts = _texts([*tail, *sampled], decode)
    prompt = [ShownToken(text, token, None, 0) for text, token in zip(texts, tail, strict=False)]
    sampled_tokens = [
        ShownToken(text, token, logprob, level_of(logprob))
        for text, token, logprob in zip(texts[len(tail) :], sampled, trace.logprobs, strict=False)
    ]
    mean = math.fsum(trace.logprobs) / len(trace.logprobs) if trace.logprobs else None
    return TokenView(
        prompt,
        len(trace.prompt_ids),
        sampled_tokens,
        len(trace.sampled_ids),
        mean,
        decode is not None,
        trace.policy_version,
    )


def level_of(logprob: float) -> int:
    """Six levels, evenly spaced in nats down to a probability of one in a hundred."""
    if math.isnan(logprob):
        return _LEVELS - 1
    return min(_LEVELS - 1, max(0, math.floor(-logprob / math.log(100) * (_LEVELS - 1) + 0.5)))


def _texts(ids: Sequence[int], decode: Decode | None) -> list[str]:
    if decode is None:
        return [str(token) for token in ids]
    return decode(ids)
