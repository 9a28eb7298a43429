"""Answers as server-sent events.

Nothing is sent before the first event is there, so that a request which is wrong gets its status and not a
stream. A failure after that is an event of its own, and the stream ends without the final mark.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from hermes.engine.server.openai.errors import OpenAIRequestError, problem_of
from hermes.engine.server.openai.sampling import while_there
from hermes.errors import HermesError


class _Events(StreamingResponse):
    """Closes what it reads from, also when the client hangs up between two events."""

    def __init__(self, content: AsyncGenerator[str]) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._content = content

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._content):
            await super().stream_response(send)


async def event_stream(request: Request, chunks: AsyncGenerator[dict[str, Any]]) -> Response:
    first = await while_there(request, anext(chunks))
    return _Events(_lines(first, chunks))


async def _lines(first: dict[str, Any], rest: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[str]:
    async with aclosing(rest):
        yield _line(first)
        try:
            async for chunk in rest:
                yield _line(chunk)
        except OpenAIRequestError as problem:
            yield _line(problem.as_json())
        except HermesError as error:
            yield _line(problem_of(error).as_json())
        else:
            yield "data: [DONE]\n\n"


def _line(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk)}\n\n"
