"""A made-up policy: it says given turns, one after the other, whatever it is asked."""

from __future__ import annotations

from dataclasses import replace

from hermes.core import Message, ModelCall, Usage
from hermes.models.base import ChatReply, ChatRequest, OnDelta

NAME = "scripted/policy"


class ScriptedPolicy:
    """Gives every rollout a model that says `turns`; see envs.policy.Rollouts."""

    def __init__(self, turns: tuple[Message, ...] = ()) -> None:
        self.turns = turns

    def rollout_model(self, limit_tokens: int | None) -> ScriptedChat:
        return ScriptedChat(self.turns)

    async def close(self) -> None:
        """Nothing is open."""


class ScriptedChat:
    """A `ChatModel` that says its turns once each, and then nothing more."""

    def __init__(self, turns: tuple[Message, ...]) -> None:
        self._left = list(turns)

    @property
    def name(self) -> str:
        return NAME

    async def complete(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        said = self._left.pop(0) if self._left else Message.assistant("")
        # Ids may repeat from turn to turn in a script; a conversation needs each once.
        calls = tuple(
            replace(call, id=f"{call.id}_{len(request.messages)}_{number}")
            for number, call in enumerate(said.tool_calls)
        )
        reason = "tool_calls" if calls else "stop"
        call = ModelCall(NAME, "local", request.sampling, reason, Usage(), 0.0, cost_usd=0.0)
        return ChatReply(replace(said, tool_calls=calls), call)

    async def close(self) -> None:
        """Nothing is open."""
