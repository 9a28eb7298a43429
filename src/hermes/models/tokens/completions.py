"""Token-level completions: ids in, ids and logprobs out, over /v1/completions.

Ids and logprobs are the server's own. A server that does not return them is an error: encoding its text again
need not give the tokens that were sampled.

`GenerateModel` speaks SGLang's form, `POST /generate`, which the Hermes engine serves too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from hermes.core import JSONObject, Sampling, TokenTrace, Usage, explicit_sampling
from hermes.core.sequence import SAMPLING_FIELDS
from hermes.errors import ProviderError
from hermes.models.budget import Budget, Spent
from hermes.models.fields import as_count, as_object, as_text
from hermes.models.remote import wire
from hermes.models.remote.endpoint import RemoteModel
from hermes.models.tokens import traces
from hermes.models.usage import cost_usd

if TYPE_CHECKING:
    from hermes.config.providers import ModelTarget
    from hermes.config.settings import PriceSettings


@dataclass(frozen=True, slots=True)
class TokenReply:
    """One sampled continuation."""

    tokens: TokenTrace
    finish_reason: str
    usage: Usage
    text: str
    raw: JSONObject
    cost_usd: float | None
    """None if the price is unknown."""
    attempts: int = 1


class TokenModel(RemoteModel, ABC):
    """Continues token sequences on a server. Subclasses define the request and the response format."""

    path: ClassVar[str]

    @property
    def base_url(self) -> str:
        return self._target.base_url

    async def complete_tokens(
        self, prompt_ids: Sequence[int], sampling: Sampling, timeout_s: float | None = None
    ) -> TokenReply:
        """Samples a continuation. Most servers stop early unless `sampling.max_tokens` is set."""
        sampling = self._sampling(sampling)
        body = self._body(prompt_ids, sampling)

        async def attempt(spent: Spent) -> TokenReply:
            reply = self._read(await self._endpoint.post(self.path, body), prompt_ids)
            spent.book(reply.usage, reply.cost_usd, reply.text)
            return reply

        reply, attempts = await self._call(attempt, len(prompt_ids), sampling, timeout_s)
        return replace(reply, attempts=attempts)

    @abstractmethod
    def _body(self, prompt_ids: Sequence[int], sampling: Sampling) -> JSONObject: ...

    @abstractmethod
    def _read(self, raw: JSONObject, prompt_ids: Sequence[int]) -> TokenReply: ...


class CompletionModel(TokenModel):
    """Over OpenAI's /completions, as vLLM and SGLang serve it."""

    path = "/completions"

    def _body(self, prompt_ids: Sequence[int], sampling: Sampling) -> JSONObject:
        return {
            "model": self._target.model,
            "prompt": list(prompt_ids),
            "logprobs": 1,
            "return_token_ids": True,
            **explicit_sampling(wire.sampling_to_wire(sampling, self._dialect)),
        }

    def _read(self, raw: JSONObject, prompt_ids: Sequence[int]) -> TokenReply:
        choice = self._endpoint.first_choice(raw)
        sampled_ids, logprobs = traces.sampled_of(choice)
        if sampled_ids is None or logprobs is None or len(sampled_ids) != len(logprobs):
            raise ProviderError(
                f"{self._endpoint.ref.url} did not return {_missing(sampled_ids, logprobs)}.",
                "Sampling tokens needs a server that returns them, such as vLLM or SGLang.",
            )
        usage, cost_usd = self._bill(raw)
        return TokenReply(
            TokenTrace(tuple(prompt_ids), sampled_ids, logprobs, traces.policy_version_of(raw, choice)),
            finish_reason=as_text(choice.get("finish_reason")) or "unknown",
            usage=usage,
            text=as_text(choice.get("text")),
            raw=raw,
            cost_usd=cost_usd,
        )


def _missing(sampled_ids: tuple[int, ...] | None, logprobs: tuple[float, ...] | None) -> str:
    if sampled_ids is None:
        return "the ids of the tokens it sampled"
    if logprobs is None:
        return "the logprobs of the tokens it sampled"
    return f"one logprob per token ({len(logprobs)} for {len(sampled_ids)})"


_NAMES = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}


class GenerateModel(TokenModel):
    """Over /generate, as SGLang and the Hermes engine serve it."""

    path = "/generate"

    def __init__(
        self, target: ModelTarget, price: PriceSettings | None = None, budget: Budget | None = None
    ) -> None:
        # Unlike the OpenAI paths, /generate is at the server's root.
        root = target.base_url.removesuffix("/").removesuffix("/v1")
        super().__init__(replace(target, base_url=root), price, budget)

    def _body(self, prompt_ids: Sequence[int], sampling: Sampling) -> JSONObject:
        fields = sampling.to_json()
        fields.pop(
            "reasoning_effort", None
        )  # a variable of the chat template, which has been applied already
        extra = dict(fields.pop("extra_body", {}))
        fields |= {name: extra.pop(name) for name in SAMPLING_FIELDS if name in extra}
        params = {_NAMES.get(name, name): value for name, value in fields.items()}
        return {
            "input_ids": list(prompt_ids),
            "sampling_params": {**explicit_sampling(params), "skip_special_tokens": False},
            "return_logprob": True,
            **extra,
        }

    def _read(self, raw: JSONObject, prompt_ids: Sequence[int]) -> TokenReply:
        meta = as_object(raw.get("meta_info"))
        reason = _finish_reason(meta)
        url = self._endpoint.ref.url
        if reason == "abort":
            message = as_text(as_object(meta.get("finish_reason")).get("message")) or "no reason given"
            raise ProviderError(f"{url} aborted the generation: {message}", retryable=True)
        sampled_ids, logprobs = traces.sampled_of(raw)
        if meta.get("output_token_logprobs") == []:
            sampled_ids, logprobs = (), ()
        if sampled_ids is None or logprobs is None:
            raise ProviderError(
                f"{url}{self.path} did not return the ids and logprobs of the tokens it sampled.",
                "Is it SGLang or a Hermes engine? For vLLM set server_type to vllm.",
            )
        cached = min(as_count(meta.get("cached_tokens")), len(prompt_ids))
        usage = Usage(len(prompt_ids) - cached, cached, output_tokens=len(sampled_ids))
        return TokenReply(
            TokenTrace(tuple(prompt_ids), sampled_ids, logprobs, traces.policy_version_of(raw, raw)),
            finish_reason=reason,
            usage=usage,
            text=as_text(raw.get("text")),
            raw=raw,
            cost_usd=cost_usd(usage, self.price),
        )


def _finish_reason(meta: JSONObject) -> str:
    """SGLang sends an object with a type; other servers send the type itself."""
    reason = meta.get("finish_reason")
    return as_text(as_object(reason).get("type")) or as_text(reason) or "unknown"
