"""Maps what stopped a turn to its outcome: the one place where failures get their boundary."""

from __future__ import annotations

import asyncio

from hermes.core import Boundary, Outcome, StopReason
from hermes.core.message import Message
from hermes.core.model_call import CONTENT_FILTER, ModelCall
from hermes.core.outcome import COMPLETED
from hermes.errors import ContextOverflowError, LimitError, ProviderError, SandboxError

_LIMITS = {
    "max_turns": StopReason.MAX_TURNS,
    "max_tokens": StopReason.MAX_TOKENS,
    "max_cost": StopReason.MAX_COST,
    "max_calls": StopReason.MAX_CALLS,
    "timeout": StopReason.TIMEOUT,
}


def from_answer(message: Message, call: ModelCall) -> Outcome | None:
    """The outcome of a model's answer; None if it calls tools, so that the turn continues."""
    runnable = [tool_call for tool_call in message.tool_calls if tool_call.error is None]
    if call.finish_reason == "length" and not runnable:
        return Outcome(StopReason.TRUNCATED, Boundary.LIMIT, detail="the answer hit the completion limit")
    if message.tool_calls:
        return None
    if call.finish_reason == CONTENT_FILTER:
        return Outcome(StopReason.FILTERED, Boundary.PROVIDER, detail="the provider withheld the answer")
    if not message.content.strip():
        return Outcome(StopReason.EMPTY, Boundary.MODEL, detail="the answer has no text and calls no tool")
    return COMPLETED


def from_error(error: BaseException) -> Outcome:
    """Every exception has an outcome; an unexpected one is the host's failure, never the policy's."""
    kind = type(error).__name__
    match error:
        case LimitError():
            return Outcome(_LIMITS[error.limit], Boundary.LIMIT, kind, error.message)
        case ContextOverflowError():
            return Outcome(StopReason.CONTEXT_FULL, Boundary.LIMIT, kind, error.message)
        case ProviderError():
            return Outcome(StopReason.ERROR, Boundary.PROVIDER, kind, error.message)
        case SandboxError():
            return Outcome(StopReason.ERROR, Boundary.SANDBOX, kind, error.message)
        case asyncio.CancelledError() | KeyboardInterrupt() | GeneratorExit():
            return Outcome(StopReason.CANCELLED, Boundary.USER, kind)
        case _:
            return Outcome(StopReason.ERROR, Boundary.HOST, kind, str(error))
