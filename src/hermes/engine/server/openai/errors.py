"""Errors in OpenAI's shape: {"error": {message, type, param, code}}.

400 is final: the same request would fail again. 404 is a model or URL that does not exist. 503 is sent with
Retry-After: the engine has no capacity at the moment or is shutting down.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hermes.core import JSONObject
from hermes.engine.server.app import Handler
from hermes.engine.server.responses import RequestError, error_text
from hermes.engine.types import EngineUserError
from hermes.errors import HermesError

RETRY_AFTER_S = 5
CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that disconnected; it is never sent."""


class OpenAIRequestError(Exception):
    """Ends a request with an error response."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param

    def as_json(self) -> JSONObject:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        headers = {"Retry-After": str(RETRY_AFTER_S)} if self.status == 503 else None
        return JSONResponse(self.as_json(), self.status, headers)


def invalid_request(message: str, param: str | None = None) -> OpenAIRequestError:
    return OpenAIRequestError(400, message, param=param)


def openai_error(error: HermesError) -> OpenAIRequestError:
    return OpenAIRequestError(400 if isinstance(error, EngineUserError) else 503, error_text(error))


def with_openai_errors(handler: Handler) -> Handler:
    """The handler, with its exceptions turned into error responses."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except OpenAIRequestError as error:
            return error.response()
        except RequestError as error:  # the body cannot be read, or does not match the schema
            status = 400 if error.status == 422 else error.status
            return OpenAIRequestError(status, error.detail).response()
        except HermesError as error:
            return openai_error(error).response()

    return handle
