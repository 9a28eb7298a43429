"""Anthropic Messages: requests and answers into the record's form. Pure; tolerant of wrong types."""

from __future__ import annotations

import json

from hermes.core import JSON, JSONObject, Message, Role, Sampling, ToolCall, Usage
from hermes.core.message import pair_results
from hermes.gateway.wire.base import (
    BILLING_LINE,
    Answer,
    Request,
    count,
    data_url,
    joined,
    number,
    schema,
    texts,
    tool_call,
)
from hermes.models.fields import as_count, as_list, as_object, as_objects, as_parts, as_text

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def read_request(body: JSONObject) -> Request:
    messages: list[Message] = []
    system = _system(body.get("system"))
    if system:
        messages.append(Message.system(system))
    failed: set[str] = set()
    for item in as_objects(body.get("messages")):
        messages += _messages(item, failed)
    tools = [
        schema(tool.get("name"), tool.get("description"), tool.get("input_schema"))
        for tool in as_objects(body.get("tools"))
    ]
    thinking = as_object(body.get("thinking"))
    extra = {"thinking": thinking} if thinking else None
    sampling = Sampling(
        temperature=number(body.get("temperature")),
        top_p=number(body.get("top_p")),
        top_k=count(body.get("top_k")),
        max_tokens=count(body.get("max_tokens")),
        stop=texts(body.get("stop_sequences")),
        reasoning_effort=as_text(as_object(body.get("output_config")).get("effort")) or None,
        extra_body=extra,
    )
    model = as_text(body.get("model"))
    return Request(pair_results(joined(messages)), tuple(tools), sampling, model, frozenset(failed))


def _system(value: JSON) -> str:
    parts = [BILLING_LINE.sub("", as_text(block.get("text"))) for block in as_parts(value)]
    return "\n".join(part for part in parts if part)


def _messages(item: JSONObject, failed: set[str]) -> list[Message]:
    role, blocks = as_text(item.get("role")), as_parts(item.get("content"))
    if role == "assistant":
        return [_assistant(blocks)]
    if role == "system":
        return [Message.system(_system(item.get("content")))]
    results = []
    for block in blocks:
        if as_text(block.get("type")).endswith("tool_result"):
            call_id = as_text(block.get("tool_use_id"))
            if block.get("is_error"):
                failed.add(call_id)
            text, images = _shown(as_parts(block.get("content")))
            results.append(Message(Role.TOOL, text, tool_call_id=call_id, images=images))
    rest = [block for block in blocks if not as_text(block.get("type")).endswith("tool_result")]
    text, images = _shown(rest)
    return [*results, *([Message(Role.USER, text, images=images)] if rest or not results else [])]


def _shown(blocks: list[JSONObject]) -> tuple[str, tuple[str, ...]]:
    """The text and the images of content blocks."""
    parts, images = [], []
    for block in blocks:
        source = as_object(block.get("source"))
        if block.get("type") == "image":
            encoded = data_url(as_text(source.get("media_type")), as_text(source.get("data")))
            images.append(as_text(source.get("url")) or encoded)
        elif block.get("type") == "document":
            parts.append(as_text(source.get("data")) if source.get("type") == "text" else "[document]")
        else:
            parts.append(as_text(block.get("text")))
    return "\n".join(parts), tuple(images)


def _assistant(blocks: list[JSONObject]) -> Message:
    content = "".join(as_text(block.get("text")) for block in blocks if block.get("type") == "text")
    thinking = [as_text(block.get("thinking")) for block in blocks if block.get("type") == "thinking"]
    return Message.assistant(
        content, reasoning="\n".join(filter(None, thinking)) or None, tool_calls=_calls(blocks)
    )


def _calls(blocks: list[JSONObject]) -> tuple[ToolCall, ...]:
    """The calls of these blocks; arguments that were streamed keep the text that the model wrote."""
    return tuple(
        tool_call(
            as_text(block.get("id")),
            as_text(block.get("name")),
            block.get("partial_json") or block.get("input") or {},
        )
        for block in blocks
        if block.get("type") == "tool_use"
    )


def assemble(events: list[JSONObject]) -> tuple[JSONObject, bool]:
    """The message that the stream's events add up to, and whether the stream came to its end."""
    body: JSONObject = {"type": "message", "role": "assistant", "content": []}
    blocks: dict[int, JSONObject] = {}
    complete = False
    for event in events:
        kind, delta = event.get("type"), as_object(event.get("delta"))
        if kind == "message_start":
            body |= as_object(event.get("message"))
        elif kind == "content_block_start":
            blocks[as_count(event.get("index"))] = dict(as_object(event.get("content_block")))
        elif kind == "content_block_delta":
            _add_delta(blocks.setdefault(as_count(event.get("index")), {"type": "text"}), delta)
        elif kind == "message_delta":
            body |= delta
            body["usage"] = {**as_object(body.get("usage")), **_counts(event.get("usage"))}
        complete |= kind == "message_stop"
    body["content"] = [_whole(block) for _, block in sorted(blocks.items())]
    return body, complete


def _counts(usage: JSON) -> JSONObject:
    return {name: value for name, value in as_object(usage).items() if value is not None}


def _add_delta(block: JSONObject, delta: JSONObject) -> None:
    for name in ("text", "thinking", "signature", "partial_json"):
        if isinstance(delta.get(name), str):
            block[name] = as_text(block.get(name)) + delta[name]
    if delta.get("citation"):
        block["citations"] = [*as_list(block.get("citations")), delta["citation"]]


def _whole(block: JSONObject) -> JSONObject:
    if "partial_json" not in block:
        return block
    try:
        return {**block, "input": json.loads(block["partial_json"] or "{}")}
    except (ValueError, RecursionError):
        return block


def read_answer(body: JSONObject, complete: bool) -> Answer:
    usage = as_object(body.get("usage"))
    return Answer(
        _assistant(as_objects(body.get("content"))),
        as_text(body.get("stop_reason")) or "unknown",
        Usage(
            input_tokens=as_count(usage.get("input_tokens")),
            cached_input_tokens=as_count(usage.get("cache_read_input_tokens")),
            cache_write_tokens=as_count(usage.get("cache_creation_input_tokens")),
            output_tokens=as_count(usage.get("output_tokens")),
        ),
        as_text(body.get("model")),
        as_text(body.get("id")),
        complete,
        body,
    )


def error_body(status: int, message: str) -> JSON:
    return {"type": "error", "error": {"type": _ERRORS.get(status, "api_error"), "message": message}}
