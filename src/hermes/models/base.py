"""The chat model protocol: one request in, one typed reply or one typed error out.

Implementations retry what is retryable, respect their provider's limits, and raise only `ProviderError` and
its subclasses, or `LimitError`. They never execute a tool and never store anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hermes.core import JSONObject, Message, ModelCall, Sampling


@dataclass(frozen=True, slots=True)
class StreamDelta:
    """A piece of a streaming answer, for display only; the reply is the record."""

    text: str = ""
    reasoning: str = ""
    retry: str = ""
    """Set instead of text if an attempt failed and another follows: the reason. Pieces then begin again."""


OnDelta = Callable[[StreamDelta], None]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    messages: tuple[Message, ...]
    tools: tuple[JSONObject, ...] = ()
    """Tool schemas: {name, description, parameters}."""
    sampling: Sampling = field(default_factory=Sampling)
    timeout_s: float | None = None
    """Time left for this call, retries included; None: the model's own limit."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    message: Message
    call: ModelCall
    seen: tuple[Message, ...] | None = None
    """The request's messages as the model was shown them, without the thinking that was not sent or that the
    chat template dropped; None: exactly as they are."""


class ChatModel(Protocol):
    """Anything that answers a conversation."""

    @property
    def name(self) -> str:
        """As the user names it: provider/model."""
        ...

    async def complete(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        """One answer. `on_delta` is called with each piece as it arrives.

        A retried attempt starts its deltas from the beginning; a `ProviderError` is raised only when no
        attempt is left.
        """
        ...

    async def close(self) -> None: ...
