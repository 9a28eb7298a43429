"""A chat model that samples tokens: every context grows by appending, and every reply carries its exact ids.

A conversation continues from the ids that were sampled; only what is new (the template's special tokens, tool
results, user text) is encoded and appended. Sampled ids are never decoded and encoded again. Where the
template renders the history differently from what was sampled (it drops old thinking, trims white space,
closes a turn with another token), the prompt is encoded anew, and the two contexts are separate training
sequences; `envs.agent.sequences` detects that from the recorded ids.

One `TokenChat` follows one rollout, its sub-agents included. It samples from a `TokenSource`, which rollouts
share.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from hermes.core import Message, ModelCall, Role, Sampling, ToolCall
from hermes.errors import ContextOverflowError, ProviderError
from hermes.models.base import ChatReply, ChatRequest, OnDelta, StreamDelta
from hermes.models.render.escape import Rendered
from hermes.models.render.template import encode, render_content, seen_thinking

if TYPE_CHECKING:
    from hermes.models.render.chat import ChatRenderer
    from hermes.models.tokens.completions import TokenReply


class TokenSource(Protocol):
    """A completion endpoint that continues a sequence of token ids."""

    @property
    def name(self) -> str: ...
    @property
    def base_url(self) -> str: ...
    async def complete_tokens(
        self, prompt_ids: Sequence[int], sampling: Sampling, timeout_s: float | None = None
    ) -> TokenReply: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Context:
    """A conversation up to some message."""

    ids: tuple[int, ...]
    rendered: Rendered
    """The same as text."""
    assistant_texts: Mapping[int, str] = field(default_factory=dict)
    """The text that the model sampled, by the message's index."""


class TokenChat:
    """A `ChatModel`; see the module."""

    def __init__(self, source: TokenSource, renderer: ChatRenderer) -> None:
        self._source = source
        self._renderer = renderer
        self._contexts: dict[tuple[Message, ...], _Context] = {}
        """Conversations that end with an answer sampled here, by their messages."""

    @property
    def name(self) -> str:
        return self._source.name

    async def complete(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        """One answer; see `ChatModel`. `on_delta` receives it in one piece."""
        if any(message.images for message in request.messages):
            raise ProviderError(
                f"{self.name} is sampled by token ids, which cannot hold images.", "Leave the images out."
            )
        previous, prompt = self._prompt(request)
        sampling = replace(
            request.sampling,
            max_tokens=self._max_tokens(request.sampling, prompt),
            seed=self._seed(request.sampling.seed, len(prompt.ids)),
        )
        started_at = time.perf_counter()
        reply = await self._source.complete_tokens(prompt.ids, sampling, request.timeout_s)
        latency_ms = (time.perf_counter() - started_at) * 1000
        sampled_ids = reply.tokens.sampled_ids
        text, end_token = self._split_end_token(sampled_ids)
        message, finish_reason = self._parse(text, reply.finish_reason, request)
        # The context that was continued is not needed any more: the new one begins with it.
        self._contexts = {
            messages: context for messages, context in self._contexts.items() if context is not previous
        }
        self._contexts[(*request.messages, message)] = _Context(
            ids=(*prompt.ids, *sampled_ids),
            rendered=prompt.rendered + render_content(self._renderer.tokenizer, text) + Rendered(end_token),
            assistant_texts={**prompt.assistant_texts, len(request.messages): text},
        )
        if on_delta:
            on_delta(StreamDelta(text=message.content, reasoning=message.reasoning or ""))
        call = ModelCall(
            model=self.name,
            endpoint=self._source.base_url,
            sampling=sampling,
            finish_reason=finish_reason,
            usage=reply.usage,
            latency_ms=latency_ms,
            cost_usd=reply.cost_usd,
            attempts=reply.attempts,
            raw=reply.raw,
            tokens=reply.tokens,
            parser=self._renderer.parser.name if message.tool_calls else None,
        )
        input_messages = seen_thinking(
            request.messages, lambda messages: self._renderer.render(replace(request, messages=messages), {})
        )
        return ChatReply(message, call, input_messages)

    async def close(self) -> None:
        """Does nothing: the source is shared by many rollouts, and is closed by the code that opened it."""

    def _prompt(self, request: ChatRequest) -> tuple[_Context | None, _Context]:
        """The context that this request continues, if there is one, and the prompt."""
        previous = self._latest_context(request.messages)
        assistant_texts = previous.assistant_texts if previous else {}
        rendered = self._renderer.render(request, assistant_texts)
        tokenizer = self._renderer.tokenizer
        if previous is not None and rendered.continues(previous.rendered):
            new_ids = encode(tokenizer, rendered, len(previous.rendered.text))
            return previous, _Context((*previous.ids, *new_ids), rendered, assistant_texts)
        return previous, _Context(tuple(encode(tokenizer, rendered)), rendered, assistant_texts)

    def _latest_context(self, messages: tuple[Message, ...]) -> _Context | None:
        for end in range(len(messages), 0, -1):
            if messages[end - 1].role is Role.ASSISTANT and messages[:end] in self._contexts:
                return self._contexts[messages[:end]]
        return None

    def _seed(self, seed: int | None, prompt_tokens: int) -> int | None:
        """The seed of a call: the request's for the first of a rollout, one made of it for each later one.

        With the same seed it would draw the same numbers, and not be independent of the answer before.
        """
        if seed is None or not self._contexts:
            return seed
        digest = blake2b(f"{seed}:{prompt_tokens}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1

    def _max_tokens(self, sampling: Sampling, prompt: _Context) -> int:
        used, limit = len(prompt.ids), self._renderer.context_tokens
        if used >= limit:
            raise ContextOverflowError(
                f"the conversation has {used} tokens; the limit is {limit}, including the answer.",
                "Raise max_token_length if the model and the trainer accept longer sequences.",
            )
        return min(sampling.max_tokens or limit, limit - used)

    def _split_end_token(self, sampled_ids: Sequence[int]) -> tuple[str, str]:
        """The sampled text, and the special token that ended it, if one did."""
        last = self._renderer.tokenizer.added_tokens_decoder.get(sampled_ids[-1]) if sampled_ids else None
        if last is not None and last.special:
            return self._renderer.decode(sampled_ids[:-1]), str(last.content)
        return self._renderer.decode(sampled_ids), ""

    def _parse(self, text: str, finish_reason: str, request: ChatRequest) -> tuple[Message, str]:
        stops = [index for stop in request.sampling.stop if stop and (index := text.find(stop)) >= 0]
        parsed = self._renderer.parser.parse(text[: min(stops)] if stops else text, request.tools)
        calls = self._numbered(parsed.tool_calls, request)
        message = Message.assistant(parsed.content, reasoning=parsed.reasoning, tool_calls=calls)
        calls_tools = finish_reason == "stop" and parsed.tool_calls
        return message, "tool_calls" if calls_tools else finish_reason

    def _numbered(self, calls: Sequence[ToolCall], request: ChatRequest) -> tuple[ToolCall, ...]:
        """The calls with ids that count those of the conversation, where the model's format has none.

        The model reads the ids with the results. Drawn at random they made equal rollouts differ, so that
        neither the sampler nor the trainer could compute what they share once.
        """
        if self._renderer.native:
            return tuple(calls)
        before = sum(len(message.tool_calls) for message in request.messages)
        return tuple(replace(call, id=f"call_{number}") for number, call in enumerate(calls, start=before))
