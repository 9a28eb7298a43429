"""OpenAI Chat Completions: requests and answers into the record's form. Pure; tolerant of wrong types."""

from __future__ import annotations

from hermes.core import JSON, JSONObject, Message, Role, Sampling, Usage
from hermes.core.message import pair_results
from hermes.gateway.wire.base import Answer, Request, count, joined, number, schema, texts, tool_call
from hermes.models.fields import as_object, as_objects, as_text
from hermes.models.remote.openai_chat import StreamMerger
from hermes.models.remote.wire import message_from_wire, read_content
from hermes.models.usage import read_usage

_ROLES = {"user": Role.USER, "tool": Role.TOOL, "function": Role.TOOL}


def read_request(body: JSONObject) -> Request:
    messages = joined([_message(item) for item in as_objects(body.get("messages"))])
    tools = [_tool(item) for item in as_objects(body.get("tools") or body.get("functions"))]
    return Request(pair_results(messages), tuple(tools), _sampling(body), as_text(body.get("model")))


def _message(item: JSONObject) -> Message:
    role, content = as_text(item.get("role")), item.get("content")
    if role == "assistant":
        return message_from_wire(item).message
    images = [as_object(part.get("image_url")).get("url") for part in as_objects(content)]
    return Message(
        _ROLES.get(role, Role.SYSTEM),
        read_content(content)[0],
        tool_call_id=as_text(item.get("tool_call_id")) or None,
        name=as_text(item.get("name")) or None if role == "tool" else None,
        images=tuple(image for image in images if isinstance(image, str)),
    )


def _tool(item: JSONObject) -> JSONObject:
    function = as_object(item.get("function")) or as_object(item.get("custom")) or item
    return schema(function.get("name"), function.get("description"), function.get("parameters"))


def _sampling(body: JSONObject) -> Sampling:
    return Sampling(
        temperature=number(body.get("temperature")),
        top_p=number(body.get("top_p")),
        top_k=count(body.get("top_k")),
        max_tokens=count(body.get("max_completion_tokens")) or count(body.get("max_tokens")),
        stop=texts(body.get("stop")),
        seed=count(body.get("seed")),
        reasoning_effort=as_text(body.get("reasoning_effort")) or None,
    )


def assemble(events: list[JSONObject]) -> tuple[JSONObject, bool]:
    """The body that the stream's events add up to, and whether the stream came to its end."""
    merger = StreamMerger()
    for event in events:
        merger.feed(event)
    whole = merger.result()
    return whole or merger.partial(), whole is not None


def read_answer(body: JSONObject, complete: bool) -> Answer:
    choice: JSONObject = next(iter(as_objects(body.get("choices"))), {})
    item = as_object(choice.get("message"))
    message = message_from_wire(item).message
    calls = tuple(
        tool_call(call.id, call.name, call.arguments) if not call.error else call
        for call in message.tool_calls
    )
    return Answer(
        Message.assistant(message.content, reasoning=message.reasoning, tool_calls=calls),
        as_text(choice.get("finish_reason")) or "unknown",
        read_usage(body) or Usage(),
        as_text(body.get("model")),
        as_text(body.get("id")),
        complete,
        body,
    )


def error_body(status: int, message: str) -> JSON:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}
