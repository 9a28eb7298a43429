"""A call in a client's protocol over a provider's chat completions: what all protocols share.

The pieces of the provider's stream become the client's events one by one, in the order that its protocol
wants: an item is closed before the next one begins. A piece of a closed item is not sent any more (servers
stream calls one after the other); the record has it.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hermes.core import JSON, JSONObject
from hermes.errors import UsageError
from hermes.gateway import wire
from hermes.gateway.wire import Answer, Protocol
from hermes.gateway.wire import chat as chat_wire
from hermes.models.base import ChatRequest
from hermes.models.fields import as_object, as_objects, as_text
from hermes.models.remote.endpoint import EventDecoder
from hermes.models.remote.openai_chat import StreamMerger
from hermes.models.remote.wire import Dialect, chat_body

_DIALECT = Dialect(send_reasoning=True)
TEXT, THINKING, CALL = "text", "thinking", "call"


class Translation(ABC):
    """One call."""

    protocol: Protocol

    def __init__(self, body: JSONObject, model: str | None) -> None:
        """`model` is asked in place of the one that the body names."""
        self.body = body
        self.request = wire.read_request(self.protocol, body)
        if self.request.previous:
            raise UsageError("previous_response_id needs a provider that stores responses; send the history")
        self.model = model or self.request.model
        self._decoder = EventDecoder()
        self._merger = StreamMerger()
        self._sent_bytes: dict[int, int] = {}
        """By position of a call: the characters of its arguments that were sent."""
        self._open: tuple[str, int] | None = None
        """The kind and, of a call, the position of the item that is being sent."""

    @abstractmethod
    def fields(self) -> JSONObject:
        """The fields of the chat request besides messages, tools and sampling."""

    def tools(self) -> Sequence[JSONObject]:
        return self.request.tools

    def chat_body(self, *, stream: bool) -> JSONObject:
        sampling = replace(self.request.sampling, extra_body=None)
        request = ChatRequest(self.request.messages, tuple(self.tools()), sampling)
        body = {**chat_body(self.model, request, _DIALECT), **self.fields()}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    @property
    def complete(self) -> bool:
        """Whether the provider's answer has arrived."""
        return self._merger.result() is not None

    def answer(self) -> Answer:
        return chat_wire.read_answer(self._merger.partial(), self.complete)

    def feed(self, received: bytes) -> bytes:
        """The events for what has arrived."""
        return b"".join(event for data in self._decoder.feed(received) for event in self._events(data))

    def finish(self) -> bytes:
        """The events that end the answer."""
        return b"".join([*self._begin(), *self._close(), *self.end(self.answer())])

    def fail(self, message: str) -> bytes:
        """The event of a stream that cannot go on."""
        return b"".join(self.failed(message))

    def _events(self, data: bytes) -> Iterator[bytes]:
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            return
        if not isinstance(chunk, dict):
            return
        delta = self._merger.feed(chunk)
        if delta is None:
            return
        yield from self._begin()
        if delta.reasoning:
            yield from self._switch((THINKING, 0))
            yield from self.piece(THINKING, 0, delta.reasoning)
        if delta.text:
            yield from self._switch((TEXT, 0))
            yield from self.piece(TEXT, 0, delta.text)
        yield from self._call_events()

    def _call_events(self) -> Iterator[bytes]:
        for position, call in enumerate(self._calls()):
            function = as_object(call.get("function"))
            arguments = as_text(function.get("arguments"))
            if position not in self._sent_bytes:
                if not function.get("name"):
                    continue
                self._sent_bytes[position] = 0
                yield from self._switch((CALL, position))
            new = arguments[self._sent_bytes[position] :]
            if new and self._open == (CALL, position):
                self._sent_bytes[position] = len(arguments)
                yield from self.piece(CALL, position, new)

    def _calls(self) -> list[JSONObject]:
        choice = as_objects(self._merger.partial()["choices"])[0]
        return as_objects(as_object(choice.get("message")).get("tool_calls"))

    def call_at(self, position: int) -> tuple[str, str]:
        """The id and the name of a call."""
        call = self._calls()[position]
        if not call.get("id"):
            call["id"] = f"call_{secrets.token_hex(12)}"
        return as_text(call["id"]), as_text(as_object(call.get("function")).get("name"))

    def _begin(self) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            yield from self.start()

    _begun = False

    def _switch(self, item: tuple[str, int]) -> Iterator[bytes]:
        if self._open != item:
            yield from self._close()
            self._open = item
            yield from self.open_item(*item)

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            yield from self.close_item(*self._open)
            self._open = None

    @abstractmethod
    def start(self) -> Iterator[bytes]: ...

    @abstractmethod
    def open_item(self, kind: str, position: int) -> Iterator[bytes]: ...

    @abstractmethod
    def piece(self, kind: str, position: int, text: str) -> Iterator[bytes]: ...

    @abstractmethod
    def close_item(self, kind: str, position: int) -> Iterator[bytes]: ...

    @abstractmethod
    def end(self, answer: Answer) -> Iterator[bytes]: ...

    @abstractmethod
    def failed(self, message: str) -> Iterator[bytes]: ...

    @abstractmethod
    def whole(self, answer: Answer) -> JSONObject:
        """The response that is not streamed."""


def event(kind: str, data: JSONObject) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), json.dumps({"type": kind, **data}).encode())


def response_format(schema: JSON, name: JSON) -> JSONObject:
    described = {"name": as_text(name) or "answer", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": described}}
