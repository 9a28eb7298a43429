"""How the fake provider writes a reply down: as one JSON object, or as the chunks of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.fakes.replies import Reply

PIECE_CHARS = 7
"""Length of the pieces in which a stream sends text; small, so that joins are exercised."""


def has_text(chunk: dict[str, Any]) -> bool:
    delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
    pieces = [call["function"].get("arguments") for call in delta.get("tool_calls", ())]
    return bool(delta.get("content") or delta.get("reasoning_content") or any(pieces))


def _finish_reason(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.calls else "stop")


def whole(request: dict[str, Any], reply: Reply, chat: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": _finish_reason(reply)}
    if chat:
        message: dict[str, Any] = {"role": "assistant", "content": reply.content}
        if reply.reasoning is not None:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["tool_calls"] = [_call(index, *call) for index, call in enumerate(reply.calls)]
        choice["message"] = message
    else:
        choice["text"] = reply.content or ""
    data = {"id": "fake-1", "model": request.get("model"), "choices": [choice]}
    if reply.sampled_ids is not None:
        choice["token_ids"] = list(reply.sampled_ids)
        (data if chat else choice)["prompt_token_ids"] = [1, 2, 3] if chat else request["prompt"]
    if reply.logprobs is not None:
        entries = [{"token": "?", "logprob": value} for value in reply.logprobs]
        choice["logprobs"] = {"content": entries} if chat else {"token_logprobs": list(reply.logprobs)}
    if reply.usage is not None:
        data["usage"] = reply.usage
    return data


def _call(index: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _pieces(text: str) -> list[str]:
    return [text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS)]


def _deltas(reply: Reply) -> Iterator[dict[str, Any]]:
    """The arguments of parallel calls are interleaved, as some servers do."""
    yield {"role": "assistant", "content": ""}
    for piece in _pieces(reply.reasoning or ""):
        yield {"reasoning_content": piece}
    for piece in _pieces(reply.content or ""):
        yield {"content": piece}
    for index, (name, _) in enumerate(reply.calls):
        yield {"tool_calls": [{"index": index, **_call(index, name, "")}]}
    pending = [_pieces(arguments) for _, arguments in reply.calls]
    for turn in range(max(map(len, pending), default=0)):
        for index, pieces in enumerate(pending):
            if turn < len(pieces):
                yield {"tool_calls": [{"index": index, "function": {"arguments": pieces[turn]}}]}


def chunks(request: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
    base = {"id": "fake-1", "object": "chat.completion.chunk", "model": request.get("model")}
    for delta in _deltas(reply):
        yield {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    last: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": _finish_reason(reply)}
    full = whole(request, reply, chat=True)
    extras = {key: full["choices"][0][key] for key in ("token_ids", "logprobs") if key in full["choices"][0]}
    tops = {"prompt_token_ids": full["prompt_token_ids"]} if "prompt_token_ids" in full else {}
    yield {**base, **tops, "choices": [{**last, **extras}]}
    if reply.usage is not None and request.get("stream_options", {}).get("include_usage"):
        yield {**base, "choices": [], "usage": reply.usage}
