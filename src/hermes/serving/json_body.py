"""Reads the JSON object of a request, up to a number of bytes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from hermes.core.json import JSONObject
from hermes.errors import UsageError

if TYPE_CHECKING:
    from starlette.requests import Request


_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""Matches what may be half a surrogate pair; with its other half it is a character."""


async def read_json_object(request: Request, max_bytes: int) -> JSONObject:
    """UsageError: the body is larger, or is no JSON object. No more than `max_bytes` are held in memory."""
    chunks: list[bytes] = []
    size_bytes = 0
    async for chunk in request.stream():
        size_bytes += len(chunk)
        if size_bytes > max_bytes:
            raise UsageError(f"the request has more than {max_bytes} bytes", "send less at once")
        chunks.append(chunk)
    data = b"".join(chunks)
    try:
        body = json.loads(data)
        if _HALF.search(data):
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UsageError("the request holds half a surrogate pair, which no text can hold") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the request is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise UsageError("the request is not a JSON object")
    return body
