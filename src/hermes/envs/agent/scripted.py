"""A scripted policy: it replies with given turns, one after the other, whatever the prompt."""

from __future__ import annotations

from dataclasses import replace

from hermes.core import JSONObject, Message, ModelCall, Usage
from hermes.models.base import ChatReply, ChatRequest, OnDelta

NAME = "scripted/policy"


class ScriptedPolicy:
    """A `RolloutPolicy` whose models reply with `turns`."""

    def __init__(self, turns: tuple[Message, ...] = ()) -> None:
        self.turns = turns
        self.offered: tuple[JSONObject, ...] = ()
        """The tools that the last request offered."""

    def rollout_model(self, limit_tokens: int | None) -> ScriptedChat:
        return ScriptedChat(self)

    async def close(self) -> None:
        """Does nothing: there is no connection."""


class ScriptedChat:
    """A `ChatModel` that replies with each of its turns once, and then with empty messages."""

    def __init__(self, policy: ScriptedPolicy) -> None:
        self._policy = policy
        self._remaining = list(policy.turns)

    @property
    def name(self) -> str:
        return NAME

    async def complete(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        self._policy.offered = tuple(request.tools)
        message = self._remaining.pop(0) if self._remaining else Message.assistant("")
        # Call ids may repeat between the turns of a script; in a conversation they must be unique.
        calls = tuple(
            replace(call, id=f"{call.id}_{len(request.messages)}_{number}")
            for number, call in enumerate(message.tool_calls)
        )
        reason = "tool_calls" if calls else "stop"
        call = ModelCall(NAME, "local", request.sampling, reason, Usage(), 0.0, cost_usd=0.0)
        return ChatReply(replace(message, tool_calls=calls), call)

    async def close(self) -> None:
        """Does nothing: there is no connection."""
