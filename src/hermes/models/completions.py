"""Token-level completions: ids in, ids and logprobs out, over /v1/completions.

What comes back is what was sampled. Ids and logprobs are the server's own; a server that does not give
them is an error, since text tokenised again need not be the tokens that were sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hermes.core import JSONObject, Sampling, TokenTrace, Usage
from hermes.errors import ProviderError
from hermes.models import traces, wire
from hermes.models.budget import Budget
from hermes.models.endpoint import Endpoint
from hermes.models.fields import as_text
from hermes.models.prices import cost_usd
from hermes.models.usage import read_usage, reported_cost_usd

if TYPE_CHECKING:
    from hermes.config.providers import ModelTarget
    from hermes.config.settings import PriceSettings

_PATH = "/completions"


@dataclass(frozen=True, slots=True)
class TokenReply:
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One per sampled id, under the weights that sampled it."""
    finish_reason: str
    usage: Usage
    text: str
    raw: JSONObject
    cost_usd: float | None
    """None if the price is unknown."""
    policy_version: str | None
    """Which weights answered, where the server names them."""
    attempts: int = 1

    def trace(self, prompt_ids: Sequence[int]) -> TokenTrace:
        return TokenTrace(tuple(prompt_ids), self.sampled_ids, self.logprobs, self.policy_version)


class CompletionModel:
    """Continues token sequences on a remote endpoint such as vLLM or SGLang."""

    def __init__(
        self, target: ModelTarget, price: PriceSettings | None = None, budget: Budget | None = None
    ) -> None:
        self._endpoint = Endpoint(target)
        self._target = target
        self._price = price
        self._budget = budget or Budget()
        self._dialect = wire.dialect_for(target.base_url)

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def base_url(self) -> str:
        return self._target.base_url

    async def complete_tokens(
        self, prompt_ids: Sequence[int], sampling: Sampling, timeout_s: float | None = None
    ) -> TokenReply:
        """Samples a continuation. Servers cut it at a few tokens unless `sampling.max_tokens` is set."""
        sampling = wire.with_extra_body(sampling, self._target.settings.extra_body)
        body: JSONObject = {
            "model": self._target.model,
            "prompt": list(prompt_ids),
            "logprobs": 1,
            "return_token_ids": True,
            **wire.sampling_to_wire(sampling, self._dialect),
        }

        async def attempt() -> TokenReply:
            longest = sampling.max_tokens
            with self._budget.reserve(self.name, self._price, len(prompt_ids), longest) as spent:
                reply = self._read(await self._endpoint.post(_PATH, body))
                spent.book(reply.usage, reply.cost_usd, reply.text)
            return reply

        reply, attempts = await self._endpoint.run(attempt, timeout_s)
        return replace(reply, attempts=attempts)

    async def close(self) -> None:
        await self._endpoint.close()

    def _read(self, raw: JSONObject) -> TokenReply:
        choice = self._endpoint.first_choice(raw)
        sampled_ids, logprobs = traces.sampled_of(choice)
        if sampled_ids is None or logprobs is None or len(sampled_ids) != len(logprobs):
            raise ProviderError(
                f"{self._endpoint.place.url} did not return {_missing(sampled_ids, logprobs)}.",
                "Sampling tokens needs a server that returns them, such as vLLM or SGLang.",
            )
        usage, reported = read_usage(raw), reported_cost_usd(raw)
        return TokenReply(
            sampled_ids=sampled_ids,
            logprobs=logprobs,
            finish_reason=as_text(choice.get("finish_reason")) or "unknown",
            usage=usage or Usage(),
            text=as_text(choice.get("text")),
            raw=raw,
            cost_usd=reported if reported is not None or usage is None else cost_usd(usage, self._price),
            policy_version=traces.policy_version_of(raw, choice),
        )


def _missing(sampled_ids: tuple[int, ...] | None, logprobs: tuple[float, ...] | None) -> str:
    if sampled_ids is None:
        return "the ids of the tokens it sampled"
    if logprobs is None:
        return "the logprobs of the tokens it sampled"
    return f"one logprob per token ({len(logprobs)} for {len(sampled_ids)})"
