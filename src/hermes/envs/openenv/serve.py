"""One of our environments as an OpenEnv server: `hermes env openenv my_env.py`.

A client (openenv-core's, TRL's) plays the model. `reset` begins a rollout in a fresh sandbox and returns its
prompt; a step calls one of the rollout's tools, or `submit_answer`, whose text is the reply that ends a turn.
The last observation has the reward. The rollout is that of training here: with the same tools, limits and
grader, and recorded in the store.

A session is one WebSocket. A rollout that failed through no fault of the client, its grader's failure
included, is an error and never a reward. Not offered: plain HTTP `/reset` and `/step`, which have no session.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from hermes.core import JSON, JSONObject, Message, ModelCall, Role, ToolCall, Usage, new_id
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.agent.rollout import ScoredRollout
from hermes.envs.modes import commandline
from hermes.errors import HermesError, UsageError
from hermes.models.base import ChatModel, ChatReply, ChatRequest, OnDelta
from hermes.tools.base import object_schema

if TYPE_CHECKING:
    from starlette.requests import Request

MODEL = "openenv/client"
ANSWER = "submit_answer"
_ANSWER_TOOL: JSONObject = {
    "name": ANSWER,
    "description": "Gives the final answer, which ends the turn and is scored.",
    "input_schema": object_schema("answer", answer={"type": "string"}),
}
_ACTION_SCHEMA: JSONObject = {
    **object_schema(
        "tool_name",
        type={"type": "string", "const": "call_tool", "default": "call_tool"},
        tool_name={"type": "string"},
        arguments={"type": "object"},
        metadata={"type": "object"},
    ),
    "title": "CallToolAction",
}
_OBSERVATION_SCHEMA: JSONObject = {"title": "CallToolObservation", "type": "object"}
_STATE_SCHEMA: JSONObject = {
    "title": "State",
    "type": "object",
    "properties": {"episode_id": {"type": ["string", "null"]}, "step_count": {"type": "integer"}},
}
_running: ContextVar[ServedEpisode] = ContextVar("served_episode")


class ClientPolicy:
    """A `RolloutPolicy` whose model is the client of the episode that is begun."""

    def rollout_model(self, limit_tokens: int | None) -> ChatModel:
        return _running.get()

    async def close(self) -> None:
        """Does nothing: sessions close their episodes."""


class ServedEpisode:
    """A rollout whose `ChatModel` is a client: its replies are the client's actions."""

    def __init__(self, env: HermesAgentBaseEnv, item: Any, episode_id: str) -> None:
        self.episode_id = episode_id
        self.steps = 0
        self.tools: list[JSONObject] = []
        self._seen = 0
        self._requests: asyncio.Queue[ChatRequest] = asyncio.Queue()
        self._replies: asyncio.Queue[Message] = asyncio.Queue()
        token = _running.set(self)
        self._rollout: asyncio.Task[ScoredRollout] = asyncio.create_task(env.run_item(item, attempts=1))
        _running.reset(token)

    @property
    def name(self) -> str:
        return MODEL

    async def complete(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        self._requests.put_nowait(request)
        message = await self._replies.get()
        reason = "tool_calls" if message.tool_calls else "stop"
        call = ModelCall(MODEL, "local", request.sampling, reason, Usage(), 0.0, cost_usd=0.0)
        return ChatReply(message, call)

    async def begin(self) -> JSONObject:
        """The prompt. HermesError: the rollout failed."""
        messages, end = await self._advance()
        data: JSONObject = {"prompt": _text(messages, Role.USER)}
        if system_prompt := _text(messages, Role.SYSTEM):
            data["system_prompt"] = system_prompt
        # The client class for MCP environments keeps nothing of the first observation but `metadata`.
        data["metadata"] = dict(data)
        return _observation(data, end)

    async def call(self, name: str, arguments: JSONObject) -> JSONObject:
        """The observation that follows the call. HermesError: the rollout failed."""
        self.steps += 1
        if name == ANSWER:
            reply = Message.assistant(str(arguments.get("answer", "")))
        else:
            call = ToolCall(f"call_{self.steps}", name, json.dumps(arguments))
            reply = Message.assistant("", tool_calls=(call,))
        self._replies.put_nowait(reply)
        messages, end = await self._advance()
        text = "\n\n".join(message.content for message in messages if message.role is not Role.ASSISTANT)
        content = [{"type": "text", "text": text}]
        data: JSONObject = {"tool_name": name, "result": {"content": content, "data": text}, "error": None}
        return _observation(data, end)

    async def _advance(self) -> tuple[list[Message], ScoredRollout | None]:
        """The messages that are new to the client, and the rollout if it has ended."""
        request = asyncio.create_task(self._requests.get())
        try:
            await asyncio.wait({request, self._rollout}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not request.done():
                request.cancel()
        if self._rollout.done():
            end = self._rollout.result()
            conversation = [step.message for step in end.result.trajectory.steps]
            return conversation[self._seen :], end
        latest = request.result()
        self.tools = [{name: tool[key] for name, key in _TOOL_FIELDS.items()} for tool in latest.tools] + [
            _ANSWER_TOOL
        ]
        messages, self._seen = list(latest.messages[self._seen :]), len(latest.messages)
        return messages, None

    async def close(self) -> None:
        """Ends the rollout; it has no reward then."""
        self._rollout.cancel()
        await asyncio.gather(self._rollout, return_exceptions=True)


def _text(messages: Sequence[Message], role: Role) -> str:
    return "\n\n".join(message.content for message in messages if message.role is role)


_TOOL_FIELDS = {"name": "name", "description": "description", "input_schema": "parameters"}


def _observation(data: JSONObject, end: ScoredRollout | None = None) -> JSONObject:
    reward = None if end is None else end.reward.value
    return {"observation": data, "reward": reward, "done": end is not None}


@dataclass
class EpisodeServer:
    """The sessions of one environment, which is set up."""

    env: HermesAgentBaseEnv
    max_sessions: int
    tasks: int
    """Seeds that differ: a seed is the task of its remainder."""
    sessions: int = 0
    _items: list[Any] = field(default_factory=list)
    _drawing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def item(self, seed: int | None) -> Any:
        """The task of a seed; without one the next task."""
        async with self._drawing:
            index = len(self._items) if seed is None else seed % self.tasks
            while len(self._items) <= index:
                self._items.append(await self.env.get_next_item())
            return self._items[index]

    async def serve(self, socket: WebSocket) -> None:
        await socket.accept()
        if self.sessions >= self.max_sessions:
            text = f"all {self.max_sessions} sessions are taken"
            await socket.send_text(_error("CAPACITY_REACHED", text))
            await socket.close()
            return
        self.sessions += 1
        session = ClientSession(self)
        try:
            while (reply := await session.answer(await _received(socket))) is not None:
                await socket.send_text(reply)
            await socket.close()
        except WebSocketDisconnect:
            pass
        finally:
            self.sessions -= 1
            await session.close()


async def _received(socket: WebSocket) -> str | bytes:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    text: str | bytes | None = message.get("text")
    return message["bytes"] if text is None else text


class ClientSession:
    """The episodes of one WebSocket, one after the other."""

    def __init__(self, server: EpisodeServer) -> None:
        self._server = server
        self._episode: ServedEpisode | None = None

    async def answer(self, text: str | bytes) -> str | None:
        """The reply to a message; None: the client is done."""
        try:
            message = json.loads(text)
            kind, data = message["type"], message.get("data") or {}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            return _error("INVALID_JSON", f"a message is {{type, data}}: {error}")
        if not isinstance(data, dict):
            return _error("VALIDATION_ERROR", "data is an object")
        try:
            match kind:
                case "reset":
                    return _reply("observation", await self._reset(data))
                case "step":
                    return _reply("observation", await self._step(data))
                case "state":
                    return _reply("state", self._state())
                case "close":
                    return None
        except UsageError as error:
            return _error("VALIDATION_ERROR", error.message)
        except HermesError as error:
            await self.close()
            return _error("SESSION_ERROR", error.message)
        return _error(
            "UNKNOWN_TYPE", f"there is no message '{kind}'; the types are reset, step, state, close"
        )

    async def close(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            await episode.close()

    async def _reset(self, data: JSONObject) -> JSONObject:
        seed = data.get("seed")
        if not isinstance(seed, int | None) or (seed or 0) < 0:
            raise UsageError("seed is a whole number from 0")
        await self.close()
        item = await self._server.item(seed)
        self._episode = ServedEpisode(self._server.env, item, str(data.get("episode_id") or new_id()))
        return await self._episode.begin()

    async def _step(self, data: JSONObject) -> JSONObject:
        if data.get("type") == "list_tools":
            if self._episode is None:
                await self._reset({"seed": 0})
            assert self._episode is not None, "it was begun"
            return _observation({"tools": self._episode.tools})
        name, arguments = data.get("tool_name"), data.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise UsageError("an action is {type: call_tool, tool_name, arguments}")
        if self._episode is None:
            raise UsageError("there is no episode: reset begins one")
        observation = await self._episode.call(name, arguments)
        if observation["done"]:
            self._episode = None
        return observation

    def _state(self) -> JSONObject:
        episode = self._episode
        return {
            "episode_id": None if episode is None else episode.episode_id,
            "step_count": 0 if episode is None else episode.steps,
        }


def _reply(kind: str, data: JSONObject) -> str:
    return json.dumps({"type": kind, "data": data})


def _error(code: str, message: str) -> str:
    return _reply("error", {"message": message, "code": code})


def application(server: EpisodeServer) -> Starlette:
    """The routes of an OpenEnv server, without episodes over plain HTTP."""

    def fixed(data: JSON) -> Callable[[Request], JSONResponse]:
        return lambda request: JSONResponse(data)

    description = " ".join((type(server.env).__doc__ or "").split())
    metadata = {"name": server.env.display_name, "description": description}
    schema = {"action": _ACTION_SCHEMA, "observation": _OBSERVATION_SCHEMA, "state": _STATE_SCHEMA}
    return Starlette(
        routes=[
            Route("/health", fixed({"status": "healthy"})),
            Route("/metadata", fixed(metadata)),
            Route("/schema", fixed(schema)),
            WebSocketRoute("/ws", server.serve),
        ]
    )


def open_environment(cls: type, settings: Sequence[str]) -> HermesAgentBaseEnv:
    """The environment with its settings, not yet set up. UsageError: it has no tools for a client to call."""
    if not issubclass(cls, HermesAgentBaseEnv):
        raise UsageError(
            f"{cls.__name__} samples its answers itself, so no client can play it.",
            "Serve an agent environment: one that derives from HermesAgentBaseEnv.",
        )
    env, _ = commandline.build(cast(Any, cls), commandline.parse(["process", *settings]))
    return cast(HermesAgentBaseEnv, env)


async def serve_environment(
    env: HermesAgentBaseEnv, port: int, max_sessions: int, tasks: int, announce: Callable[[str], None]
) -> None:
    """Serves the environment on loopback until SIGINT or SIGTERM, and closes it."""
    from hermes.serving import HttpSettings, listen, serve_until_signal

    env.rehearse(ClientPolicy(), env.hermes_config().home)
    try:
        with listen("127.0.0.1", port) as listener:
            await env.setup()
            app = application(EpisodeServer(env, max_sessions, tasks))
            await serve_until_signal(app, listener, HttpSettings(websockets=True), announce=announce)
    finally:
        await env.close()
