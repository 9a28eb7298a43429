"""A reward model over HTTP, in the shape of vLLM's pooling API, which the `preference` environment calls.

    POST /pooling  {"messages": [...], "tools": [...]}  →  {"data": [{"data": [score], "spread": s}]}
    POST /score    {"conversations": [{"messages": [...]}, ...]}  →  {"scores": [{"score": x, "spread": s}]}
    GET  /health, GET /v1/models

Requests that arrive together are scored together. A conversation that cannot be scored is answered with 400
and the reason, a service that fails with 502: never with a score.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hermes.core import JSONObject, Message
from hermes.data.formats.base import BadRowError
from hermes.data.formats.turns import from_messages, from_tools
from hermes.errors import HermesError, UsageError
from hermes.safety.access import TokenScheme
from hermes.serving import listen, run_event_loop, serve_until_signal
from hermes.serving.json_body import read_json_object
from hermes.training.preference.reward_model import AnswerScore, RewardScorer

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

TOKEN_VARIABLE = "HERMES_REWARD_TOKEN"
TOKEN_SCHEME = TokenScheme(
    TOKEN_VARIABLE,
    "use the reward model",
    "Authorization: Bearer TOKEN",
    lambda headers, token: hmac.compare_digest(
        headers.get(b"authorization", b""), f"Bearer {token}".encode()
    ),
)
DEFAULT_PORT = 8002
_MOST_BYTES = 16 << 20


def serve(
    scorer: RewardScorer,
    name: str,
    host: str,
    port: int,
    token: str | None,
    announce: Callable[[str], None],
) -> None:
    """Serves until a signal ends it. UsageError: an address that others can reach, without a token."""
    with listen(host, port, TOKEN_SCHEME, token) as listener:
        run_event_loop(serve_until_signal(build_app(scorer, name), listener, announce=announce))


def build_app(scorer: RewardScorer, name: str) -> Starlette:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def pooling(request: Request) -> Response:
        scores = await _scores(scorer, [await read_json_object(request, _MOST_BYTES)])
        data = [{"index": 0, "object": "pooling", "data": [scores[0].score], "spread": scores[0].spread}]
        return JSONResponse({"object": "list", "model": name, "data": data})

    async def score(request: Request) -> Response:
        body = await read_json_object(request, _MOST_BYTES)
        conversations = body.get("conversations")
        if not isinstance(conversations, list) or not conversations:
            raise UsageError("'conversations' is not a list with at least one conversation")
        return JSONResponse(
            {"model": name, "scores": [asdict(row) for row in await _scores(scorer, conversations)]}
        )

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ready", "model": name})

    async def models(request: Request) -> Response:
        facts = {"id": name, "object": "model", "owned_by": "hermes", "base_model": scorer.spec.base_model}
        return JSONResponse({"object": "list", "data": [facts]})

    def reporting(handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            try:
                response: Response = await handler(request)
            except (UsageError, BadRowError) as error:
                return JSONResponse({"error": str(error)}, 400)
            except HermesError as error:
                return JSONResponse({"error": error.message}, 502)
            return response

        return handle

    return Starlette(
        routes=[
            Route("/pooling", reporting(pooling), methods=["POST"]),
            Route("/score", reporting(score), methods=["POST"]),
            Route("/health", reporting(health)),
            Route("/v1/models", reporting(models)),
        ]
    )


async def _scores(scorer: RewardScorer, conversations: list[Any]) -> list[AnswerScore]:
    prompts = [scorer.prompt(*_conversation(conversation)) for conversation in conversations]
    return await _score_in_daemon_thread(scorer, prompts)


async def _score_in_daemon_thread(scorer: RewardScorer, prompts: list[tuple[int, ...]]) -> list[AnswerScore]:
    """A service that is gone keeps its callers for minutes: the end of this process does not wait for them,
    as it would for the threads of a pool."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[AnswerScore]] = loop.create_future()

    def settle(scores: list[AnswerScore], error: Exception | None) -> None:
        if future.done():  # the request was given up
            return
        if error is None:
            future.set_result(scores)
        else:
            future.set_exception(error)

    def run() -> None:
        scores: list[AnswerScore] = []
        problem: Exception | None = None
        try:
            scores = scorer.score_prompts(prompts)
        except Exception as error:  # noqa: BLE001 - it is raised where the scores are awaited
            problem = error
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(settle, scores, problem)

    threading.Thread(target=run, daemon=True, name="score").start()
    return await future


def _conversation(value: Any) -> tuple[tuple[Message, ...], tuple[JSONObject, ...]]:
    if not isinstance(value, dict):
        raise UsageError("a conversation is not an object with 'messages'")
    return from_messages(value.get("messages")), from_tools(value.get("tools"))
