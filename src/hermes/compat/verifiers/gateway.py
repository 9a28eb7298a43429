"""The model endpoint of rollouts that run in another process: OpenAI's chat API, with the tokens kept here.

Every rollout has an address of its own, which nobody can guess, for as long as it runs. Behind it each
session (verifiers names one for each agent of a rollout) is a chat model that continues from the ids it
sampled. So the tokens of a rollout are those that were sampled, whatever the environment does with the text.

Not promised: other endpoints than chat completions, and images.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hermes.compat.verifiers.chat_wire import completion, read_request, stream_events
from hermes.core import JSONObject, Message, ModelCall, Sampling, new_id
from hermes.errors import ContextOverflowError, HermesError, ProviderError, UsageError
from hermes.models.base import ChatModel, ChatReply
from hermes.serving import listen, serve_in_thread
from hermes.serving.json_body import read_json_object

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

logger = logging.getLogger(__name__)

SESSION_HEADER = "x-session-id"
_MAX_BODY_BYTES = 64 << 20


@dataclass
class SessionCalls:
    """The model calls of one agent of a rollout."""

    model: ChatModel
    calls: list[ModelCall] = field(default_factory=list)
    messages: tuple[Message, ...] = ()
    """The conversation as the last call saw it, with its answer."""


@dataclass
class RolloutCalls:
    """The model calls of one rollout."""

    new_model: Callable[[], ChatModel]
    sampling: Sampling
    """What a call that states nothing else is sampled with; its `max_tokens` bounds every call."""
    sessions: dict[str, SessionCalls] = field(default_factory=dict)
    failure: HermesError | None = None
    """The first failure of a model call."""

    async def complete(self, session_id: str, body: JSONObject) -> ChatReply:
        request = read_request(body)
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = SessionCalls(self.new_model())
        reply = await session.model.complete(replace(request, sampling=self._complete(request.sampling)))
        session.calls.append(reply.call)
        session.messages = (*request.messages, reply.message)
        return reply

    def _complete(self, stated: Sampling) -> Sampling:
        limits = [limit for limit in (stated.max_tokens, self.sampling.max_tokens) if limit]
        return replace(
            stated,
            temperature=self.sampling.temperature if stated.temperature is None else stated.temperature,
            seed=self.sampling.seed if stated.seed is None else stated.seed,
            max_tokens=min(limits) if limits else None,
        )


class ModelGateway:
    """Serves on a free port of this machine between `open` and `close`.

    Calls are sampled on the event loop of the environment, to which its model clients are bound.
    """

    def __init__(self) -> None:
        self._rollouts: dict[str, RolloutCalls] = {}
        self._stack = ExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._url = ""

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        listener = self._stack.enter_context(listen("127.0.0.1", 0))
        self._stack.enter_context(serve_in_thread(_application(self), listener, name="model-gateway"))
        self._url = listener.url

    async def close(self) -> None:
        await asyncio.to_thread(self._stack.close)

    @contextmanager
    def rollout(self, calls: RolloutCalls) -> Iterator[str]:
        """The base URL of a rollout's model, which works until the context ends."""
        key = secrets.token_urlsafe(16)
        self._rollouts[key] = calls
        try:
            yield f"{self._url}/{key}/v1"
        finally:
            del self._rollouts[key]

    def find(self, key: str) -> RolloutCalls | None:
        return self._rollouts.get(key)

    async def complete(self, calls: RolloutCalls, session_id: str, body: JSONObject) -> ChatReply:
        """Called in the thread of the server."""
        assert self._loop is not None, "the gateway is open"
        future = asyncio.run_coroutine_threadsafe(calls.complete(session_id, body), self._loop)
        return await asyncio.wrap_future(future)


def _application(gateway: ModelGateway) -> ASGIApp:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, StreamingResponse
    from starlette.routing import Route

    def refuse(status: int, message: str, code: str) -> Response:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        return JSONResponse({"error": error}, status_code=status)

    async def chat(request: Request) -> Response:
        calls = gateway.find(request.path_params["key"])
        if calls is None:
            return refuse(404, "this rollout has ended", "rollout_ended")
        try:
            body = await read_json_object(request, _MAX_BODY_BYTES)
            reply = await gateway.complete(calls, request.headers.get(SESSION_HEADER, ""), body)
        except HermesError as error:
            calls.failure = calls.failure or error
            return refuse(*_status(error))
        call_id, model = new_id(), str(body.get("model") or reply.call.model)
        if body.get("stream"):
            events = stream_events(model, call_id, reply)
            return StreamingResponse(events, media_type="text/event-stream")
        return JSONResponse(completion(model, call_id, reply))

    return Starlette(routes=[Route("/{key}/v1/chat/completions", chat, methods=["POST"])])


def _status(error: HermesError) -> tuple[int, str, str]:
    if isinstance(error, ContextOverflowError):
        return 400, error.message, "context_length_exceeded"
    if isinstance(error, UsageError):
        return 400, error.message, "unsupported"
    if isinstance(error, ProviderError) and error.status is not None and error.status < 500:
        return error.status, error.message, "refused"
    return 503, error.message, "model_server_failed"
