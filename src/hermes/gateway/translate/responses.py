"""OpenAI Responses over chat completions.

A tool with free text as its input becomes a function with one argument, and its calls become calls of such a
tool again. Tools that the provider of Responses runs itself (web search) are not offered.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence

from hermes.core import JSONObject, Usage
from hermes.gateway.translate.base import TEXT, THINKING, Translation, event, response_format
from hermes.gateway.wire import Answer, Protocol
from hermes.gateway.wire.responses import tools_of
from hermes.models.fields import as_object, as_objects, as_text

_FREE_TEXT: JSONObject = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
_RUN_BY_CLIENTS = ("function", "custom", "namespace")


class ResponsesTranslation(Translation):
    protocol = Protocol.RESPONSES

    def __init__(self, body: JSONObject, model: str | None) -> None:
        super().__init__(body, model)
        self._id = f"resp_{secrets.token_hex(12)}"
        self._sequence = 0
        self._output: list[JSONObject] = []
        """The items that were sent, the open one last."""
        tools = as_objects(body.get("tools"))
        offered = {**body, "tools": [tool for tool in tools if tool.get("type") in _RUN_BY_CLIENTS]}
        self._tools = list(tools_of(offered))
        self._namespaces = {tool["name"]: space for tool, space in self._tools if space}
        self._custom = {as_text(tool.get("name")) for tool in tools if tool.get("type") == "custom"}

    def tools(self) -> Sequence[JSONObject]:
        return [
            {**tool, "parameters": _FREE_TEXT} if tool["name"] in self._custom else tool
            for tool, _ in self._tools
        ]

    def fields(self) -> JSONObject:
        choice = self.body.get("tool_choice")
        fields: JSONObject = {}
        if isinstance(choice, dict) and choice.get("name"):
            fields["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
        elif choice in ("required", "none") and self._tools:
            fields["tool_choice"] = choice
        if self._tools and self.body.get("parallel_tool_calls") is False:
            fields["parallel_tool_calls"] = False
        form = as_object(as_object(self.body.get("text")).get("format"))
        if form.get("type") == "json_schema":
            fields |= response_format(form.get("schema"), form.get("name"))
        return fields

    def _event(self, kind: str, **data: object) -> bytes:
        self._sequence += 1
        return event(kind, {"sequence_number": self._sequence - 1, **data})

    def _response(self, status: str, usage: Usage | None = None) -> JSONObject:
        return {
            "id": self._id,
            "object": "response",
            "created_at": int(time.time()),
            "status": status,
            "model": self.request.model,
            "output": list(self._output) if usage else [],
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": self.body.get("instructions"),
            "metadata": {},
            "parallel_tool_calls": self.body.get("parallel_tool_calls", True),
            "tool_choice": self.body.get("tool_choice", "auto"),
            "tools": self.body.get("tools") or [],
            "temperature": self.body.get("temperature"),
            "top_p": self.body.get("top_p"),
            "usage": _usage(usage) if usage else None,
        }

    def start(self) -> Iterator[bytes]:
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def open_item(self, kind: str, position: int) -> Iterator[bytes]:
        item = self._item(kind, position, "")
        self._output.append(item)
        at = self._place()
        empty = {**item, "status": "in_progress"}
        if kind == TEXT:
            empty["content"] = []
        elif kind == THINKING:
            empty = {**item, "summary": []}
        yield self._event("response.output_item.added", output_index=at["output_index"], item=empty)
        if kind == TEXT:
            yield self._event("response.content_part.added", **at, content_index=0, part=item["content"][0])
        elif kind == THINKING:
            part = item["summary"][0]
            yield self._event("response.reasoning_summary_part.added", **at, summary_index=0, part=part)

    def _place(self) -> JSONObject:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _item(self, kind: str, position: int, text: str) -> JSONObject:
        if kind == TEXT:
            part = {"type": "output_text", "text": text, "annotations": []}
            item: JSONObject = {"type": "message", "role": "assistant", "content": [part]}
            return {"id": _new_id("msg"), "status": "completed", **item}
        if kind == THINKING:
            return {
                "id": _new_id("rs"),
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": text}],
            }
        call_id, name = self.call_at(position)
        return self._call_item(call_id, name, text)

    def _call_item(self, call_id: str, name: str, arguments: str) -> JSONObject:
        if name in self._custom:
            item = {"type": "custom_tool_call", "input": _free_text(arguments)}
            return {"id": _new_id("ctc"), "call_id": call_id, "name": name, "status": "completed", **item}
        item = {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
        space = {"namespace": self._namespaces[name]} if name in self._namespaces else {}
        return {"id": _new_id("fc"), "status": "completed", **item, **space}

    def piece(self, kind: str, position: int, text: str) -> Iterator[bytes]:
        item = self._output[-1]
        if kind == TEXT:
            item["content"][0]["text"] += text
            yield self._event("response.output_text.delta", **self._place(), content_index=0, delta=text)
        elif kind == THINKING:
            item["summary"][0]["text"] += text
            yield self._event(
                "response.reasoning_summary_text.delta", **self._place(), summary_index=0, delta=text
            )
        elif item["type"] == "function_call":
            item["arguments"] += text
            yield self._event("response.function_call_arguments.delta", **self._place(), delta=text)

    def close_item(self, kind: str, position: int) -> Iterator[bytes]:
        item, at = self._output[-1], self._place()
        if kind == TEXT:
            part = item["content"][0]
            text = part["text"]
            yield self._event("response.output_text.done", **at, content_index=0, text=text)
            yield self._event("response.content_part.done", **at, content_index=0, part=part)
        elif kind == THINKING:
            part = item["summary"][0]
            text = part["text"]
            yield self._event("response.reasoning_summary_text.done", **at, summary_index=0, text=text)
            yield self._event("response.reasoning_summary_part.done", **at, summary_index=0, part=part)
        elif item["type"] == "function_call":
            arguments = item["arguments"]
            yield self._event("response.function_call_arguments.done", **at, arguments=arguments)
        else:
            text = item["input"] = _free_text(self._arguments_at(position))
            yield self._event("response.custom_tool_call_input.delta", **at, delta=text)
            yield self._event("response.custom_tool_call_input.done", **at, input=text)
        yield self._event("response.output_item.done", output_index=at["output_index"], item=item)

    def _arguments_at(self, position: int) -> str:
        return self.answer().message.tool_calls[position].arguments

    def end(self, answer: Answer) -> Iterator[bytes]:
        status = "incomplete" if answer.finish_reason == "length" else "completed"
        yield self._event(f"response.{status}", response=self._response(status, answer.usage))

    def failed(self, message: str) -> Iterator[bytes]:
        error = {"code": "server_error", "message": message}
        yield self._event("response.failed", response={**self._response("failed"), "error": error})

    def whole(self, answer: Answer) -> JSONObject:
        message = answer.message
        if message.reasoning:
            self._output.append(self._item(THINKING, 0, message.reasoning))
        if message.content:
            self._output.append(self._item(TEXT, 0, message.content))
        self._output += [self._call_item(call.id, call.name, call.arguments) for call in message.tool_calls]
        status = "incomplete" if answer.finish_reason == "length" else "completed"
        return self._response(status, answer.usage)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def _free_text(arguments: str) -> str:
    """The one argument of a tool with free text; what the model wrote if it is not that."""
    try:
        return as_text(as_object(json.loads(arguments)).get("input")) or arguments
    except (ValueError, RecursionError):
        return arguments


def _usage(usage: Usage) -> JSONObject:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total,
    }
