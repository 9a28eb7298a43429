"""Requests and answers over ASGI: bounded bodies, gzip both ways, errors in the shape clients know."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qs

from pydantic import BaseModel, ValidationError

from hermes.core.json import JSONObject
from hermes.rollouts.compression import BadGzip, Deflater, TooLarge, inflated
from hermes.rollouts.schema import error_details

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Model = TypeVar("Model", bound=BaseModel)

GZIP_FROM_BYTES = 1000
_INLINE_DEFLATE_BYTES = 64 << 10
_encode = json.JSONEncoder(allow_nan=False).encode


class ClientGone(Exception):
    """The connection broke while the request was being read."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class HttpError(Exception):
    """Ends a request with an answer that is not what was asked for."""

    def __init__(self, answer: HttpResponse) -> None:
        super().__init__(answer.status)
        self.answer = answer


@dataclass(slots=True)
class HttpRequest:
    scope: Scope
    receive: Receive
    max_body_bytes: int
    headers: dict[bytes, bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.headers = dict(self.scope["headers"])

    @property
    def accepts_gzip(self) -> bool:
        for coding in self.headers.get(b"accept-encoding", b"").lower().split(b","):
            name, _, quality = coding.replace(b" ", b"").partition(b";q=")
            if name == b"gzip":
                return quality.strip(b"0.") != b"" or quality == b""
        return False

    def query(self) -> dict[str, str]:
        """The last value of each parameter."""
        pairs = parse_qs(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        return {name: values[-1] for name, values in pairs.items()}

    async def body(self) -> bytes:
        """The body, inflated. Failure: 413 over the limit, 400 if it says gzip and is not."""
        limit = self.max_body_bytes
        length = self.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self.receive()
            if message["type"] != "http.request":
                raise ClientGone
            size += len(message.get("body", b""))
            if size > limit:
                raise _too_large(limit)
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        raw = b"".join(parts)
        if b"gzip" not in self.headers.get(b"content-encoding", b"").lower():
            return raw
        try:
            return await inflated(raw, limit)
        except BadGzip as error:
            raise HttpError(
                HttpResponse(b"Invalid gzip payload", 400, "text/plain; charset=utf-8")
            ) from error
        except TooLarge as error:
            raise _too_large(limit) from error

    async def json_body(self) -> bytes:
        """The body of a request that must bring JSON, not parsed."""
        body = await self.body()
        if not body:
            raise invalid([_problem("missing", "Field required")])
        kind = self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json" and not (kind.startswith(b"application/") and kind.endswith(b"+json")):
            raise invalid(
                [_problem("content_type", "Input should be JSON, and Content-Type application/json")]
            )
        return body

    async def model(self, model: type[Model]) -> Model:
        try:
            return model.model_validate_json(await self.json_body())
        except ValidationError as error:
            raise invalid(error_details(error)) from error


def _problem(kind: str, message: str) -> JSONObject:
    return {"type": kind, "loc": ["body"], "msg": message, "input": None}


def _too_large(limit_bytes: int) -> HttpError:
    return failed(413, f"the body is larger than {limit_bytes} bytes")


def invalid(details: list[JSONObject]) -> HttpError:
    return HttpError(json_answer({"detail": details}, 422))


def failed(status: int, detail: object, *headers: tuple[str, str]) -> HttpError:
    return HttpError(json_answer({"detail": detail}, status, *headers))


def json_answer(value: JSONObject, status: int = 200, *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(_encode(value).encode(), status, headers=headers)


async def send_answer(send: Send, answer: HttpResponse, *, gzip: bool) -> None:
    """Sends it whole; gzipped if wanted and worth it."""
    body, headers = answer.body, list(answer.headers)
    if len(body) >= GZIP_FROM_BYTES:
        headers.append(("vary", "accept-encoding"))
        if gzip:
            headers.append(("content-encoding", "gzip"))
            small = len(body) <= _INLINE_DEFLATE_BYTES
            body = deflate(body) if small else await asyncio.to_thread(deflate, body)
    headers += [("content-type", answer.content_type), ("content-length", str(len(body)))]
    await start(send, answer.status, headers)
    await send({"type": "http.response.body", "body": body})


def deflate(data: bytes) -> bytes:
    deflater = Deflater()
    return deflater.piece(data) + deflater.end()


async def start(send: Send, status: int, headers: list[tuple[str, str]]) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": raw})
