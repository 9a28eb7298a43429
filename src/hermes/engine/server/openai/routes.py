"""The engine's OpenAI face: its routes, and the list of what can be asked for by name."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hermes.engine.server.openai.backend import OpenAIBackend
from hermes.engine.server.openai.chat import Chat
from hermes.engine.server.openai.completions import TextCompletions
from hermes.engine.server.openai.errors import OpenAIRequestError, in_openai_shape
from hermes.engine.server.openai.generate import Generation
from hermes.engine.server.openai.sampling import no_model, to_sample
from hermes.engine.server.openai.text import Detokenizer
from hermes.engine.server.policies import key_of
from hermes.engine.server.responses import as_json

_OFFERED = "GET /v1/models, POST /v1/chat/completions, POST /v1/completions and POST /generate"
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def openai_routes(state: OpenAIBackend, parser: str) -> list[Route]:
    """`parser`: in which form the model calls tools."""
    speaker = Detokenizer(state.engine, parser)
    models = Models(state)
    table = [
        ("GET", "/v1/models", models.list),
        ("GET", "/v1/models/{model:path}", models.get),
        ("POST", "/v1/chat/completions", Chat(state, speaker).complete),
        ("POST", "/v1/completions", TextCompletions(state, speaker).complete),
        ("POST", "/generate", Generation(state, speaker).generate),
    ]
    routes = [Route(path, in_openai_shape(handler), methods=[method]) for method, path, handler in table]
    return [*routes, Route("/v1/{rest:path}", in_openai_shape(_not_offered), methods=_METHODS)]


class Models:
    def __init__(self, state: OpenAIBackend) -> None:
        self._state = state
        self._began_s = int(time.time())

    async def list(self, request: Request) -> Response:
        return as_json({"object": "list", "data": [self._card(*one) for one in self._versions().items()]})

    async def get(self, request: Request) -> Response:
        name = request.path_params["model"]
        version = self._versions().get(name)
        if version is None:
            raise no_model(self._state, name)
        return as_json(self._card(name, version))

    def _versions(self) -> dict[str, str]:
        """Which weights each name means now."""
        names = self._state.names
        kept = {str(one.path): key_of(one) for one in to_sample(self._state)}
        return {name: names.resolve(name) or names.base_names[0] for name in names.names()} | kept

    def _card(self, name: str, version: str) -> dict[str, Any]:
        base = self._state.names.base_names
        return {
            "id": name,
            "object": "model",
            "created": self._began_s,
            "owned_by": "hermes",
            "root": base[0],
            "parent": None if name in base else base[0],
            "max_model_len": self._state.engine.spec.max_length,
            "metadata": {"weight_version": version},
        }


async def _not_offered(request: Request) -> Response:
    what = f"{request.method} {request.url.path}"
    raise OpenAIRequestError(
        404, f"{what} is not offered by this engine; it has {_OFFERED}", code="unknown_url"
    )
