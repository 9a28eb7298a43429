"""Answers of the candidate and of the current policy to the same held-out prompts, and their scores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hermes.core import Header, Message, Sampling, Source, new_id
from hermes.data.example import UnfitError, build
from hermes.models.base import ChatRequest
from hermes.policies.rows import HeldOutComparison, RatedAnswerText
from hermes.ratings.auto import AutoRater

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.models.base import ChatModel

_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """The two policies' answers to one prompt."""

    prompt: tuple[Message, ...]
    before: str
    after: str
    before_score: float | None = None
    """1 to 5, of the rater that was named; None: nobody scored it."""
    after_score: float | None = None

    @property
    def result(self) -> float | None:
        """1 if the candidate's answer scored higher; None if either has no score."""
        if self.before_score is None or self.after_score is None:
            return None
        if self.before_score == self.after_score:
            return 0.5
        return float(self.after_score > self.before_score)


async def answer_both(
    config: Config,
    engine_url: str,
    models: tuple[str, str],
    comparisons: Sequence[HeldOutComparison],
    rater: AutoRater | None,
    max_tokens: int,
) -> list[AnswerPair]:
    """Greedy answers of both models (`models`: before, after) to the prompts of the comparisons."""
    from hermes.models.open import open_model

    texts = [entry.better for entry in comparisons]
    sides: list[list[str]] = []
    for name in models:
        model = open_model(config, name, f"{engine_url}/v1")
        try:
            sides.append(await _ask_all(model, texts, max_tokens))
        finally:
            await model.close()
    pairs = []
    for text, before, after in zip(texts, *sides, strict=True):
        scores = (await _score(rater, text, before), await _score(rater, text, after))
        pairs.append(AnswerPair(text.prompt, before, after, *scores))
    return pairs


async def _ask_all(model: ChatModel, texts: Sequence[RatedAnswerText], max_tokens: int) -> list[str]:
    limit = asyncio.Semaphore(_AT_ONCE)
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens)

    async def ask(text: RatedAnswerText) -> str:
        async with limit:
            reply = await model.complete(ChatRequest(text.prompt, text.tools, sampling))
        return reply.message.content or ", ".join(call.name for call in reply.message.tool_calls)

    return list(await asyncio.gather(*(ask(text) for text in texts)))


async def _score(rater: AutoRater | None, text: RatedAnswerText, answer_text: str) -> float | None:
    if rater is None:
        return None
    header = Header(new_id(), Source.ENV, "policy", 0)
    example = build(header, (*text.prompt, Message.assistant(answer_text)), tools=text.tools)
    try:
        return (await rater.rate(example)).score
    except UnfitError:
        return None
