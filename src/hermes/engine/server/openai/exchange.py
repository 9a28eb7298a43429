"""From a request to its response, whole or streamed: the part that all sampling endpoints share.

An endpoint reads a body into an `Exchange`; `respond` samples its prompts and sends the JSON that the
exchange makes of the results. A stream is sent as server-sent events. Its status is sent with the first
event, so a request that fails before it has sampled anything gets an error status. A later failure is an
event of its own, and the stream ends without `[DONE]`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from hermes.core import JSONObject
from hermes.engine.server.app import Handler
from hermes.engine.server.openai.backend import OpenAIBackend
from hermes.engine.server.openai.errors import OpenAIRequestError, openai_error
from hermes.engine.server.openai.sampling import (
    SampledToken,
    sample,
    stream_samples,
    use_weights,
    while_connected,
)
from hermes.engine.server.openai.schema import Body, Completion, read_request
from hermes.engine.server.openai.text import Detokenizer, StopCondition
from hermes.engine.server.responses import as_json
from hermes.engine.types import SampledSequence, SampleRequest, SampleResult
from hermes.errors import HermesError


class ServedModel(NamedTuple):
    """The parts with which an endpoint reads a body."""

    backend: OpenAIBackend
    detokenizer: Detokenizer


class ChoiceStream(ABC):
    """One sample of a streamed response."""

    @abstractmethod
    def push(self, token: int, logprob: float) -> JSONObject | None:
        """The choice to send for a sampled token; None: it adds nothing that can be sent yet."""

    @abstractmethod
    def end(self, sequence: SampledSequence, result: SampleResult) -> JSONObject:
        """The last choice: what was not sent before, and the finish reason."""


@dataclass(frozen=True, kw_only=True)
class Exchange(ABC):
    """One request that was read, and how its response is written."""

    model: str
    stream: bool
    requests: Sequence[SampleRequest]
    """One for each prompt, all with the same number of samples."""
    detokenizer: Detokenizer
    stop: StopCondition

    @abstractmethod
    def response(self, results: Sequence[SampleResult], version: str) -> Any:
        """The JSON of a response that is not streamed."""

    @abstractmethod
    def choice_stream(self, prompt: int, sample: int, version: str) -> ChoiceStream: ...

    @abstractmethod
    def chunk(self, choice: JSONObject, version: str) -> JSONObject:
        """The event that sends a choice."""

    def opening(self, version: str) -> Iterable[JSONObject]:
        """Events before the first choice."""
        return ()

    def closing(self, results: Sequence[SampleResult], version: str) -> Iterable[JSONObject]:
        """Events after the last choice."""
        return ()

    def index(self, prompt: int, sample: int) -> int:
        return prompt * self.requests[0].num_samples + sample


def endpoint(
    model: ServedModel, schema: type[Body], read: Callable[[ServedModel, Body], Exchange]
) -> Handler:
    """The handler of an endpoint: `read` makes an exchange from a validated body."""

    async def handle(request: Request) -> Response:
        exchange = read(model, await read_request(request, schema))
        return await respond(request, model.backend, exchange)

    return handle


async def respond(request: Request, backend: OpenAIBackend, exchange: Exchange) -> Response:
    if exchange.stream:
        chunks = _chunks(backend, exchange)
        first = await while_connected(request, anext(chunks))
        return _EventStreamResponse(_events(first, chunks))
    async with use_weights(backend, exchange.model) as weights:
        results = await while_connected(request, sample(backend.engine, weights.policy_id, exchange.requests))
    return as_json(exchange.response(results, weights.version))


async def _chunks(backend: OpenAIBackend, exchange: Exchange) -> AsyncGenerator[JSONObject]:
    results: list[SampleResult] = []
    async with use_weights(backend, exchange.model) as (policy_id, version):
        streams = [
            [exchange.choice_stream(prompt, sample, version) for sample in range(request.num_samples)]
            for prompt, request in enumerate(exchange.requests)
        ]
        opening = exchange.opening(version)
        async with aclosing(stream_samples(backend.engine, policy_id, exchange.requests)) as events:
            async for event in events:
                for chunk in opening:
                    yield chunk
                opening = ()
                if isinstance(event, SampledToken):
                    choice = streams[event.prompt][event.sample].push(event.id, event.logprob)
                    if choice is not None:
                        yield exchange.chunk(choice, version)
                    continue
                results.append(event.result)
                for stream, sequence in zip(streams[event.prompt], event.result.sequences, strict=True):
                    yield exchange.chunk(stream.end(sequence, event.result), version)
        for chunk in exchange.closing(results, version):
            yield chunk


class _EventStreamResponse(StreamingResponse):
    """Closes its generator, also when the client disconnects between two events."""

    def __init__(self, content: AsyncGenerator[str]) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._content = content

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._content):
            await super().stream_response(send)


async def _events(first: JSONObject, rest: AsyncGenerator[JSONObject]) -> AsyncGenerator[str]:
    async with aclosing(rest):
        yield _event(first)
        try:
            async for chunk in rest:
                yield _event(chunk)
        except OpenAIRequestError as error:
            yield _event(error.as_json())
        except HermesError as error:
            yield _event(openai_error(error).as_json())
        else:
            yield "data: [DONE]\n\n"


def _event(chunk: JSONObject) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


@dataclass(frozen=True, kw_only=True)
class CompletionExchange(Exchange):
    """The parts that /v1/completions and /v1/chat/completions share: envelope, usage, logprobs, ids."""

    object_name: ClassVar[str]
    chunk_name: ClassVar[str]

    body: Completion
    id: str
    created_s: int

    @property
    @abstractmethod
    def with_logprobs(self) -> bool: ...

    @abstractmethod
    def choice(self, prompt: int, sample: int, sequence: SampledSequence) -> JSONObject: ...

    def response(self, results: Sequence[SampleResult], version: str) -> JSONObject:
        choices = [
            self.choice(prompt, sample, sequence)
            for prompt, result in enumerate(results)
            for sample, sequence in enumerate(result.sequences)
        ]
        return self.envelope(self.object_name, choices, version) | {"usage": usage(self.requests, results)}

    def chunk(self, choice: JSONObject, version: str) -> JSONObject:
        return self.envelope(self.chunk_name, [choice], version)

    def closing(self, results: Sequence[SampleResult], version: str) -> Iterable[JSONObject]:
        if self.body.stream_options and self.body.stream_options.include_usage:
            yield self.envelope(self.chunk_name, [], version) | {"usage": usage(self.requests, results)}

    def envelope(self, name: str, choices: Sequence[JSONObject], version: str) -> JSONObject:
        return {
            "id": self.id,
            "object": name,
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
            "metadata": {"weight_version": version},
        }

    def prompt_token_ids(self, prompt: int) -> JSONObject:
        """The field, if the request has `return_token_ids`."""
        ids = self.requests[prompt].prompt
        return {"prompt_token_ids": ids.tolist()} if self.body.return_token_ids else {}

    def token_ids(self, tokens: Sequence[int]) -> JSONObject:
        """The field, if the request has `return_token_ids`."""
        return {"token_ids": list(tokens)} if self.body.return_token_ids else {}


def usage(requests: Sequence[SampleRequest], results: Sequence[SampleResult]) -> JSONObject:
    """As OpenAI counts: a prompt once, however many samples it has."""
    prompt_tokens = sum(len(request.prompt) for request in requests)
    sampled_tokens = sum(len(sequence.tokens) for result in results for sequence in result.sequences)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": sampled_tokens,
        "total_tokens": prompt_tokens + sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(result.cached_tokens for result in results)},
    }
