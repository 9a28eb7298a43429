"""The model endpoint of programs in the training loop: three protocols in, sampled tokens kept here.

Every rollout has an address of its own, which nobody can guess, for as long as it runs. Behind it one chat
model continues from the ids that it sampled, whatever the program does with the text (`models.tokens.chat`).
A call is recorded before the program has the first byte of its answer. Calls that name another model than the
trained one may be answered by that model (`OtherModels`).

What would change the sampling and is not honoured (a forced tool, a schema of the answer, penalties) is
refused if the rollout is `strict`; otherwise the model answers freely and the call is not trained on. An
answer is sampled whole and then sent, as a stream if that was asked for. Not promised: images, several
answers at once, WebSockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.config.providers import CUSTOM
from hermes.core import JSON, JSONObject, Message, Sampling, new_id
from hermes.core.clock import now_ms
from hermes.core.texts import Texts, hashes
from hermes.errors import ContextOverflowError, HermesError, ProviderError, UsageError
from hermes.gateway import clients, translate, wire
from hermes.gateway.journal import CallEnd, RecordedCall
from hermes.gateway.relay import MAX_BODY_BYTES, split_path
from hermes.gateway.translate.base import Translation
from hermes.gateway.wire.texts import with_texts
from hermes.models.base import ChatModel, ChatReply, ChatRequest
from hermes.models.fields import as_object, as_text
from hermes.models.remote.wire import Dialect, message_to_wire
from hermes.serving import listen, listen_at, serve_in_thread
from hermes.serving.json_body import read_json_object

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from hermes.models.tokens.chat import TokenChat

SESSION_HEADER = "x-session-id"
_DIALECT = Dialect(send_reasoning=True)
_SETTLE_S = 0.01


class HungUpError(HermesError):
    """The program closed its connection before its answer was sampled."""


@dataclass(frozen=True, slots=True)
class SampledCall:
    """A call that was answered."""

    id: str
    session: str
    """As the program's header names it; empty if it names none."""
    messages: tuple[Message, ...]
    offers_tools: bool
    reply: ChatReply
    not_honoured: tuple[str, ...] = ()
    """Sampling settings that the program asked for and did not get."""
    other_model: str = ""
    """Who answered instead of the policy, as provider/name."""


@dataclass
class OtherModels:
    """Who answers the calls of a program with several models, of which one is trained."""

    trained: str
    """The name in the calls that the policy answers."""
    open: Callable[[str], ChatModel]
    """The model of another name; it may raise HermesError."""
    _opened: dict[str, ChatModel] = field(default_factory=dict)

    def named(self, name: str) -> ChatModel | None:
        """None: the policy itself."""
        if name == self.trained:
            return None
        if name not in self._opened:
            self._opened[name] = self.open(name)
        return self._opened[name]

    async def close(self) -> None:
        for model in self._opened.values():
            await model.close()


Keep = Callable[[RecordedCall], Awaitable[None]]
"""Returns once the call is durable."""


@dataclass
class SampledRollout:
    """The model of one rollout, and its calls in the order in which they were answered."""

    model: ChatModel
    sampling: Sampling
    tokens: TokenChat | None = None
    """The same model, if it is sampled by tokens: it counts them, and how answers came back."""
    strict: bool = False
    keep: Keep | None = None
    overrides: bool = False
    """The program's temperature and the like are ignored: what is trained has the trainer's distribution."""
    max_calls: int | None = None
    takes_reward: bool = False
    """Whether the program may state its own reward."""
    others: OtherModels | None = None
    """None: whatever model a call names, the policy answers."""
    texts: Texts = field(default_factory=dict)
    """Put around each request (`wire/texts.py`)."""
    calls: list[SampledCall] = field(default_factory=list)
    failure: HermesError | None = None
    """The first failure of a model call."""
    cancelled: int = 0
    """Calls whose program hung up before the answer was sampled."""
    refused: int = 0
    """Calls after `max_calls`."""
    reward: float | None = None
    running: int = 0
    """Calls that are being sampled or recorded."""
    _begun: int = 0

    async def settled(self) -> None:
        """Returns once no call is under way: the program has ended, so none comes after."""
        while self.running:  # noqa: ASYNC110 (they end in the server's thread)
            await asyncio.sleep(_SETTLE_S)

    async def complete(
        self, session: str, request: ChatRequest, not_honoured: tuple[str, ...], model_name: str = ""
    ) -> SampledCall:
        """UsageError: the rollout's calls are spent, or it is strict and something is not honoured."""
        if not_honoured and self.strict:
            names = ", ".join(not_honoured)
            raise UsageError(f"a model call of the environment has {names}, which is not supported.")
        if self.max_calls is not None and self._begun >= self.max_calls:
            self.refused += 1
            raise UsageError(f"the rollout's {self.max_calls} model calls are spent")
        self._begun += 1
        other_model = self.others.named(model_name) if self.others else None
        if other_model is None:
            reply = await self.model.complete(replace(request, sampling=self._sampling(request.sampling)))
        else:
            reply = await other_model.complete(request)
        answered_by = other_model.name if other_model else ""
        has_tools = bool(request.tools)
        call = SampledCall(new_id(), session, request.messages, has_tools, reply, not_honoured, answered_by)
        self.calls.append(call)
        return call

    def _sampling(self, client_sampling: Sampling) -> Sampling:
        limits = [limit for limit in (client_sampling.max_tokens, self.sampling.max_tokens) if limit]
        limit = min(limits) if limits else None
        if self.overrides:
            return replace(self.sampling, max_tokens=limit, stop=client_sampling.stop)
        return replace(
            client_sampling,
            temperature=self.sampling.temperature
            if client_sampling.temperature is None
            else client_sampling.temperature,
            seed=self.sampling.seed if client_sampling.seed is None else client_sampling.seed,
            max_tokens=limit,
        )


class SampledGateway:
    """Serves between `open` and `close`: on a free port of this machine, and for sandboxes at a path.

    Calls are sampled on the event loop of the environment, to which its model clients are bound.
    """

    def __init__(self) -> None:
        self._rollouts: dict[str, SampledRollout] = {}
        self._stack = ExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.url = ""

    async def open(self, socket_path: Path | None = None) -> None:
        """`socket_path`: where sandboxes without a network reach it."""
        self._loop = asyncio.get_running_loop()
        listener = self._stack.enter_context(listen("127.0.0.1", 0))
        self._stack.enter_context(serve_in_thread(self, listener, name="model-gateway"))
        self.url = listener.url
        if socket_path is not None:
            listener = self._stack.enter_context(listen_at(socket_path))
            self._stack.enter_context(serve_in_thread(self, listener, name="model-gateway-socket"))

    async def close(self) -> None:
        await asyncio.to_thread(self._stack.close)

    @contextmanager
    def rollout(self, rollout: SampledRollout) -> Iterator[str]:
        """The path of the rollout's model, which works until the context ends: without /v1."""
        key = secrets.token_urlsafe(16)
        self._rollouts[key] = rollout
        try:
            yield f"/r/{key}"
        finally:
            del self._rollouts[key]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called in the thread of the server."""
        from starlette.requests import Request

        request = Request(scope, receive)
        response = await self._answer(request)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        key, path, _ = split_path(request.scope["raw_path"].decode("latin-1"))
        is_post = request.method == "POST"
        protocol = wire.ROUTES.get(path) if is_post else None
        rollout = self._rollouts.get(key or "")
        anthropic = protocol is wire.Protocol.MESSAGES or "anthropic-version" in request.headers
        client_protocol = protocol or (wire.Protocol.MESSAGES if anthropic else wire.Protocol.CHAT)
        if rollout is None:
            return _refused(client_protocol, 404, "this rollout has ended")
        if "upgrade" in request.headers.get("connection", "").lower():
            return _refused(client_protocol, 426, "there are no WebSockets here")
        try:
            if protocol is not None:
                body = await read_json_object(request, MAX_BODY_BYTES)
                rollout.running += 1
                try:
                    return await self._complete(rollout, protocol, body, request)
                finally:
                    rollout.running -= 1
            if is_post and path == "messages/count_tokens":
                return await self._count(rollout, await read_json_object(request, MAX_BODY_BYTES))
            if is_post and path == "reward" and rollout.takes_reward:
                return _take_reward(rollout, await read_json_object(request, MAX_BODY_BYTES))
        except HermesError as error:
            if protocol is not None and not rollout.refused and not isinstance(error, HungUpError):
                rollout.failure = rollout.failure or error
            return _failed(client_protocol, error)
        if path == "models" and not is_post:
            data: JSON = {"object": "list", "data": [{"id": rollout.model.name, "object": "model"}]}
            return _json(translate.model_list(json.dumps(data).encode()) if anthropic else data)
        if not path and not is_post:
            return _json({"status": "recording"})
        return _refused(client_protocol, 404, f"there is no {request.method} {path} here")

    async def _complete(
        self, rollout: SampledRollout, protocol: wire.Protocol, body: JSONObject, request: Request
    ) -> Response:
        translation = None
        body, used = with_texts(protocol, body, rollout.texts) if rollout.texts else (body, {})
        if protocol is not wire.Protocol.CHAT:
            translation = translate.open_translation(protocol, body, None)
        chat_request, not_honoured = read_chat_request(protocol, body, translation)
        session = request.headers.get(SESSION_HEADER, "")
        started_at_ms, started_s = now_ms(), time.perf_counter()
        name = as_text(body.get("model"))
        call = await self._in_loop(
            rollout, rollout.complete(session, chat_request, not_honoured, name), request
        )
        raw = completion(name or rollout.model.name, call)
        if rollout.keep is not None:
            answered_by = call.other_model or ("" if rollout.tokens else rollout.model.name)
            provider, slash, other_name = answered_by.partition("/")
            recorded = RecordedCall(
                call.id,
                protocol,
                started_at_ms,
                (time.perf_counter() - started_s) * 1000,
                None,
                200,
                CallEnd.COMPLETE,
                call.reply.call.endpoint,
                provider if slash else CUSTOM,
                {name: request.headers[name] for name in clients.RECORDED_HEADERS if name in request.headers},
                json.dumps(body).encode(),
                _with_tokens({**raw, "model": other_name or raw["model"]}, call),
                wire.Protocol.CHAT,
                hashes(used),
            )
            await rollout.keep(recorded)
        return _response(raw, translation, streams=bool(body.get("stream")))

    async def _count(self, rollout: SampledRollout, body: JSONObject) -> Response:
        if rollout.tokens is None:
            return _refused(wire.Protocol.MESSAGES, 404, "this model counts no tokens")
        chat_request, _ = read_chat_request(
            wire.Protocol.MESSAGES, body, translate.open_translation(wire.Protocol.MESSAGES, body, None)
        )
        return _json({"input_tokens": await asyncio.to_thread(rollout.tokens.count_tokens, chat_request)})

    async def _in_loop(
        self, rollout: SampledRollout, work: Coroutine[Any, Any, SampledCall], request: Request
    ) -> SampledCall:
        """The call's result; it is cancelled if the program hangs up."""
        assert self._loop is not None, "the gateway is open"
        future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        async with _hung_up(request) as hang_up:
            await asyncio.wait((future, hang_up), return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            rollout.cancelled += 1
            future.cancel()
            with suppress(asyncio.CancelledError, HermesError):
                await future
            raise HungUpError("the program hung up")
        return future.result()


@contextlib.asynccontextmanager
async def _hung_up(request: Request) -> AsyncIterator[asyncio.Future[Any]]:
    """A future that is done when the client has closed its connection."""
    hang_up = asyncio.ensure_future(request.receive())
    try:
        yield hang_up
    finally:
        hang_up.cancel()
        with suppress(asyncio.CancelledError):
            await hang_up


def read_chat_request(
    protocol: wire.Protocol, body: JSONObject, translation: Translation | None
) -> tuple[ChatRequest, tuple[str, ...]]:
    """The request for the model, and the settings that are not honoured. UsageError: it cannot be read."""
    request = translation.request if translation else wire.read_request(protocol, body)
    if not request.messages:
        raise UsageError("a model call of the environment has no messages.")
    if body.get("n") not in (None, 1):
        raise UsageError("a model call of the environment asks for several answers (n).")
    if any(message.images for message in request.messages):
        raise UsageError("a model call of the environment has images, which are not sampled by tokens.")
    tools = tuple(translation.tools() if translation else request.tools)
    choice = body.get("tool_choice")
    kind = as_object(choice).get("type") if isinstance(choice, dict) else choice
    names = [name for name in _UNSUPPORTED if body.get(name)]
    if kind == "none":
        tools = ()
    elif kind not in (None, "auto"):
        names.append("tool_choice")
    for field_name in ("text", "output_config"):
        form = as_object(as_object(body.get(field_name)).get("format"))
        if form.get("type") not in (None, "text"):
            names.append(f"{field_name}.format")
    sampling = replace(request.sampling, reasoning_effort=None, extra_body=None)
    return ChatRequest(request.messages, tools, sampling), tuple(names)


_UNSUPPORTED = ("logit_bias", "frequency_penalty", "presence_penalty", "response_format", "min_p")


def completion(model: str, call: SampledCall) -> JSONObject:
    """The answer as a chat completion."""
    reply = call.reply
    message = {**message_to_wire(reply.message, _DIALECT), "role": "assistant"}
    choice = {"index": 0, "message": message, "finish_reason": reply.call.finish_reason, "logprobs": None}
    return {
        "id": f"chatcmpl-{call.id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": _usage(reply),
    }


def _usage(reply: ChatReply) -> JSONObject:
    trace, usage = reply.call.tokens, reply.call.usage
    prompt = len(trace.prompt_ids) if trace else usage.prompt
    sampled = len(trace.sampled_ids) if trace else usage.completion
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _with_tokens(body: JSONObject, call: SampledCall) -> bytes:
    """The completion with its exact tokens in the form of vLLM, which `models.tokens.traces` reads."""
    trace = call.reply.call.tokens
    if trace is not None:
        (choice,) = body["choices"]
        sampled = {
            "token_ids": list(trace.sampled_ids),
            "logprobs": {"token_logprobs": list(trace.logprobs)},
        }
        body = {**body, "prompt_token_ids": list(trace.prompt_ids), "choices": [{**choice, **sampled}]}
        if trace.policy_version is not None:
            body["metadata"] = {"weight_version": trace.policy_version}
    return json.dumps(body).encode()


def stream_events(body: JSONObject) -> Iterator[bytes]:
    """A completion as server-sent events: the message in one piece, its end, the usage."""
    head = {**{name: body[name] for name in ("id", "created", "model")}, "object": "chat.completion.chunk"}
    (choice,) = body["choices"]
    delta = dict(choice["message"])
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    pieces: tuple[JSONObject, ...] = (
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
        {"choices": [], "usage": body["usage"]},
    )
    for piece in pieces:
        yield b"data: " + json.dumps({**head, **piece}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def _response(body: JSONObject, translation: Translation | None, *, streams: bool) -> Response:
    from starlette.responses import Response

    if not streams:
        if translation is None:
            return _json(body)
        answer = wire.read_answer(wire.Protocol.CHAT, json.dumps(body).encode())
        assert answer is not None, "a completion is an answer"
        return _json(translation.whole(answer))
    events = b"".join(stream_events(body))
    if translation is not None:
        events = translation.feed(events) + translation.finish()
    return Response(events, media_type="text/event-stream")


def _take_reward(rollout: SampledRollout, body: JSONObject) -> Response:
    # Agents of Agent Lightning send it as the value of an event.
    value = body.get("reward", as_object(body.get("data")).get("value"))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError("the reward is not a finite number", 'send {"reward": 1}')
    rollout.reward = float(value)
    return _json({"reward": rollout.reward})


def _failed(protocol: wire.Protocol, error: HermesError) -> Response:
    if isinstance(error, ContextOverflowError):
        data = {"error": {"message": error.message, "type": "invalid_request_error", "code": _TOO_LONG}}
        return _json(translate.error(protocol, 400, json.dumps(data).encode()), 400)
    if isinstance(error, UsageError):
        return _refused(protocol, 413 if "bytes" in error.message else 400, error.message)
    status = error.status if isinstance(error, ProviderError) and error.status else 503
    return _refused(protocol, status if 400 <= status < 500 else 503, error.message)


_TOO_LONG = "context_length_exceeded"


def _refused(protocol: wire.Protocol, status: int, message: str) -> Response:
    return _json(wire.error_body(protocol, status, message), status)


def _json(content: JSON, status: int = 200) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(content, status_code=status)
