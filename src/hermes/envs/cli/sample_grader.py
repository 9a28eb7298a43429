"""A grader for the check of environments whose grader is the user's: `reward_function` and `preference`.

Without one these cannot be checked. Where the settings name none, `sample_settings` writes prompts with
expected answers to a temporary folder and gives `reward_function` a function, and `preference` a reward
model on loopback, that compare the last answer with the expected one, exactly. What is checked then is the
environment around a sound grader: that nothing a policy says or does reaches the grader as somebody else's
words. A grader of your own is only as sound as it is.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.core import JSONObject, Message, ModelCall, Usage
from hermes.envs.base import BaseEnv
from hermes.envs.builtin.preference import PreferenceEnv
from hermes.envs.builtin.reward_function import RewardFunctionEnv
from hermes.models.base import ChatReply, ChatRequest, OnDelta
from hermes.serving import HttpSettings, listen, serve_in_thread
from hermes.serving.json_body import read_json_object

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

STATED = "a sample, as the settings name none: the last answer must equal the expected one"
_TASKS = {
    "Write the word 'harbour' backwards, and nothing else.": "ruobrah",
    "Which is later in the alphabet, 'plum' or 'pear'? Give the word only.": "plum",
    "Join 'snow' and 'drift' to one word. Give the word only.": "snowdrift",
    "Write 'lantern' in capital letters, and nothing else.": "LANTERN",
}
_FUNCTION = "def score(ctx):\n    return float(ctx.answer.strip() == ctx.expected)\n"
_MAX_BODY_BYTES = 64 << 20
_SURE = 1_000.0
"""A score whose sigmoid is 0 or 1."""


@contextmanager
def sample_settings(cls: type[BaseEnv], argv: Sequence[str]) -> Iterator[Sequence[str]]:
    """The settings with the sample added, if this environment needs a grader and they name none."""
    needed = {RewardFunctionEnv: "--env.reward", PreferenceEnv: "--env.reward_model_url"}
    option = next((option for base, option in needed.items() if issubclass(cls, base)), None)
    if option is None or any(argument.split("=")[0] in (option, "--config") for argument in argv):
        yield argv
        return
    with tempfile.TemporaryDirectory(prefix="hermes-check-") as folder, _serve_scores() as address:
        rows = [{"prompt": prompt, "expected": solution} for prompt, solution in _TASKS.items()]
        prompts, function = Path(folder, "tasks.jsonl"), Path(folder, "sample.py")
        prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
        function.write_text(_FUNCTION)
        value = f"{function}:score" if issubclass(cls, RewardFunctionEnv) else address
        yield [*argv, "--env.dataset_name", str(prompts), option, value]


@contextmanager
def _serve_scores() -> Iterator[str]:
    """vLLM's pooling API: a conversation in, one number out."""

    async def pool(request: Request) -> Response:
        from starlette.responses import JSONResponse

        body = await read_json_object(request, _MAX_BODY_BYTES)
        return JSONResponse({"data": [{"data": [score_conversation(body["messages"])]}]})

    with listen("127.0.0.1", 0) as listener:
        from starlette.applications import Starlette
        from starlette.routing import Route

        app = Starlette(routes=[Route("/{path:path}", pool, methods=["POST"])])
        with serve_in_thread(app, listener, HttpSettings(grace_s=1), name="sample-grader"):
            yield listener.url


def score_conversation(messages: Sequence[dict[str, Any]]) -> float:
    """Positive if the last message answers the last prompt that a user wrote."""
    prompts = [message["content"] for message in messages if message["role"] == "user"]
    last = messages[-1]
    expected = _TASKS.get(prompts[-1]) if prompts else None
    right = last["role"] == "assistant" and expected is not None and last["content"].strip() == expected
    return _SURE if right else -_SURE


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
