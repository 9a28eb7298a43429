"""The policy's OpenAI face, offered by the trainer itself where a Tinker service has the weights.

Environments and agents speak OpenAI's API and `/generate`; a managed service speaks Tinker. This is the
engine's own face over that service, on loopback, in a thread of the process that trains or serves: the same
routes, the same exact tokens and logprobs, and in every answer the name of the weights that gave it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import MissingDependencyError
from hermes.safety.access import listen, policy_for
from hermes.training.service.client import ServiceConnection
from hermes.training.service.token_meter import TokenMeter

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from hermes.training.service.openai_backend import RemoteNames, RemoteState

HOST = "127.0.0.1"
_BACKLOG = 1024
_PARSER = "hermes"


class OpenAIProxy:
    """A running face."""

    def __init__(self, names: RemoteNames, url: str) -> None:
        self._names = names
        self.url = url

    def show(self, path: str) -> None:
        """From now on `policy` means these weights."""
        self._names.policy = path


def tokenizer_of(base_model: str, home: Path) -> str:
    """Where transformers finds the tokenizer of a base model."""
    from hermes.models.local import bundled

    return str(bundled.prepare(home)) if base_model == f"hermes/{bundled.NAME}" else base_model


@contextlib.contextmanager
def offered(
    connection: ServiceConnection, base_model: str, tokenizer: str, port: int, meter: TokenMeter
) -> Iterator[OpenAIProxy]:
    """A face on that port of loopback (0: any free one), until the context ends."""
    try:
        from hermes.training.service.openai_backend import RemoteEngine, RemoteNames, RemoteState
    except ImportError as error:
        raise MissingDependencyError(error.name or "torch", "train", "Offering the policy") from error
    with listen(HOST, port, _BACKLOG) as listener:
        engine = RemoteEngine(connection, base_model, tokenizer, meter)
        names = RemoteNames(engine, base_model)
        server = _server(_app(RemoteState(engine, names)))
        thread = threading.Thread(target=_serve, args=(server, listener), name="face", daemon=True)
        thread.start()
        try:
            yield OpenAIProxy(names, f"http://{HOST}:{listener.getsockname()[1]}")
        finally:
            server.should_exit = True
            thread.join()
            engine.close()


def _app(state: RemoteState) -> ASGIApp:
    from starlette.routing import Route

    from hermes.engine.server.app import build_app
    from hermes.engine.server.openai.routes import openai_routes
    from hermes.engine.server.security import TOKEN_SCHEME

    # The routes use no more of an engine than RemoteState has.
    table = openai_routes(state, _PARSER)
    return build_app([Route("/health", _health), *table], policy_for(TOKEN_SCHEME, HOST, None))


async def _health(request: Request) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"status": "ok"})


def _server(app: ASGIApp) -> uvicorn.Server:
    import uvicorn

    config = uvicorn.Config(
        app, ws="none", lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=2
    )
    return uvicorn.Server(config)


def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    asyncio.run(server.serve(sockets=[listener]))
