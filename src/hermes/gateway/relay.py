"""The gateway's ASGI application: passes a call on, and records it before the client has its last byte.

Every route works with /v1, without it and doubled, behind /r/KEY (the calls of one recording) or at the root.
Where client and provider speak the same protocol, bytes are forwarded as they come and go; unknown routes and
fields too. Otherwise `translate` answers in the client's protocol from the provider's chat completions.

What happened is recorded as it was: an answer, an error status, a stream that was cut, a client that hung up.
Nothing is parsed while a call is under way, unless it is translated. Not promised: WebSockets (426).
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote

from hermes.config.secrets import can_be_secret
from hermes.core import JSON, JSONObject, new_id
from hermes.core.clock import now_ms
from hermes.core.texts import hashes
from hermes.errors import HermesError, ProviderError, UsageError
from hermes.gateway import clients, translate, wire
from hermes.gateway.coding import Decoder, open_decoder, plain_body
from hermes.gateway.ending import Ending
from hermes.gateway.http_client import HttpClient, HttpResponse
from hermes.gateway.journal import CallEnd, Group, Journal, RecordedCall
from hermes.gateway.translate.base import Translation
from hermes.gateway.upstream import Accounts, Upstream, end_to_end, request_headers
from hermes.gateway.wire import Protocol
from hermes.gateway.wire.texts import with_texts

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

MAX_BODY_BYTES = 64 << 20
_MOST_READ_BYTES = 1 << 30
"""How much of a body that is too large is read and thrown away, so that the client reads the answer."""
_MOST_ANSWER_BYTES = 256 << 20
"""How much of an unpacked answer the record holds; the client gets all of it."""
UNGROUPED = Group("ungrouped", has_identity=False)
"""Calls with neither a key in their URL nor a session in their headers."""


@dataclass(frozen=True, slots=True)
class RelayOptions:
    upstream: Upstream | None = None
    """None: the provider of the client's own account, by its protocol."""
    accounts: Accounts = field(default_factory=Accounts)
    timeout_s: float = 600.0
    """Longest silence of the provider, and longest time in which a client reads nothing."""
    max_body_bytes: int = MAX_BODY_BYTES
    """The largest body of a request, both packed and unpacked."""


@dataclass
class Activity:
    """The state that `Relay` keeps of a group that is not settled."""

    group: Group
    running: int = 0
    calls: int = 0
    last_s: float = field(default_factory=time.monotonic)


@dataclass
class _Call:
    """One call under way."""

    upstream: Upstream
    path: str
    """Behind /v1."""
    protocol: Protocol | None
    """None: the call is passed on and not recorded."""
    group: Group
    headers: dict[str, str]
    body: bytes = b""
    """As it was sent."""
    plain_body: bytes = b""
    """Without its content coding, and with the texts that the provider gets."""
    texts: dict[str, str] = field(default_factory=dict)
    """Hashes of these texts."""
    started_at_ms: int = field(default_factory=now_ms)
    started_s: float = field(default_factory=time.perf_counter)
    first_byte_s: float | None = None
    status: int = 0
    received: list[bytes] = field(default_factory=list)
    """Decoded."""
    answer_protocol: Protocol | None = None
    recorded: bool = False
    responding: bool = False


class _HungUpError(Exception):
    """The client is gone, or reads nothing any more."""


class Relay:
    """One application; its connections belong to the event loop that serves it."""

    def __init__(self, journal: Journal | None, options: RelayOptions) -> None:
        """Without a journal nothing is recorded."""
        self._journal = journal
        self._options = options
        self._client: HttpClient | None = None
        self.activity: dict[str, Activity] = {}
        """By group; whoever settles a group removes it. Only for the event loop."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        key, path, has_version = split_path(scope["raw_path"].decode("latin-1"))
        method = scope["method"]
        protocol = wire.ROUTES.get(path) if method == "POST" else None
        if "upgrade" in headers.get("connection", "").lower():
            await self._error(send, protocol, 426, "there are no WebSockets here")
            return
        if not path and method in ("GET", "HEAD"):
            await _respond(send, 200, {"status": "recording"})
            return
        upstream = self._options.upstream or self._options.accounts.choose(protocol, headers)
        group = Group(key) if key else self._group_of(headers)
        call = _Call(upstream, path, protocol, group, headers)
        try:
            call.body = await self._read(scope, receive)
            coding = headers.get("content-encoding", "").strip().lower()
            call.plain_body = plain_body(call.body, coding, self._options.max_body_bytes)
            _add_texts(call)
            await self._watched(call, scope, receive, send, has_version)
        except UsageError as error:
            await self._error(
                send, protocol or _guess(headers), 413 if "bytes" in error.message else 400, error
            )
        except ProviderError as error:
            await self._fail(call, send, error.status or 502, error)

    async def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _group_of(self, headers: dict[str, str]) -> Group:
        session = clients.root_session(headers)
        return Group(session) if session else UNGROUPED

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """The body as it was sent; UsageError if it is too large."""
        limit, chunks, size_bytes = self._options.max_body_bytes, [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise asyncio.CancelledError
            chunk = message.get("body", b"")
            size_bytes += len(chunk)
            if size_bytes <= limit:
                chunks.append(chunk)
            elif size_bytes > _MOST_READ_BYTES:
                break
            else:
                chunks.clear()
            if not message.get("more_body"):
                break
        if size_bytes > limit:
            raise UsageError(f"the request has more than {limit} bytes")
        return b"".join(chunks)

    async def _watched(
        self, call: _Call, scope: Scope, receive: Receive, send: Send, has_version: bool
    ) -> None:
        """Runs the call until it ends or its client hangs up."""
        work = asyncio.ensure_future(self._run(call, scope, send, has_version))
        hang_up = asyncio.ensure_future(receive())
        activity = self._begin(call)
        try:
            await asyncio.wait((work, hang_up), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
                return
            work.cancel()
            with suppress(asyncio.CancelledError, HermesError):
                await work
            await self._record(call, CallEnd.CANCELLED)
        except _HungUpError:
            await self._record(call, CallEnd.CANCELLED)
        except asyncio.CancelledError:  # the server stops
            work.cancel()
            await asyncio.shield(self._record(call, CallEnd.CANCELLED))
            raise
        finally:
            hang_up.cancel()
            if activity is not None:
                activity.running -= 1
                activity.last_s = time.monotonic()

    def _begin(self, call: _Call) -> Activity | None:
        if call.protocol is None or self._journal is None:
            return None
        activity = self.activity.get(call.group.id)
        if activity is None:
            activity = self.activity[call.group.id] = Activity(call.group)
            self._journal.note(call.group)
        activity.running += 1
        activity.calls += 1
        return activity

    async def _run(self, call: _Call, scope: Scope, send: Send, has_version: bool) -> None:
        protocols = call.upstream.protocols
        if call.protocol is not None and call.protocol not in protocols:
            await self._translate(call, scope, send)
            return
        if call.protocol is None and Protocol.MESSAGES not in protocols:
            if call.path == "messages/count_tokens" and scope["method"] == "POST":
                await self._count_tokens(call, scope, send)
                return
            if call.path == "models" and "anthropic-version" in call.headers:
                await self._list_models(call, scope, send)
                return
        base = call.upstream.base_url if has_version or call.path in _VERSIONED else call.upstream.root
        body = call.body
        if call.upstream.model and call.protocol:
            body = json.dumps({**_parse(call), "model": call.upstream.model}).encode()
        response = await self._ask(call, scope, f"{base}/{call.path}", body)
        await self._pass_on(call, response, send)

    async def _ask(
        self, call: _Call, scope: Scope, url: str, body: bytes, method: str | None = None
    ) -> HttpResponse:
        if self._client is None:
            self._client = HttpClient(self._options.timeout_s)
        headers = request_headers(scope["headers"], call.upstream)
        if body is not call.body:
            headers = [(name, value) for name, value in headers if name.lower() != b"content-encoding"]
        if query := scope["query_string"].decode("latin-1"):
            url = f"{url}?{query}"
        method = method or scope["method"]
        response = await self._client.send("GET" if method == "HEAD" else method, url, headers, body)
        call.status = response.status
        return response

    async def _pass_on(self, call: _Call, response: HttpResponse, send: Send) -> None:
        """Bytes as they come; those of the end once the call is recorded."""
        content_type = response.header(b"content-type") or ""
        streamed = "event-stream" in content_type or call.protocol is None
        head = end_to_end(response.headers)
        length = response.header(b"content-length")
        if length is not None:
            head.append((b"content-length", length.encode()))
        if streamed:
            await self._start(call, send, call.status, head)
        ending = Ending(call.protocol) if call.protocol and "event-stream" in content_type else None
        decoder = open_decoder(response.header(b"content-encoding") or "", _MOST_ANSWER_BYTES)
        withheld: list[bytes] = []
        broken: ProviderError | None = None
        try:
            with closing(response):
                async for chunk in response.body():
                    call.first_byte_s = call.first_byte_s or time.perf_counter()
                    data = _decode(decoder, chunk)
                    if call.protocol:
                        call.received.append(data)
                    if ending is not None:
                        ending.feed(data)
                    if (ending is not None and ending.begun) or not streamed:
                        withheld.append(chunk)
                        if ending is None or not ending.complete:
                            continue
                        await self._record(call, CallEnd.COMPLETE)
                        chunk = b"".join(withheld)
                        withheld.clear()
                    await self._write(send, chunk)
        except ProviderError as error:
            broken = error
        cut = broken is not None or (ending is not None and not ending.begun)
        answered = 200 <= call.status < 300
        await self._record(call, CallEnd.FAILED if not answered else CallEnd.CUT if cut else CallEnd.COMPLETE)
        if not streamed:
            if broken is not None:
                await self._error(send, call.protocol, 502, broken)
                return
            await self._start(call, send, call.status, head)
        if broken is None:
            await self._write(send, b"".join(withheld), more=False)
        # else the response stays incomplete, as the provider's was: the server closes the connection

    async def _translate(self, call: _Call, scope: Scope, send: Send) -> None:
        assert call.protocol is not None
        body = _parse(call)
        streams = bool(body.get("stream"))
        translation = translate.open_translation(call.protocol, body, call.upstream.model)
        chat_body = translation.chat_body(stream=streams)
        response = await self._ask_chat(call, scope, chat_body)
        if call.status == 400 and "max_tokens" in chat_body:  # clients ask for more than small contexts have
            refusal = await self._whole(call, response)
            if translate.is_too_long(refusal):
                del chat_body["max_tokens"]
                call.received.clear()
                response = await self._ask_chat(call, scope, chat_body)
            else:
                await self._refuse(call, send, refusal)
                return
        call.answer_protocol = Protocol.CHAT
        if not streams or call.status >= 300:
            await self._translate_whole(call, response, translation, send)
            return
        await self._start(call, send, 200, [(b"content-type", b"text/event-stream")])
        broken = False
        try:
            async for data in self._decoded(call, response):
                if events := translation.feed(data):
                    await self._write(send, events)
        except ProviderError:
            broken = True
        if broken or not translation.complete:
            await self._record(call, CallEnd.CUT)
            await self._write(send, translation.fail("the provider's answer broke off"), more=False)
            return
        await self._record(call, CallEnd.COMPLETE)
        await self._write(send, translation.finish(), more=False)

    async def _translate_whole(
        self, call: _Call, response: HttpResponse, translation: Translation, send: Send
    ) -> None:
        assert call.protocol is not None
        data = await self._whole(call, response)
        answer = wire.read_answer(Protocol.CHAT, data) if call.status < 300 else None
        if answer is None:
            await self._refuse(call, send, data)
            return
        content = translation.whole(answer)
        await self._record(call, CallEnd.COMPLETE)
        await _respond(send, 200, content)

    async def _refuse(self, call: _Call, send: Send, data: bytes) -> None:
        """A provider's error in the client's protocol."""
        await self._record(call, CallEnd.FAILED)
        status = call.status if call.status >= 400 else 502
        await _respond(send, status, translate.error(call.protocol or Protocol.MESSAGES, status, data))

    async def _whole(self, call: _Call, response: HttpResponse) -> bytes:
        return b"".join([data async for data in self._decoded(call, response)])

    async def _decoded(self, call: _Call, response: HttpResponse) -> AsyncIterator[bytes]:
        """The body for a translation: a provider may pack an answer that nobody asked it to pack."""
        decoder = open_decoder(response.header(b"content-encoding") or "", _MOST_ANSWER_BYTES)
        with closing(response):
            async for chunk in response.body():
                call.first_byte_s = call.first_byte_s or time.perf_counter()
                data = _decode(decoder, chunk)
                call.received.append(data)
                yield data

    async def _ask_chat(self, call: _Call, scope: Scope, body: JSONObject) -> HttpResponse:
        """A request of our own: of the client's headers only its key goes along."""
        headers = [
            (name, value)
            for name, value in scope["headers"]
            if name in (b"authorization", b"user-agent", *_SESSION_HEADERS)
        ]
        names = {name for name, _ in headers}
        if b"authorization" not in names and (key := call.headers.get("x-api-key")):
            headers.append((b"authorization", f"Bearer {key}".encode()))
        headers += [(b"content-type", b"application/json"), (b"accept-encoding", b"identity")]
        plain = {**scope, "headers": headers, "query_string": b""}
        url = f"{call.upstream.base_url}/chat/completions"
        return await self._ask(call, plain, url, json.dumps(body).encode(), "POST")

    async def _count_tokens(self, call: _Call, scope: Scope, send: Send) -> None:
        """The provider's own count: it is asked for one token."""
        translation = translate.open_translation(Protocol.MESSAGES, _parse(call), call.upstream.model)
        body = {**translation.chat_body(stream=False), "max_tokens": 1}
        data = await self._whole(call, await self._ask_chat(call, scope, body))
        answer = wire.read_answer(Protocol.CHAT, data) if call.status < 300 else None
        if answer is None:
            await self._refuse(call, send, data)
            return
        await _respond(send, 200, {"input_tokens": answer.usage.prompt})

    async def _list_models(self, call: _Call, scope: Scope, send: Send) -> None:
        response = await self._ask(call, scope, f"{call.upstream.base_url}/models", b"", "GET")
        data = await self._whole(call, response)
        await _respond(send, call.status, translate.model_list(data))

    async def _record(self, call: _Call, end: CallEnd) -> None:
        """On disk when this returns; once, whatever happens afterwards."""
        if call.protocol is None or call.recorded or self._journal is None:
            return
        call.recorded = True
        now_s = time.perf_counter()
        recorded = RecordedCall(
            new_id(call.started_at_ms),
            call.protocol,
            call.started_at_ms,
            (now_s - call.started_s) * 1000,
            call.first_byte_s and (call.first_byte_s - call.started_s) * 1000,
            call.status,
            end,
            call.upstream.base_url,
            call.upstream.name,
            {name: call.headers[name] for name in clients.RECORDED_HEADERS if name in call.headers},
            call.plain_body,
            b"".join(call.received),
            call.answer_protocol,
            call.texts,
        )
        key = call.headers.get("x-api-key") or call.headers.get("authorization", "").rpartition(" ")[2]
        await asyncio.wrap_future(
            self._journal.append(call.group.id, recorded, key if can_be_secret(key) else None)
        )

    async def _start(self, call: _Call, send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        call.responding = True
        await send({"type": "http.response.start", "status": status, "headers": headers})

    async def _write(self, send: Send, data: bytes, *, more: bool = True) -> None:
        try:
            async with asyncio.timeout(self._options.timeout_s):
                await send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            raise _HungUpError from None

    async def _fail(self, call: _Call, send: Send, status: int, error: HermesError) -> None:
        await self._record(call, CallEnd.FAILED)
        if not call.responding:
            await self._error(send, call.protocol or _guess(call.headers), status, error)

    async def _error(
        self, send: Send, protocol: Protocol | None, status: int, error: HermesError | str
    ) -> None:
        message = error.message if isinstance(error, HermesError) else error
        await _respond(send, status, wire.error_body(protocol, status, message))


_VERSIONED = frozenset((*wire.ROUTES, "models", "messages/count_tokens", "embeddings", "completions"))
_SESSION_HEADERS = tuple(name.encode() for name in clients.SESSION_HEADERS)


def split_path(path: str) -> tuple[str | None, str, bool]:
    """The recording's key, the route behind /v1, and whether the path has a /v1."""
    parts = [part for part in path.split("/") if part]
    key = None
    if len(parts) >= 2 and parts[0] == "r":
        key, parts = unquote(parts[1]), parts[2:]
    has_version = bool(parts) and parts[0] == "v1"
    while parts and parts[0] == "v1":
        parts = parts[1:]
    return key, "/".join(parts), has_version


def _guess(headers: dict[str, str]) -> Protocol:
    return Protocol.MESSAGES if "anthropic-version" in headers else Protocol.CHAT


def _parse(call: _Call) -> JSONObject:
    try:
        body = json.loads(call.plain_body)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the request is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise UsageError("the request is not a JSON object")
    return body


def _add_texts(call: _Call) -> None:
    """The texts of the policy that answers are put around the request, and recorded with it."""
    if call.protocol is not None and call.upstream.texts:
        body, used = with_texts(call.protocol, _parse(call), call.upstream.texts)
        call.plain_body, call.texts = json.dumps(body).encode(), hashes(used)


def _decode(decoder: Decoder | None, chunk: bytes) -> bytes:
    if decoder is None:
        return chunk
    try:
        return decoder.decode(chunk)
    except zlib.error:
        return chunk


async def _respond(send: Send, status: int, content: JSON) -> None:
    data = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})
