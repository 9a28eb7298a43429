"""Refusals in OpenAI's shape: {"error": {message, type, param, code}}.

400 is final: the request would be wrong again. 404 is a name that nothing has. 503 comes with Retry-After:
there is no room at present, or the engine is going down.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hermes.engine.server.responses import RequestError, reason
from hermes.engine.types import EngineUserError
from hermes.errors import HermesError

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

RETRY_AFTER_S = 5
CLIENT_GONE = 499
"""The status for nobody: whoever asked has hung up."""


class OpenAIRequestError(Exception):
    """Ends a request with a reason."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param

    def as_json(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def answer(self) -> Response:
        headers = {"Retry-After": str(RETRY_AFTER_S)} if self.status == 503 else None
        return JSONResponse(self.as_json(), self.status, headers)


def wrong(message: str, param: str | None = None) -> OpenAIRequestError:
    return OpenAIRequestError(400, message, param=param)


def problem_of(error: HermesError) -> OpenAIRequestError:
    """As an answer to the request that ran into it."""
    return OpenAIRequestError(400 if isinstance(error, EngineUserError) else 503, reason(error))


def in_openai_shape(handler: Handler) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except OpenAIRequestError as problem:
            return problem.answer()
        except RequestError as refused:  # the body could not be read, or has another shape
            status = 400 if refused.status == 422 else refused.status
            return OpenAIRequestError(status, refused.detail).answer()
        except HermesError as error:
            return problem_of(error).answer()

    return handle
