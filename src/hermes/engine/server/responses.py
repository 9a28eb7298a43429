"""Requests in, answers out: bounded bodies, JSON that is checked, failures in the shape clients know.

A refused request is a 4xx with a JSON body, which the SDK raises at once with the reason in it. 402 and 409
never leave here: the SDK would retry them for an hour and for five minutes.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from hermes.engine.types import EngineCapacityError, EngineUserError
from hermes.errors import HermesError

Shape = TypeVar("Shape", bound=BaseModel)

MAX_BODY_BYTES = 512 << 20


class RequestError(Exception):
    """Ends a request with a reason."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail

    def answer(self) -> Response:
        return JSONResponse({"detail": self.detail}, self.status)


async def read_body(request: Request) -> bytes:
    """The body, decompressed. Refused: 413 over the limit, 400 if it is not what its header says."""
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise _too_large()
    parts: list[bytes] = []
    size_bytes = 0
    try:
        async for part in request.stream():
            size_bytes += len(part)
            if size_bytes > MAX_BODY_BYTES:
                raise _too_large()
            parts.append(part)
    except ClientDisconnect as error:
        raise RequestError(400, "the connection broke") from error
    body = b"".join(parts)
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding == "zstd":
        return _unzstd(body)
    if coding != "identity":
        raise RequestError(415, f"a body encoded as {coding} is not understood: send it plain or as zstd")
    return body


async def read_json(request: Request, shape: type[Shape]) -> Shape:
    """The body in that shape. Refused: it has another."""
    return checked_json(await read_body(request), shape)


def checked_json(body: bytes, shape: type[Shape]) -> Shape:
    try:
        return parse_json(body, shape)
    except EngineUserError as error:
        raise RequestError(422, error.message) from error


def parse_json(body: bytes, shape: type[Shape]) -> Shape:
    """Fields that the shape does not know are ignored, so that a newer SDK is understood. EngineUserError."""
    try:
        return shape.model_validate_json(body)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'body'}: {problem['msg']}" for problem in error.errors()
        )
        raise EngineUserError(problems) from error


def refusal_of(error: HermesError) -> RequestError:
    """As an answer to the request that ran into it."""
    status = 400 if isinstance(error, EngineUserError) else 429 if is_capacity(error) else 503
    return RequestError(status, reason(error))


def is_capacity(error: BaseException) -> bool:
    return isinstance(error, EngineCapacityError)


def reason(error: HermesError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def as_json(value: Any) -> Response:
    return Response(json_bytes(value), media_type="application/json")


def json_bytes(value: Any) -> bytes:
    """Several times as fast as the standard library; what is not a number becomes null."""
    return to_json(value, inf_nan_mode="null")


def _too_large() -> RequestError:
    return RequestError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")


def _unzstd(body: bytes) -> bytes:
    import zstandard

    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            plain: bytes = reader.read(MAX_BODY_BYTES + 1)
    except zstandard.ZstdError as error:
        raise RequestError(400, f"the body is not zstd: {error}") from error
    if len(plain) > MAX_BODY_BYTES:
        raise _too_large()
    return plain
