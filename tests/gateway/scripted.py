"""A provider that speaks three protocols and answers by a script, on a loopback port.

    with ScriptedProvider(script) as provider:
        provider.url        # http://127.0.0.1:PORT; the routes are below /v1
        provider.requests   # every request: path, headers, body
        provider.responses  # the bytes of every response's body, as they were sent

The script is a function: the request's JSON → `Reply`. As a process of its own, for tests that kill things:

    python -m tests.gateway.scripted --port 0

It prints its URL and answers "answer N", N from the last word of the last user message.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True)
class Reply:
    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    order: tuple[str | Call, ...] = ()
    """`text` and `calls`, which have ids, in the order of the answer's items; empty: the text comes first."""
    status: int = 200
    prompt_tokens: int = 100
    output_tokens: int = 7
    cut_after: int | None = None
    """Events after which the stream breaks off."""
    gate: threading.Event | None = None
    """What the event number `gate_at` waits for."""
    gate_at: int = 1
    silent: bool = False
    """No response at all, until the client goes away."""
    compressed: bool = False
    error: str = "busy"
    """The message of an error status."""
    pause_s: float = 0.0
    """Before each event, for benches."""

    @property
    def items(self) -> tuple[str | Call, ...]:
        return self.order or (*((self.text,) if self.text else ()), *self.calls)


@dataclass(frozen=True)
class Heard:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        value: Json = json.loads(self.body)
        return value


Script = Callable[[Json], Reply]


def texts(value: Any) -> Iterator[str]:
    """The texts of a message's content, whatever the protocol."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, dict):
        yield from texts(value.get("text") or value.get("content") or "")


def last_user_text(body: Json) -> str:
    items = body.get("input") or body.get("messages") or []
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    users = [item for item in items if item.get("role") == "user"]
    return " ".join(texts(users[-1].get("content"))) if users else ""


def echo(body: Json) -> Reply:
    return Reply(f"answer {(last_user_text(body).split() or ['nothing'])[-1]}")


class ScriptedProvider:
    def __init__(self, script: Script = echo, port: int = 0) -> None:
        self.script = script
        self.requests: list[Heard] = []
        self.responses: list[bytes] = []
        self.replies: list[Reply] = []
        """What was answered to the requests of a known route, with the ids that calls got."""
        self._count = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self._server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.base_url = f"{self.url}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve_forever(self) -> None:
        self._server.serve_forever()

    def new_number(self) -> int:
        with self._lock:
            self._count += 1
            return self._count

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

            def do_GET(self) -> None:
                provider.requests.append(Heard("GET", self.path, self._headers(), b""))
                models = [{"id": "model-1", "object": "model", "created": 1, "owned_by": "x"}]
                self.answer(200, json.dumps({"object": "list", "data": models}).encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                provider.requests.append(Heard("POST", self.path, self._headers(), body))
                packed = self.headers.get("content-encoding") == "gzip"
                Exchange(provider, self, gzip.decompress(body) if packed else body).run()

            def _headers(self) -> dict[str, str]:
                return {name.lower(): value for name, value in self.headers.items()}

            def answer(self, status: int, data: bytes, headers: tuple[tuple[str, str], ...] = ()) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.send_header("x-provider", "scripted")
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
                provider.responses.append(data)

        return Handler


@dataclass
class Exchange:
    provider: ScriptedProvider
    handler: Any
    raw: bytes
    sent: list[bytes] = field(default_factory=list)

    def run(self) -> None:
        path = self.handler.path.partition("?")[0]
        try:
            body = json.loads(self.raw)
        except ValueError:
            self.handler.answer(400, b'{"error": {"message": "that is no JSON"}}')
            return
        kinds = {"/v1/messages": messages, "/v1/responses": responses, "/v1/chat/completions": chat}
        kind = kinds.get(path)
        if kind is None:
            self.handler.answer(200, json.dumps({"path": self.handler.path, "got": body}).encode())
            return
        reply = self.provider.script(body)
        number = self.provider.new_number()
        reply = replace(reply, calls=tuple(_identified(reply.calls, number, path)))
        self.provider.replies.append(reply)
        if reply.silent:
            self.handler.connection.settimeout(60)
            self.handler.rfile.read(1)
            return
        if reply.status != 200:
            error = {"type": "error", "error": {"type": "overloaded_error", "message": reply.error}}
            self.handler.answer(reply.status, json.dumps(error).encode(), (("retry-after", "1"),))
            return
        whole, events = kind(body, reply, number)
        if not body.get("stream"):
            data = json.dumps(whole).encode()
            coding: tuple[tuple[str, str], ...] = ()
            if reply.compressed:
                data, coding = gzip.compress(data), (("content-encoding", "gzip"),)
            self.handler.answer(200, data, coding)
            return
        self._stream(events, reply)

    def _stream(self, events: list[tuple[str | None, Any]], reply: Reply) -> None:
        self.handler.send_response(200)
        self.handler.send_header("content-type", "text/event-stream")
        self.handler.send_header("transfer-encoding", "chunked")
        self.handler.end_headers()
        for index, (name, data) in enumerate(events):
            if index == reply.gate_at and reply.gate is not None:
                reply.gate.wait()
            if reply.pause_s:
                time.sleep(reply.pause_s)
            if index == reply.cut_after:
                self.handler.close_connection = True
                self.handler.connection.close()
                return
            text = data if isinstance(data, str) else json.dumps(data)
            self._chunk((f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode())
        self.provider.responses.append(b"".join(self.sent))
        self.handler.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self.sent.append(data)
        self.handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.handler.wfile.flush()


def _identified(calls: tuple[Call, ...], number: int, path: str) -> Iterator[Call]:
    prefix = "toolu" if path.endswith("messages") else "call"
    for index, call in enumerate(calls):
        yield replace(call, id=call.id or f"{prefix}_{number}_{index}")


def words(text: str) -> list[str]:
    return re.findall(r"\s*\S+\s*", text) or ([text] if text else [])


Events = list[tuple[str | None, Any]]


def chat(body: Json, reply: Reply, number: int) -> tuple[Json, Events]:
    usage = {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": reply.prompt_tokens + reply.output_tokens,
    }
    head = {"id": f"chatcmpl-{number}", "created": 1, "model": body.get("model")}
    calls = [
        {
            "id": call.id or f"call_{number}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(reply.calls)
    ]
    message: Json = {"role": "assistant", "content": reply.text or None}
    if calls:
        message["tool_calls"] = calls
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    stop = "tool_calls" if calls else "stop"
    choice = {"index": 0, "message": message, "finish_reason": stop}
    whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    events: Events = []

    def chunk(delta: Json, stop: str | None = None) -> None:
        choices = [{"index": 0, "delta": delta, "finish_reason": stop}]
        events.append((None, {**head, "object": "chat.completion.chunk", "choices": choices}))

    chunk({"role": "assistant", "content": ""})
    if reply.thinking:
        chunk({"reasoning_content": reply.thinking})
    for word in words(reply.text):
        chunk({"content": word})
    for index, call in enumerate(calls):
        arguments = call["function"]["arguments"]
        function = {"name": call["function"]["name"], "arguments": ""}
        chunk({"tool_calls": [{**call, "index": index, "function": function}]})
        for part in (arguments[:5], arguments[5:]):
            chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    chunk({}, stop)
    events.append((None, {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}))
    events.append((None, "[DONE]"))
    return whole, events


def messages(body: Json, reply: Reply, number: int) -> tuple[Json, Events]:
    usage = {
        "input_tokens": reply.prompt_tokens - 20,
        "cache_read_input_tokens": 20,
        "cache_creation_input_tokens": 0,
        "output_tokens": reply.output_tokens,
    }
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": body.get("model")}
    blocks: list[tuple[Json, list[Json]]] = []
    content: list[Json] = []
    if reply.thinking:
        start: Json = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": reply.thinking}]
        deltas.append({"type": "signature_delta", "signature": "c2ln"})
        blocks.append((start, deltas))
        content.append({"type": "thinking", "thinking": reply.thinking, "signature": "c2ln"})
    for item in reply.items:
        if isinstance(item, str):
            deltas = [{"type": "text_delta", "text": word} for word in words(item)]
            blocks.append(({"type": "text", "text": ""}, deltas))
            content.append({"type": "text", "text": item})
            continue
        start = {"type": "tool_use", "id": item.id, "name": item.name, "input": {}}
        parts = (item.arguments[:5], item.arguments[5:])
        blocks.append((start, [{"type": "input_json_delta", "partial_json": part} for part in parts]))
        try:
            content.append({**start, "input": json.loads(item.arguments)})
        except ValueError:
            content.append(start)
    stop = "tool_use" if reply.calls else "end_turn"
    whole = {**head, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    events: Events = [("message_start", {"type": "message_start", "message": begun})]
    for index, (start, deltas) in enumerate(blocks):
        name = "content_block_start"
        events.append((name, {"type": name, "index": index, "content_block": start}))
        name = "content_block_delta"
        events += [(name, {"type": name, "index": index, "delta": delta}) for delta in deltas]
        events.append(("content_block_stop", {"type": "content_block_stop", "index": index}))
    ended = {"stop_reason": stop, "stop_sequence": None}
    events.append(("message_delta", {"type": "message_delta", "delta": ended, "usage": usage}))
    events.append(("message_stop", {"type": "message_stop"}))
    return whole, events


def responses(body: Json, reply: Reply, number: int) -> tuple[Json, Events]:
    usage = {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 20},
        "output_tokens": reply.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.output_tokens,
    }
    output: list[Json] = []
    if reply.thinking:
        summary = [{"type": "summary_text", "text": reply.thinking}]
        output.append({"type": "reasoning", "id": f"rs_{number}", "summary": summary})
    spaces = {
        inner["name"]: tool["name"]
        for tool in body.get("tools") or ()
        if tool.get("type") == "namespace"
        for inner in tool["tools"]
    }
    for index, piece in enumerate(reply.items):
        if isinstance(piece, str):
            parts = [{"type": "output_text", "text": piece, "annotations": []}]
            item: Json = {"type": "message", "id": f"msg_{number}_{index}", "role": "assistant"}
            output.append({**item, "content": parts, "status": "completed"})
            continue
        item = {
            "type": "function_call",
            "id": f"fc_{number}_{index}",
            "call_id": piece.id,
            "name": piece.name,
            "arguments": piece.arguments,
            "status": "completed",
        }
        space = {"namespace": spaces[piece.name]} if piece.name in spaces else {}
        output.append({**item, **space})
    whole = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": body.get("model"),
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "usage": usage,
    }
    events: Events = []

    def event(name: str, **data: Any) -> None:
        events.append((name, {"type": name, "sequence_number": len(events), **data}))

    event("response.created", response={**whole, "status": "in_progress", "output": [], "usage": None})
    for index, item in enumerate(output):
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            event("response.output_item.added", output_index=index, item={**item, "content": []})
            part = {"type": "output_text", "text": "", "annotations": []}
            event("response.content_part.added", **place, content_index=0, part=part)
            text = item["content"][0]["text"]
            for word in words(text):
                event("response.output_text.delta", **place, content_index=0, delta=word)
            event("response.output_text.done", **place, content_index=0, text=text)
            event("response.content_part.done", **place, content_index=0, part=item["content"][0])
        elif item["type"] == "function_call":
            event("response.output_item.added", output_index=index, item={**item, "arguments": ""})
            event("response.function_call_arguments.delta", **place, delta=item["arguments"])
            event("response.function_call_arguments.done", **place, arguments=item["arguments"])
        else:
            event("response.output_item.added", output_index=index, item={**item, "summary": []})
        event("response.output_item.done", output_index=index, item=item)
    event("response.completed", response=whole)
    return whole, events


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    scripted = ScriptedProvider(port=parser.parse_args().port)
    print(scripted.url, flush=True)
    scripted.serve_forever()
