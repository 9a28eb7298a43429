"""OpenAI Responses: requests and answers into the record's form. Pure; tolerant of wrong types."""

from __future__ import annotations

from collections.abc import Iterator

from hermes.core import JSON, JSONObject, Message, Role, Sampling, ToolCall, Usage
from hermes.core.message import pair_results
from hermes.gateway.wire import chat
from hermes.gateway.wire.base import Answer, Request, count, joined, number, schema, tool_call
from hermes.models.fields import as_count, as_list, as_object, as_objects, as_parts, as_text
from hermes.models.usage import read_usage

_ENDS = ("response.completed", "response.incomplete", "response.failed")
error_body = chat.error_body


def read_request(body: JSONObject) -> Request:
    messages: list[Message] = []
    if instructions := as_text(body.get("instructions")):
        messages.append(Message.system(instructions))
    value = body.get("input")
    for item in value if isinstance(value, list) else [value]:
        message = _message({"role": "user", "content": item} if isinstance(item, str) else as_object(item))
        messages += [message] if message else []
    sampling = Sampling(
        temperature=number(body.get("temperature")),
        top_p=number(body.get("top_p")),
        max_tokens=count(body.get("max_output_tokens")),
        reasoning_effort=as_text(as_object(body.get("reasoning")).get("effort")) or None,
    )
    return Request(
        pair_results(joined(messages)),
        tuple(tool for tool, _ in tools_of(body)),
        sampling,
        as_text(body.get("model")),
        previous=as_text(body.get("previous_response_id")) or None,
    )


def tools_of(body: JSONObject) -> Iterator[tuple[JSONObject, str | None]]:
    """Each tool with the namespace that a call of it must name; a hosted tool has its type as its name."""
    for tool in as_objects(body.get("tools")):
        if tool.get("type") == "namespace":
            for inner in as_objects(tool.get("tools")):
                yield _schema(inner), as_text(tool.get("name"))
        else:
            yield _schema(tool), None


def _schema(tool: JSONObject) -> JSONObject:
    name = tool.get("name") or tool.get("type")
    return schema(name, tool.get("description"), tool.get("parameters"))


def _message(item: JSONObject) -> Message | None:
    """None for an item that shows the model nothing of its own, such as a reference to a stored one."""
    kind = as_text(item.get("type")) or "message"
    if kind == "message":
        text, images = _content(item.get("content"), "\n")
        if item.get("role") == "assistant":
            return Message.assistant(_content(item.get("content"))[0])
        return Message(Role.USER if item.get("role") == "user" else Role.SYSTEM, text, images=images)
    if kind == "reasoning":
        return Message.assistant(reasoning=_reasoning(item))
    if kind.endswith("_call_output"):
        text, images = _content(item.get("output"), "\n")
        return Message(Role.TOOL, text, tool_call_id=as_text(item.get("call_id")), images=images)
    if kind.endswith("_call"):
        return Message.assistant(tool_calls=_calls(item))
    if kind in ("compaction", "compaction_summary"):
        return Message.system("[compacted by the provider]")
    return None


def _content(value: JSON, between: str = "") -> tuple[str, tuple[str, ...]]:
    """The text and the images of a message's parts."""
    parts = as_parts(value)
    written = [as_text(part.get("text")) or as_text(part.get("refusal")) for part in parts]
    text = between.join(filter(None, written))
    images = [part["image_url"] for part in parts if isinstance(part.get("image_url"), str)]
    return text, tuple(images)


def _reasoning(item: JSONObject) -> str | None:
    parts = as_objects(item.get("content")) or as_objects(item.get("summary"))
    return "\n".join(as_text(part.get("text")) for part in parts) or None


def _calls(item: JSONObject) -> tuple[ToolCall, ...]:
    """A call that the client runs; what the provider ran itself has no `call_id`."""
    call_id = as_text(item.get("call_id"))
    if not call_id:
        return ()
    if item.get("type") == "custom_tool_call":
        return (tool_call(call_id, as_text(item.get("name")), {"input": as_text(item.get("input"))}),)
    arguments = item.get("arguments") if "arguments" in item else as_object(item.get("action"))
    name = as_text(item.get("name")) or as_text(item.get("type")).removesuffix("_call")
    return (tool_call(call_id, name, arguments),)


def assemble(events: list[JSONObject]) -> tuple[JSONObject, bool]:
    """The response that the stream's events add up to, and whether the stream came to its end."""
    body: JSONObject = {"object": "response", "status": "in_progress"}
    items: dict[int, JSONObject] = {}
    complete = False
    for event in events:
        kind, index = as_text(event.get("type")), as_count(event.get("output_index"))
        if kind in ("response.created", "response.in_progress", *_ENDS):
            body |= as_object(event.get("response"))
            complete |= kind in _ENDS
        elif kind in ("response.output_item.added", "response.output_item.done"):
            items[index] = dict(as_object(event.get("item")))
        elif kind.endswith(".delta"):
            _add_delta(items.setdefault(index, {}), kind, as_text(event.get("delta")))
    if not as_list(body.get("output")):  # a cut stream, or a server that repeats nothing at its end
        body["output"] = [item for _, item in sorted(items.items())]
    return body, complete


def _add_delta(item: JSONObject, kind: str, text: str) -> None:
    if kind == "response.output_text.delta":
        earlier = _content(item.get("content"))[0]
        item |= {"type": "message", "role": "assistant"}
        item["content"] = [{"type": "output_text", "text": earlier + text}]
    elif kind == "response.function_call_arguments.delta":
        item["arguments"] = as_text(item.get("arguments")) + text
    elif kind == "response.custom_tool_call_input.delta":
        item["input"] = as_text(item.get("input")) + text
    elif kind.startswith("response.reasoning"):
        item["summary"] = [{"type": "summary_text", "text": (_reasoning(item) or "") + text}]


def read_answer(body: JSONObject, complete: bool) -> Answer:
    output = as_objects(body.get("output"))
    parts = [message for item in output if (message := _message(item)) is not None]
    whole = joined([Message.assistant(), *parts])[0]
    usage = as_object(body.get("usage"))
    counted = {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "total_tokens": usage.get("total_tokens"),
        "prompt_tokens_details": usage.get("input_tokens_details"),
        "completion_tokens_details": usage.get("output_tokens_details"),
    }
    return Answer(
        whole,
        _finish_reason(body, whole),
        read_usage({"usage": counted}) or Usage(),
        as_text(body.get("model")),
        as_text(body.get("id")),
        complete,
        body,
    )


def _finish_reason(body: JSONObject, message: Message) -> str:
    """In the words of chat completions: the status says only that it ended."""
    if body.get("status") == "incomplete":
        reason = as_text(as_object(body.get("incomplete_details")).get("reason"))
        return "length" if reason == "max_output_tokens" else reason or "incomplete"
    if body.get("status") in ("completed", None):
        return "tool_calls" if message.tool_calls else "stop"
    return as_text(body.get("status")) or "unknown"
