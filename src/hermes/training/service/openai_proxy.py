"""An OpenAI endpoint for the policy, served by the trainer when the weights are at a Tinker service.

Environments and agents use OpenAI's API and `/generate`; a managed service has only the Tinker API. The proxy
serves the engine's OpenAI routes on loopback, in a thread of the process that trains or serves, and samples
at the service: the same exact tokens and logprobs, and in every response the name of the weights that sampled
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import MissingDependencyError
from hermes.serving import HttpSettings, listen, serve_in_thread
from hermes.training.service.client import ServiceConnection
from hermes.training.service.token_meter import TokenMeter

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from hermes.training.service.openai_backend import RemoteNames, RemoteState

HOST = "127.0.0.1"
_SHUTDOWN_GRACE_S = 2
_PARSER = "hermes"


class OpenAIProxy:
    """A running proxy."""

    def __init__(self, names: RemoteNames, url: str) -> None:
        self._names = names
        self.url = url

    def set_policy(self, path: str, name: str | None = None) -> None:
        """Makes `policy` an alias of these weights. `name`: another one, which is then the only model."""
        self._names.policy, self._names.served = path, name


def tokenizer_of(base_model: str, home: Path) -> str:
    """The folder or hub name of a base model's tokenizer."""
    from hermes.models.local import bundled

    return str(bundled.prepare(home)) if base_model == f"hermes/{bundled.NAME}" else base_model


@contextlib.contextmanager
def serve_proxy(
    connection: ServiceConnection, base_model: str, tokenizer: str, port: int, meter: TokenMeter
) -> Iterator[OpenAIProxy]:
    """Serves on that port of loopback (0: any free port) until the context exits."""
    try:
        from hermes.training.service.openai_backend import RemoteEngine, RemoteNames, RemoteState
    except ImportError as error:
        raise MissingDependencyError(error.name or "torch", "train", "Serving the policy") from error
    with listen(HOST, port) as listener:
        engine = RemoteEngine(connection, base_model, tokenizer, meter)
        names = RemoteNames(engine, base_model)
        app = _app(RemoteState(engine, names))
        try:
            settings = HttpSettings(grace_s=_SHUTDOWN_GRACE_S)
            with serve_in_thread(app, listener, settings, name="openai-proxy"):
                yield OpenAIProxy(names, listener.url)
        finally:
            engine.close()


def _app(state: RemoteState) -> ASGIApp:
    from hermes.engine.server.app import build_app
    from hermes.engine.server.openai.routes import openai_routes
    from hermes.serving.openapi import Operation

    # The routes use no other attributes of an engine than those RemoteState has.
    health = Operation("GET", "/health", "Whether the server answers.", _health)
    return build_app([health, *openai_routes(state, _PARSER)])


async def _health(request: Request) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"status": "ok"})
