"""A model provider on a loopback port: OpenAI-compatible, scripted, and honest about HTTP.

    from tests.fakes.provider import FakeProvider, status, text, tool_calls

    with FakeProvider([status(429, retry_after=1), tool_calls([("todo", {})]), text("done")]) as provider:
        provider.base_url            # "http://127.0.0.1:PORT/v1"
        provider.requests            # every request so far: .json, .headers, .path, .arrived_s (monotonic)
        provider.in_flight, provider.max_in_flight

The script is a list of replies (see tests.fakes.replies), one per POST, in order of arrival; when it
is used up the server answers 400 "the script is used up", unless `loop=True` starts it again. Or it
is a function: request JSON → Reply, for answers that do not depend on order. `api_key=` makes every
request without that key a 401. `models=` is what GET /v1/models lists.

It serves POST /v1/chat/completions (also `stream: true`), POST /v1/completions and GET /v1/models,
keep-alive, from one thread with its own event loop.

As a process of its own, for tests that kill things; it prints its base URL as its first line:

    python -m tests.fakes.provider --port 0 --script replies.json [--loop]

where replies.json is a list such as [{"kind": "text", "content": "hi"}, {"kind": "status", "code": 500}].
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.fakes import rendering
from tests.fakes.replies import (
    Reply,
    bad_json,
    cut_stream,
    delayed,
    duplicated,
    from_json,
    hang,
    held,
    raw,
    slow,
    status,
    text,
    tokens,
    tool_calls,
)

__all__ = [
    "FakeProvider",
    "Reply",
    "Request",
    "bad_json",
    "cut_stream",
    "delayed",
    "duplicated",
    "from_json",
    "hang",
    "held",
    "raw",
    "slow",
    "status",
    "text",
    "tokens",
    "tool_calls",
]

Script = Sequence[Reply] | Callable[[dict[str, Any]], Reply]


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    json: Any
    arrived_s: float
    """time.monotonic() when the whole request had been read."""


class FakeProvider:
    def __init__(
        self,
        script: Script,
        *,
        loop: bool = False,
        api_key: str | None = None,
        models: Sequence[str] = ("fake",),
        port: int = 0,
    ) -> None:
        self.requests: list[Request] = []
        self.in_flight = 0
        self.max_in_flight = 0
        self.port = port
        self._script = script
        self._loop_script = loop
        self._api_key = api_key
        self._models = tuple(models)
        self._next = 0
        self._event_loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._failure: OSError | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def posts(self) -> list[Request]:
        """The requests that asked for a completion."""
        return [request for request in self.requests if request.json is not None]

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._failure:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stop is not None
        self._event_loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._event_loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        try:
            server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, backlog=1024)
            self.port = server.sockets[0].getsockname()[1]
        except OSError as error:
            self._failure = error
            return
        finally:
            self._started.set()
        await self._stop.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while request := await self._read(reader):
                self.requests.append(request)
                self.in_flight += 1
                self.max_in_flight = max(self.max_in_flight, self.in_flight)
                try:
                    keep = await self._answer(request, writer)
                finally:
                    self.in_flight -= 1
                if not keep:
                    break
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip().split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        data = json.loads(body) if body else None
        return Request(first.split(" ")[1], headers, data, time.monotonic())

    def _reply_to(self, request: Request) -> Reply:
        if self._api_key and request.headers.get("authorization") != f"Bearer {self._api_key}":
            return status(401, message="invalid api key")
        if request.path == "/v1/models":
            return raw({"object": "list", "data": [{"id": name, "object": "model"} for name in self._models]})
        if request.path not in ("/v1/chat/completions", "/v1/completions") or request.json is None:
            return status(404, message=f"no such path: {request.path}")
        if callable(self._script):
            return self._script(request.json)
        if self._loop_script:
            self._next %= len(self._script)
        if self._next >= len(self._script):
            return status(400, message="the script is used up")
        self._next += 1
        return self._script[self._next - 1]

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection can be used again."""
        reply = self._reply_to(request)
        await asyncio.sleep(reply.delay_s)
        # Polled: the test sets it from another thread.
        while reply.gate is not None and not reply.gate.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if reply.hang_s is not None:
            await asyncio.sleep(reply.hang_s)
            return False
        chat = request.path.endswith("/chat/completions")
        if reply.body is None and chat and request.json.get("stream"):
            return await self._stream(request, reply, writer)
        body = (reply.body or json.dumps(rendering.whole(request.json, reply, chat))).encode()
        head = [f"HTTP/1.1 {reply.status} Scripted", f"content-type: {reply.content_type}"]
        head += [f"content-length: {len(body)}", *(f"{name}: {value}" for name, value in reply.headers)]
        writer.write("\r\n".join([*head, "", ""]).encode())
        if reply.cut_after is not None:
            writer.write(body[: len(body) // 2])
            await writer.drain()
            return False
        writer.write(body)
        await writer.drain()
        return True

    async def _stream(self, request: Request, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for sent, chunk in enumerate(rendering.chunks(request.json, reply)):
            if sent == reply.cut_after:
                break
            if reply.chunk_delay_s:
                await asyncio.sleep(reply.chunk_delay_s)
            for _ in range(2 if reply.duplicate and not rendering.has_text(chunk) else 1):
                _write_event(writer, json.dumps(chunk))
            await writer.drain()
        if reply.cut_after is None:
            _write_event(writer, "[DONE]")
        elif not reply.cut_cleanly:
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def _write_event(writer: asyncio.StreamWriter, data: str) -> None:
    event = f"data: {data}\n\n".encode()
    writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--loop", action="store_true")
    options = parser.parse_args()
    script = [from_json(item) for item in json.loads(options.script.read_text())]
    with FakeProvider(script, loop=options.loop, port=options.port) as provider:
        print(provider.base_url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
