"""The OpenAI and SGLang endpoints, and the list of models."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from hermes.core import JSONObject
from hermes.engine.server.openai.backend import OpenAIBackend
from hermes.engine.server.openai.chat import read_chat
from hermes.engine.server.openai.completions import read_completion
from hermes.engine.server.openai.errors import OpenAIRequestError, with_openai_errors
from hermes.engine.server.openai.exchange import ServedModel, endpoint
from hermes.engine.server.openai.generate import read_generate
from hermes.engine.server.openai.sampling import model_not_found, sampleable_checkpoints
from hermes.engine.server.openai.schema import ChatCompletions, Completions, Generate
from hermes.engine.server.openai.text import Detokenizer
from hermes.engine.server.policies import policy_key
from hermes.engine.server.responses import as_json
from hermes.serving.openapi import Operation, operation, operations_of

_SUPPORTED = "GET /v1/models, POST /v1/chat/completions, POST /v1/completions and POST /generate"


class OpenAIRoutes:
    def __init__(self, backend: OpenAIBackend, parser: str) -> None:
        """`parser`: the name of the format in which the model calls tools; see hermes.models.parsers."""
        model = ServedModel(backend, Detokenizer(backend.engine, parser))
        self._backend = backend
        self._created_s = int(time.time())
        self._chat = endpoint(model, ChatCompletions, read_chat)
        self._completions = endpoint(model, Completions, read_completion)
        self._generate = endpoint(model, Generate, read_generate)

    @operation("POST", "/v1/chat/completions", ChatCompletions, statuses=(404,))
    async def chat(self, request: Request) -> Response:
        """Answers a conversation, whole or as a stream of events."""
        return await self._chat(request)

    @operation("POST", "/v1/completions", Completions, statuses=(404,))
    async def completions(self, request: Request) -> Response:
        """Continues texts or token ids, whole or as a stream of events."""
        return await self._completions(request)

    @operation("POST", "/generate", Generate, statuses=(404,))
    async def generate(self, request: Request) -> Response:
        """SGLang's request: token ids or texts in, token ids and logprobs out."""
        return await self._generate(request)

    @operation("GET", "/v1/models")
    async def list_models(self, request: Request) -> Response:
        """The names that can be sampled, with their versions."""
        cards = [self._card(name, version) for name, version in self._versions().items()]
        return as_json({"object": "list", "data": cards})

    @operation("GET", "/v1/models/{model:path}", statuses=(404,))
    async def get_model(self, request: Request) -> Response:
        """One of them."""
        name = request.path_params["model"]
        version = self._versions().get(name)
        if version is None:
            raise model_not_found(self._backend, name)
        return as_json(self._card(name, version))

    def _versions(self) -> dict[str, str]:
        """The version of the weights that each name refers to now."""
        names = self._backend.names
        named = {name: names.resolve(name) or names.base_names[0] for name in names.names()}
        checkpoints = sampleable_checkpoints(self._backend)
        return named | {str(checkpoint.path): policy_key(checkpoint) for checkpoint in checkpoints}

    def _card(self, name: str, version: str) -> JSONObject:
        base_names = self._backend.names.base_names
        return {
            "id": name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "hermes",
            "root": base_names[0],
            "parent": None if name in base_names else base_names[0],
            "max_model_len": self._backend.engine.spec.max_length,
            "metadata": {"weight_version": version, **self._arithmetic()},
        }

    def _arithmetic(self) -> dict[str, str]:
        """Device and dtype of the base model, where the backend is an engine of this process."""
        names = ("device", "dtype")
        values = {name: getattr(self._backend.engine, name, None) for name in names}
        return {
            name: str(value).removeprefix("torch.") for name, value in values.items() if value is not None
        }

    @operation("GET", "/v1/{rest:path}", include_in_schema=False)
    @operation("POST", "/v1/{rest:path}", include_in_schema=False)
    @operation("PUT", "/v1/{rest:path}", include_in_schema=False)
    @operation("PATCH", "/v1/{rest:path}", include_in_schema=False)
    @operation("DELETE", "/v1/{rest:path}", include_in_schema=False)
    async def not_supported(self, request: Request) -> Response:
        """Not supported."""
        raise OpenAIRequestError(
            404,
            f"{request.method} {request.url.path} is not supported by this engine; use {_SUPPORTED}",
            code="unknown_url",
        )


OPERATIONS = operations_of(OpenAIRoutes)


def openai_routes(backend: OpenAIBackend, parser: str) -> list[Operation]:
    """`parser`: see `OpenAIRoutes`."""
    routes = OpenAIRoutes(backend, parser)
    return [
        replace(operation, handler=with_openai_errors(partial(operation.handler, routes)))
        for operation in OPERATIONS
    ]
