"""One call of a model: how it was sampled, what it cost, and the exact tokens where known."""

from __future__ import annotations

from dataclasses import dataclass

from hermes.core.json import JSON, JSONObject
from hermes.core.usage import Usage

INTERRUPTED = "interrupted"
"""The finish reason of a call that was stopped while its answer arrived; the message is what had arrived."""
CONTENT_FILTER = "content_filter"
"""The finish reason of a call whose answer the provider withheld."""
_WHOLE_DISTRIBUTION: JSONObject = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""The values with which these parameters leave the model's distribution as it is."""


def explicit_sampling(fields: JSONObject) -> JSONObject:
    """The request's fields, with a value for every parameter that changes the distribution of tokens.

    vLLM and SGLang take a missing one from the model's generation_config.json (Qwen3's has top_k 20), and the
    logprobs would not show it.
    """
    return {**_WHOLE_DISTRIBUTION, **{name: value for name, value in fields.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. None means 'not sent: the server's default'."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    """Longest completion, in tokens."""
    stop: tuple[str, ...] = ()
    seed: int | None = None
    reasoning_effort: str | None = None
    extra_body: JSONObject | None = None
    """Server-specific fields, sent as they are."""

    def to_json(self) -> JSONObject:
        """Only what was set."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None and value != ()}

    @classmethod
    def from_json(cls, data: JSONObject) -> Sampling:
        return cls(**{**data, "stop": tuple(data.get("stop", ()))})


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """The exact tokens of one call: what went in, what was sampled, and how likely it was."""

    prompt_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One per sampled id, under the weights that sampled it."""
    policy_version: str | None = None

    def __post_init__(self) -> None:
        if len(self.sampled_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.sampled_ids)} sampled ids but {len(self.logprobs)} logprobs")


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The record of one call. The messages and tools it saw are stored beside it by content."""

    model: str
    endpoint: str
    """Base URL, or 'local' for a model in this process."""
    sampling: Sampling
    finish_reason: str
    """As the server gave it: stop, tool_calls, length, content_filter …"""
    usage: Usage
    latency_ms: float
    cost_usd: float | None = None
    """None if the price is unknown; never 0 for 'unknown'."""
    first_token_ms: float | None = None
    attempts: int = 1
    """1 + the number of retries this answer took."""
    raw: JSON = None
    """The server's response, unparsed."""
    tokens: TokenTrace | None = None
    parser: str | None = None
    """Which text parser produced the tool calls; None if the server returned them structured."""
    tokens_withheld: str | None = None
    """Why `tokens` that the server gave were dropped: their text was redacted, or has facts of the memory."""

    def to_json(self) -> JSONObject:
        """Everything but `raw` and `tokens`, which the store keeps in columns of their own."""
        data: JSONObject = {
            "model": self.model,
            "endpoint": self.endpoint,
            "sampling": self.sampling.to_json(),
            "finish_reason": self.finish_reason,
            "usage": self.usage.to_json(),
            "latency_ms": self.latency_ms,
            "cost_usd": self.cost_usd,
            "first_token_ms": self.first_token_ms,
            "attempts": self.attempts,
        }
        if self.parser is not None:
            data["parser"] = self.parser
        if self.tokens_withheld is not None:
            data["tokens_withheld"] = self.tokens_withheld
        return data

    @classmethod
    def from_json(cls, data: JSONObject, raw: JSON = None, tokens: TokenTrace | None = None) -> ModelCall:
        return cls(
            **{
                **data,
                "sampling": Sampling.from_json(data["sampling"]),
                "usage": Usage.from_json(data["usage"]),
                "raw": raw,
                "tokens": tokens,
            }
        )
