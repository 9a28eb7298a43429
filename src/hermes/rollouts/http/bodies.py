"""Request bodies: bounded in size, decompressed, and validated against their schema."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from hermes.rollouts.compression import TooLarge, decompress
from hermes.rollouts.parsing.parse import BodyError
from hermes.rollouts.schema import error_details

Model = TypeVar("Model", bound=BaseModel)


async def read_json(request: Request, limit_bytes: int) -> bytes:
    """The body of a request that must be JSON, unparsed.

    HTTPException 413: it is larger than the limit. BadGzip. BodyError: it is empty, or has another content
    type.
    """
    body = await _read(request, limit_bytes)
    if not body:
        raise _body_error("missing", "Field required")
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = content_type == "application/json"
    if not is_json and not (content_type.startswith("application/") and content_type.endswith("+json")):
        raise _body_error("content_type", "Input should be JSON, and Content-Type application/json")
    return body


async def read_model(request: Request, model: type[Model], limit_bytes: int) -> Model:
    """The JSON body as `model`; errors as `read_json`, and BodyError for each field that is wrong."""
    try:
        return model.model_validate_json(await read_json(request, limit_bytes))
    except ValidationError as error:
        raise BodyError(error_details(error)) from error


async def _read(request: Request, limit_bytes: int) -> bytes:
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > limit_bytes:
        raise _too_large(limit_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        chunks.append(chunk)
    data = b"".join(chunks)
    if "gzip" not in request.headers.get("content-encoding", "").lower():
        return data
    try:
        return await decompress(data, limit_bytes)
    except TooLarge as error:
        raise _too_large(limit_bytes) from error


def _too_large(limit_bytes: int) -> HTTPException:
    return HTTPException(413, f"the body is larger than {limit_bytes} bytes")


def _body_error(kind: str, message: str) -> BodyError:
    return BodyError([{"type": kind, "loc": ["body"], "msg": message, "input": None}])
