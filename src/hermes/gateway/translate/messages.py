"""Anthropic Messages over chat completions."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from hermes.core import JSONObject, ToolCall, Usage
from hermes.gateway.translate.base import CALL, TEXT, THINKING, Translation, event, response_format
from hermes.gateway.wire import Answer, Protocol
from hermes.models.fields import as_object, as_text

_STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
_CHOICES = {"any": "required", "auto": "auto", "none": "none"}
_SIGNATURE = "aGVybWVz"
"""Clients send a block of thinking back only if it is signed; nobody checks this one."""


class MessagesTranslation(Translation):
    protocol = Protocol.MESSAGES

    def __init__(self, body: JSONObject, model: str | None) -> None:
        super().__init__(body, model)
        self._id = f"msg_{secrets.token_hex(12)}"
        self._index = -1
        """The index of the block that is being sent."""

    def fields(self) -> JSONObject:
        choice = as_object(self.body.get("tool_choice"))
        fields: JSONObject = {}
        if choice.get("type") == "tool":
            fields["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
        elif choice.get("type") in _CHOICES and self.request.tools:
            fields["tool_choice"] = _CHOICES[as_text(choice["type"])]
        if choice.get("disable_parallel_tool_use"):
            fields["parallel_tool_calls"] = False
        form = as_object(as_object(self.body.get("output_config")).get("format"))
        if form.get("type") == "json_schema":
            fields |= response_format(form.get("schema"), None)
        return fields

    def _message(self) -> JSONObject:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.request.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def start(self) -> Iterator[bytes]:
        usage = {
            **_usage(Usage()),
            "output_tokens": 0,
        }  # the provider counts at the end: message_delta has it
        yield event("message_start", {"message": {**self._message(), "usage": usage}})

    def open_item(self, kind: str, position: int) -> Iterator[bytes]:
        self._index += 1
        block: JSONObject = {"type": "text", "text": ""}
        if kind == THINKING:
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif kind == CALL:
            call_id, name = self.call_at(position)
            block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        yield event("content_block_start", {"index": self._index, "content_block": block})

    def piece(self, kind: str, position: int, text: str) -> Iterator[bytes]:
        delta = {
            TEXT: {"type": "text_delta", "text": text},
            THINKING: {"type": "thinking_delta", "thinking": text},
            CALL: {"type": "input_json_delta", "partial_json": text},
        }[kind]
        yield event("content_block_delta", {"index": self._index, "delta": delta})

    def close_item(self, kind: str, position: int) -> Iterator[bytes]:
        if kind == THINKING:
            delta = {"type": "signature_delta", "signature": _SIGNATURE}
            yield event("content_block_delta", {"index": self._index, "delta": delta})
        yield event("content_block_stop", {"index": self._index})

    def end(self, answer: Answer) -> Iterator[bytes]:
        delta = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
        yield event("message_delta", {"delta": delta, "usage": _usage(answer.usage)})
        yield event("message_stop", {})

    def failed(self, message: str) -> Iterator[bytes]:
        yield event("error", {"error": {"type": "api_error", "message": message}})

    def whole(self, answer: Answer) -> JSONObject:
        message = answer.message
        content: list[JSONObject] = []
        if message.reasoning:
            signed = {"thinking": message.reasoning, "signature": _SIGNATURE}
            content.append({"type": "thinking", **signed})
        if message.content:
            content.append({"type": "text", "text": message.content})
        for call in message.tool_calls:
            use = {"id": call.id, "name": call.name, "input": _input(call)}
            content.append({"type": "tool_use", **use})
        return {
            **self._message(),
            "content": content,
            "stop_reason": _stop_reason(answer),
            "usage": _usage(answer.usage),
        }


def _input(call: ToolCall) -> JSONObject:
    return {"unparsed": call.arguments} if call.error else call.parsed()


def _stop_reason(answer: Answer) -> str:
    if answer.message.tool_calls and answer.finish_reason == "stop":
        return "tool_use"
    return _STOP_REASONS.get(answer.finish_reason, "end_turn")


def _usage(usage: Usage) -> JSONObject:
    return {
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "output_tokens": usage.completion,
    }
