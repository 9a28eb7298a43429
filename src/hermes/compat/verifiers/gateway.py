"""The model endpoint of rollouts that run in another process: OpenAI's chat API, with the tokens kept here.

Every rollout has an address of its own, which nobody can guess, for as long as it runs. Behind it each
session (verifiers names one for each agent of a rollout) is a chat model that continues from the ids it
sampled. So the tokens of a rollout are those that were sampled, whatever the environment does with the text.

Not promised: other endpoints than chat completions, and images.

Text and function tools only. What would change the sampling and cannot be honoured is refused, so that no
sequence states a distribution that it was not drawn from.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hermes.core import JSONObject, Message, ModelCall, Sampling, new_id
from hermes.engine.server.openai.chat import read_messages, read_tools
from hermes.engine.server.openai.errors import OpenAIRequestError
from hermes.errors import ContextOverflowError, HermesError, ProviderError, UsageError
from hermes.models.base import ChatModel, ChatReply, ChatRequest
from hermes.models.fields import as_objects
from hermes.models.remote.wire import Dialect, message_to_wire
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
    """The parameters of a call that states none; its `max_tokens` bounds every call."""
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


_REFUSED = ("logit_bias", "frequency_penalty", "presence_penalty", "response_format", "min_p")
_DIALECT = Dialect(send_reasoning=True)


def read_request(body: JSONObject) -> ChatRequest:
    """UsageError: the request wants something that is not supported."""
    refused = [name for name in _REFUSED if body.get(name)]
    if body.get("n") not in (None, 1):
        refused.append("n")
    if body.get("tool_choice") not in (None, "auto", "none"):
        refused.append("tool_choice")
    if refused:
        raise UsageError(f"a model call of the environment has {', '.join(refused)}, which is not supported.")
    try:
        messages = read_messages(as_objects(body.get("messages")))
        tools = read_tools(as_objects(body.get("tools")), body.get("tool_choice"))
    except OpenAIRequestError as error:
        raise UsageError(f"a model call of the environment cannot be read: {error}") from error
    if not messages:
        raise UsageError("a model call of the environment has no messages.")
    return ChatRequest(messages=messages, tools=tools, sampling=_read_sampling(body))


def _read_sampling(body: JSONObject) -> Sampling:
    stop = body.get("stop")
    limits = [body[name] for name in ("max_tokens", "max_completion_tokens") if body.get(name)]
    return Sampling(
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        top_k=body.get("top_k"),
        max_tokens=min(limits) if limits else None,
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        seed=body.get("seed"),
    )


def completion(model: str, call_id: str, reply: ChatReply) -> JSONObject:
    """The body of a response that is not streamed."""
    message = {**message_to_wire(reply.message, _DIALECT), "role": "assistant"}
    choice = {"index": 0, "message": message, "finish_reason": reply.call.finish_reason, "logprobs": None}
    return {**_head(model, call_id, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


def stream_events(model: str, call_id: str, reply: ChatReply) -> Iterator[bytes]:
    """The same as server-sent events: the message in one piece, its end, the usage."""
    head = _head(model, call_id, "chat.completion.chunk")
    delta = {**message_to_wire(reply.message, _DIALECT), "role": "assistant"}
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    pieces: tuple[dict[str, Any], ...] = (
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reply.call.finish_reason}]},
        {"choices": [], "usage": _usage(reply)},
    )
    for piece in pieces:
        yield b"data: " + json.dumps({**head, **piece}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def _head(model: str, call_id: str, kind: str) -> JSONObject:
    return {"id": f"chatcmpl-{call_id}", "object": kind, "created": int(time.time()), "model": model}


def _usage(reply: ChatReply) -> JSONObject:
    trace, usage = reply.call.tokens, reply.call.usage
    prompt = len(trace.prompt_ids) if trace else usage.prompt
    sampled = len(trace.sampled_ids) if trace else usage.completion
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
