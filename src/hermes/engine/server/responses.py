"""Request bodies and responses of the Tinker API: size limits, validation, JSON, errors.

An invalid request gets a 4xx status with a JSON body, which the SDK raises at once with the message in it.
402 and 409 are never sent: the SDK would retry them for an hour and for five minutes.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from hermes.engine.types import EngineCapacityError, EngineUserError
from hermes.errors import HermesError

Body = TypeVar("Body", bound=BaseModel)

MAX_BODY_BYTES = 512 << 20
"""The limit of a training call."""
MAX_JSON_BYTES = 64 << 20
"""The limit of every other request: read as JSON, it takes many times as much memory."""


_MAX_DIGITS = 15
_MAX_PROBLEMS, _MAX_PROBLEM_CHARS = 20, 4000
_MAX_WINDOW_BYTES = 128 << 20
"""The window that zstd's command line allows without --long."""


class RequestError(Exception):
    """Ends a request with an error response."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail

    def response(self) -> Response:
        return JSONResponse({"detail": self.detail}, self.status)


async def read_body(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The decompressed body. RequestError: it is too large, or its encoding is not the declared one."""
    length = request.headers.get("content-length", "0")
    if length.isdigit() and (len(length) > _MAX_DIGITS or int(length) > max_bytes):
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size_bytes = 0
    try:
        async for part in request.stream():
            size_bytes += len(part)
            if size_bytes > max_bytes:
                raise _too_large(max_bytes)
            parts.append(part)
    except ClientDisconnect as error:
        raise RequestError(400, "the client disconnected before the body was complete") from error
    body = b"".join(parts)
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding == "zstd":
        return _decompress_zstd(body, max_bytes)
    if coding != "identity":
        raise RequestError(415, f"content-encoding {coding} is not supported: use identity or zstd")
    return body


async def read_json(request: Request, schema: type[Body]) -> Body:
    """The validated body. RequestError: it does not match the schema."""
    return validate_json(await read_body(request, MAX_JSON_BYTES), schema)


def validate_json(body: bytes, schema: type[Body]) -> Body:
    """RequestError: it does not match the schema."""
    try:
        return parse_json(body, schema)
    except EngineUserError as error:
        raise RequestError(422, error.message) from error


def parse_json(body: bytes, schema: type[Body]) -> Body:
    """Unknown fields are ignored, so that newer SDKs work. EngineUserError: it does not match the schema."""
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'body'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)[:_MAX_PROBLEMS]
        )
        raise EngineUserError(problems[:_MAX_PROBLEM_CHARS]) from error


def request_error(error: HermesError) -> RequestError:
    status = 400 if isinstance(error, EngineUserError) else 429 if is_capacity(error) else 503
    return RequestError(status, error_text(error))


def is_capacity(error: BaseException) -> bool:
    return isinstance(error, EngineCapacityError)


def error_text(error: HermesError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def disk_error_text(error: OSError) -> str:
    return f"disk error: {error.strerror or error}"


def as_json(value: Any) -> Response:
    return Response(json_bytes(value), media_type="application/json")


def json_bytes(value: Any) -> bytes:
    """Several times as fast as the standard library; NaN and infinity become null."""
    return to_json(value, inf_nan_mode="null")


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(413, f"the body is larger than {max_bytes} bytes")


def _decompress_zstd(body: bytes, max_bytes: int) -> bytes:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    try:
        with decompressor.stream_reader(body) as reader:
            plain: bytes = reader.read(max_bytes + 1)
    except zstandard.ZstdError as error:
        raise RequestError(400, f"the body is not valid zstd: {error}") from error
    if len(plain) > max_bytes:
        raise _too_large(max_bytes)
    return plain
