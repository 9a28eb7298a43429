"""Token-level completions in SGLang's form: `POST /generate`, ids in, ids and logprobs out.

The Hermes engine serves it too. As in `completions`, ids and logprobs are the server's own, and a server that
does not return them is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hermes.core import JSONObject, Sampling, TokenTrace, Usage, explicit_sampling
from hermes.core.sequence import SAMPLING_FIELDS
from hermes.errors import ProviderError
from hermes.models.budget import Budget
from hermes.models.fields import as_count, as_object, as_text
from hermes.models.tokens import traces
from hermes.models.tokens.completions import TokenModel, TokenReply
from hermes.models.usage import cost_usd

if TYPE_CHECKING:
    from hermes.config.providers import ModelTarget
    from hermes.config.settings import PriceSettings

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
            cost_usd=cost_usd(usage, self._price),
        )


def _finish_reason(meta: JSONObject) -> str:
    """SGLang sends an object with a type; other servers send the type itself."""
    reason = meta.get("finish_reason")
    return as_text(as_object(reason).get("type")) or as_text(reason) or "unknown"
