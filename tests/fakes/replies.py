"""What the fake provider can answer: a `Reply` and one constructor per behaviour.

    text("4", reasoning="2+2", usage={...})      an answer
    tool_calls([("terminal", {"command": "ls"}), ("todo", "{broken")])   arguments as dict or raw text
    tokens([5, 6], [-0.1, -0.2], text="hi")      an answer with token ids and logprobs (vLLM's form)
    status(429, retry_after=1.5)                 an HTTP error; retry_after a number or an HTTP date
    hang(30)                                     says nothing for 30 s, then closes
    cut_stream(2)                                closes the connection after 2 chunks
    bad_json()                                   status 200, a body that is no JSON
    raw({...})                                   status 200, exactly this JSON body (not streamed)
    delayed(0.2, reply)                          any of these, later
    held(gate, reply)                            any of these, once the test has set this threading.Event
    slow(0.01, reply)                            any of these, 0.01 s before each chunk of a stream
    duplicated(reply)                            every chunk that carries no text is sent twice

`from_json` builds the same replies from `{"kind": "text", "content": "4"}` for a script in a file.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

DEFAULT_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@dataclass(frozen=True)
class Reply:
    content: str | None = None
    reasoning: str | None = None
    calls: tuple[tuple[str, str], ...] = ()
    """(name, argument text) of each tool call."""
    usage: dict[str, Any] | None = field(default_factory=lambda: dict(DEFAULT_USAGE))
    """None: the server reports no usage."""
    finish_reason: str | None = None
    """None: stop or tool_calls, whichever fits."""
    sampled_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: str | None = None
    """Sent instead of everything above."""
    content_type: str = "application/json"
    delay_s: float = 0.0
    gate: threading.Event | None = None
    """Nothing is sent before it is set."""
    chunk_delay_s: float = 0.0
    hang_s: float | None = None
    cut_after: int | None = None
    cut_cleanly: bool = False
    """A cut stream ends as if it were complete, only without finish reason and [DONE]."""
    duplicate: bool = False


def text(
    content: str,
    *,
    reasoning: str | None = None,
    usage: dict[str, Any] | None = DEFAULT_USAGE,
    finish_reason: str = "stop",
) -> Reply:
    return Reply(content=content, reasoning=reasoning, usage=usage, finish_reason=finish_reason)


def tool_calls(
    calls: Sequence[tuple[str, dict[str, Any] | str]],
    *,
    content: str | None = None,
    reasoning: str | None = None,
    usage: dict[str, Any] | None = DEFAULT_USAGE,
) -> Reply:
    texts = tuple((name, args if isinstance(args, str) else json.dumps(args)) for name, args in calls)
    return Reply(content=content, reasoning=reasoning, calls=texts, usage=usage)


def tokens(
    sampled_ids: Sequence[int],
    logprobs: Sequence[float] | None,
    *,
    text: str = "",
    finish_reason: str = "stop",
) -> Reply:
    return Reply(
        content=text,
        sampled_ids=tuple(sampled_ids),
        logprobs=None if logprobs is None else tuple(logprobs),
        finish_reason=finish_reason,
    )


def status(
    code: int,
    *,
    message: str = "scripted failure",
    error_code: str | None = None,
    retry_after: float | str | None = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    all_headers = dict(headers or {})
    if retry_after is not None:
        all_headers["retry-after"] = str(retry_after)
    error = {"message": message, "type": "fake_error", "code": error_code}
    return Reply(status=code, headers=tuple(all_headers.items()), body=json.dumps({"error": error}))


def hang(seconds: float) -> Reply:
    return Reply(hang_s=seconds)


def cut_stream(after: int, *, cleanly: bool = False, content: str = "This answer never ends well.") -> Reply:
    return Reply(content=content, cut_after=after, cut_cleanly=cleanly)


def bad_json(body: str = '{"choices": [', content_type: str = "application/json") -> Reply:
    return Reply(body=body, content_type=content_type)


def raw(body: Any) -> Reply:
    return Reply(body=json.dumps(body))


def delayed(seconds: float, reply: Reply) -> Reply:
    return replace(reply, delay_s=seconds)


def held(gate: threading.Event, reply: Reply) -> Reply:
    return replace(reply, gate=gate)


def slow(seconds: float, reply: Reply) -> Reply:
    return replace(reply, chunk_delay_s=seconds)


def duplicated(reply: Reply) -> Reply:
    return replace(reply, duplicate=True)


KINDS: dict[str, Callable[..., Reply]] = {
    "text": text,
    "tool_calls": tool_calls,
    "tokens": tokens,
    "status": status,
    "hang": hang,
    "cut_stream": cut_stream,
    "bad_json": bad_json,
    "raw": raw,
}
WRAPPERS: dict[str, Callable[..., Reply]] = {"delayed": delayed, "slow": slow, "duplicated": duplicated}


def from_json(data: dict[str, Any]) -> Reply:
    """`{"kind": NAME, **arguments}`; wrappers take `reply` and, where they need it, `seconds`."""
    arguments = {key: value for key, value in data.items() if key != "kind"}
    if data["kind"] in WRAPPERS:
        return WRAPPERS[data["kind"]](**{**arguments, "reply": from_json(arguments["reply"])})
    return KINDS[data["kind"]](**arguments)
