"""Chat over any OpenAI-compatible endpoint.

Promises: every request goes through the endpoint's throttle and the budget; retryable failures are
retried within the deadline; the reply carries the server's own JSON, its usage in five counters, and
exact tokens where the server returned them. A streamed response (with `on_delta`) gives the same record.

The chunks of a streamed response are merged into the object that an unstreamed one would be. Tolerated: empty
chunks, chunks without choices, repeated headers, finish reasons and usage. Text is used exactly as sent,
twice if it was sent twice: two equal pieces in a row are ordinary text. A stream that ends without a finish
reason was cut off, and `result` returns None.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from hermes.core import JSON, JSONObject, ModelCall
from hermes.errors import ProviderError
from hermes.models.base import ChatModel, ChatReply, ChatRequest, OnDelta, StreamDelta
from hermes.models.budget import Budget, Spent
from hermes.models.fields import as_list, as_object, as_objects, as_text, finite
from hermes.models.remote import wire
from hermes.models.remote.endpoint import RemoteModel
from hermes.models.remote.throttle import Throttle
from hermes.models.remote.wire import read_content
from hermes.models.tokens.traces import read_trace
from hermes.models.usage import estimate_prompt

if TYPE_CHECKING:
    from hermes.config.providers import ModelTarget
    from hermes.config.settings import PriceSettings
    from hermes.models.parsers import ToolCallParser

_PATH = "/chat/completions"


class OpenAIChat(RemoteModel, ChatModel):
    """A model on a remote endpoint."""

    def __init__(
        self, target: ModelTarget, price: PriceSettings | None = None, budget: Budget | None = None
    ) -> None:
        super().__init__(target, price, budget)
        self._parser = _parser(target.settings.parser)

    @property
    def throttle(self) -> Throttle:
        """The running loop's throttle of this endpoint, for monitoring."""
        return self._endpoint.throttle

    async def complete(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        request = replace(request, sampling=self._sampling(request.sampling))
        body = wire.chat_body(self._target.model, request, self._dialect)
        prompt_tokens = estimate_prompt(request.messages, request.tools)

        async def attempt(spent: Spent) -> ChatReply:
            reply = await self._attempt(request, body, on_delta)
            spent.book(reply.call.usage, reply.call.cost_usd, json.dumps(reply.message.to_json()))
            return reply

        def tell_retry(error: ProviderError, pause_s: float) -> None:
            if on_delta is not None:
                on_delta(StreamDelta(retry=f"{error.message} The next attempt follows in {pause_s:.1f} s."))

        reply, attempts = await self._call(
            attempt, prompt_tokens, request.sampling, request.timeout_s, tell_retry
        )
        return replace(reply, call=replace(reply.call, attempts=attempts))

    async def _attempt(self, request: ChatRequest, body: JSONObject, on_delta: OnDelta | None) -> ChatReply:
        started_s = time.perf_counter()
        first_token_s: float | None = None
        if on_delta is None:
            raw = await self._endpoint.post(_PATH, body)
        else:
            raw, first_token_s = await self._stream(body, on_delta)
        latency_s = time.perf_counter() - started_s
        return self._read(request, raw, latency_s, first_token_s and first_token_s - started_s)

    async def _stream(self, body: JSONObject, on_delta: OnDelta) -> tuple[JSONObject, float | None]:
        """The merged response, and when its first piece arrived."""
        merger = StreamMerger()
        first_token_s: float | None = None

        def feed(chunk: JSONObject) -> None:
            nonlocal first_token_s
            delta = merger.feed(chunk)
            if delta is None:
                return
            first_token_s = first_token_s or time.perf_counter()
            if delta.text or delta.reasoning:
                on_delta(delta)

        streaming = {**body, "stream": True, "stream_options": {"include_usage": True}}
        whole = await self._endpoint.stream(_PATH, streaming, feed)
        if whole is not None:
            message = as_object(self._endpoint.first_choice(whole).get("message"))
            on_delta(StreamDelta(as_text(message.get("content"))))
            return whole, None
        merged = merger.result()
        if merged is None:
            raise ProviderError(
                f"{self._endpoint.ref.url} ended the stream before the answer was complete.", retryable=True
            )
        return finite(merged), first_token_s

    def _read(
        self, request: ChatRequest, raw: JSONObject, latency_s: float, first_token_s: float | None
    ) -> ChatReply:
        choice = self._endpoint.first_choice(raw)
        message = choice.get("message")
        if not isinstance(message, dict):
            raise ProviderError(f"{self._endpoint.ref.url} answered without a message.", retryable=True)
        read = wire.message_from_wire(message, self._parser, request.tools)
        usage, cost_usd = self._bill(raw)
        call = ModelCall(
            model=self.name,
            endpoint=self._endpoint.ref.url,
            sampling=request.sampling,
            finish_reason=as_text(choice.get("finish_reason")) or "unknown",
            usage=usage,
            latency_ms=latency_s * 1000,
            cost_usd=cost_usd,
            first_token_ms=None if first_token_s is None else first_token_s * 1000,
            raw=raw,
            tokens=read_trace(raw, choice),
            parser=read.parser,
        )
        return ChatReply(read.message, call, wire.seen(request.messages, self._dialect))


def _parser(name: str | None) -> ToolCallParser | None:
    if name is None:
        return None
    from hermes.models.parsers import get_parser

    return get_parser(name)


_CONCATENATED = ("content", "refusal", "reasoning", "reasoning_content", "reasoning_details")


class StreamMerger:
    def __init__(self) -> None:
        self._top: JSONObject = {}
        self._choice: JSONObject = {"index": 0}
        self._message: JSONObject = {"role": "assistant", "content": None}
        self._calls: list[JSONObject] = []
        self._indexes: list[JSON] = []
        """The index under which each call's pieces arrive."""

    def feed(self, chunk: JSONObject) -> StreamDelta | None:
        """Adds a chunk. Returns its text for display, or None if it has no output."""
        for key, value in chunk.items():
            if key != "choices" and value is not None:
                self._top[key] = value
        delta: JSONObject = {}
        for choice in as_objects(chunk.get("choices")):
            if choice.get("index", 0) == 0:
                self._feed_choice(choice)
                delta = as_object(choice.get("delta"))
                self._feed_delta(delta)
        text, inline = read_content(delta.get("content"))
        thinking = as_text(delta.get("reasoning_content")) or as_text(delta.get("reasoning")) or inline or ""
        return StreamDelta(text, thinking) if text or thinking or delta.get("tool_calls") else None

    def result(self) -> JSONObject | None:
        """The whole response, or None if the stream was cut off."""
        return self.partial() if self._choice.get("finish_reason") else None

    def partial(self) -> JSONObject:
        """The part of the response that has arrived."""
        message = {**self._message, **({"tool_calls": self._calls} if self._calls else {})}
        return {**self._top, "object": "chat.completion", "choices": [{**self._choice, "message": message}]}

    def _feed_choice(self, choice: JSONObject) -> None:
        for key, value in choice.items():
            if value is None or key == "delta":
                continue
            if key == "token_ids":
                self._choice.setdefault(key, []).extend(as_list(value))
            elif key == "logprobs":
                merged = self._choice.setdefault(key, {})
                for name, entries in as_object(value).items():
                    merged.setdefault(name, []).extend(as_list(entries))
            else:
                self._choice[key] = value

    def _feed_delta(self, delta: JSONObject) -> None:
        for key, value in delta.items():
            if key == "tool_calls":
                for piece in as_objects(value):
                    self._feed_call(piece)
            elif value is None:
                continue
            elif key in _CONCATENATED:
                self._message[key] = _concatenate(self._message.get(key), value)
            else:
                self._message[key] = value

    def _feed_call(self, piece: JSONObject) -> None:
        function = as_object(piece.get("function"))
        name, arguments = as_text(function.get("name")), as_text(function.get("arguments"))
        call = self._find_call(piece.get("index"), piece.get("id"), name)
        if call is None:
            self._indexes.append(piece.get("index"))
            rest = {key: value for key, value in piece.items() if key != "index"}
            self._calls.append({**rest, "function": {**function, "name": name, "arguments": arguments}})
            return
        merged = call["function"]
        repeated = bool(name) and name == merged["name"] and arguments == merged["arguments"]
        if not repeated:
            merged["name"] = merged["name"] or name
            merged["arguments"] += arguments
        call["id"] = call.get("id") or piece.get("id")

    def _find_call(self, index: JSON, call_id: JSON, name: str) -> JSONObject | None:
        """The call a piece belongs to; None if it begins a new one.

        The index decides. But some servers send none, or the same for all calls, so a piece with both a name
        and an id of its own begins a new call whatever its index is.
        """
        for position in reversed(range(len(self._calls))):
            call = self._calls[position]
            foreign = bool(name and call_id and call.get("id") and call["id"] != call_id)
            if self._indexes[position] == index and not foreign:
                return call
        return None


def _concatenate(old: JSON, new: JSON) -> JSON:
    """Text after text; or, as soon as one of them is a list of typed parts, a list of all parts."""
    if not isinstance(old, list) and not isinstance(new, list):
        return as_text(old) + as_text(new)
    return [*_parts(old), *_parts(new)]


def _parts(value: JSON) -> list[JSON]:
    return [{"type": "text", "text": value}] if isinstance(value, str) and value else as_list(value)
