"""Samples the engine for an HTTP request: which weights, with which parameters, for how long.

A request samples one set of weights from its beginning to its end, even if its model name is moved to other
weights in the meantime; `Weights.version` names them. Samples of a client that disconnects are cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from starlette.requests import Request

from hermes.engine.checkpoints.store import EXTERNAL_WEIGHTS, Checkpoint
from hermes.engine.sampling.stops import MAX_STOP_BYTES, MAX_STOPS
from hermes.engine.server.openai.backend import OpenAIBackend, SamplingBackend
from hermes.engine.server.openai.errors import CLIENT_CLOSED_REQUEST, OpenAIRequestError, invalid_request
from hermes.engine.server.openai.schema import SamplingFields
from hermes.engine.server.openai.text import StopCondition
from hermes.engine.types import EngineUserError, SampleRequest, SampleResult, SamplingParams

T = TypeVar("T")

MAX_SEQUENCES = 4096
"""The limit of one request."""
_MAX_LISTED = 30
"""Model names in an error message."""


class Weights(NamedTuple):
    policy_id: str | None
    """None: the base model."""
    version: str
    """A name that no other weights ever have."""


class SampledToken(NamedTuple):
    """A token of one sample of one prompt, as soon as it is sampled."""

    prompt: int
    sample: int
    id: int
    logprob: float


class PromptSamples(NamedTuple):
    """All samples of one prompt, when they have ended."""

    prompt: int
    result: SampleResult


SamplingEvent: TypeAlias = SampledToken | PromptSamples


@contextlib.asynccontextmanager
async def use_weights(backend: OpenAIBackend, name: str) -> AsyncIterator[Weights]:
    """The weights that the name refers to now, loaded until the context ends.

    OpenAIRequestError: the model does not exist.
    """
    try:
        key = backend.names.resolve(name)
    except EngineUserError as error:
        raise model_not_found(backend, name) from error
    async with backend.names.use(name) as policy_id:  # no await since `resolve`: it is the same key
        yield Weights(policy_id, key or backend.names.base_names[0])


def sampleable_checkpoints(backend: OpenAIBackend) -> list[Checkpoint]:
    """The checkpoints whose paths are model names."""
    return [
        checkpoint for checkpoint in backend.store.checkpoints() if checkpoint.path.kind != EXTERNAL_WEIGHTS
    ]


def model_not_found(backend: OpenAIBackend, name: str) -> OpenAIRequestError:
    paths = [str(checkpoint.path) for checkpoint in sampleable_checkpoints(backend)]
    models = [*backend.names.names(), *paths]
    more = f" and {len(models) - _MAX_LISTED} more" if len(models) > _MAX_LISTED else ""
    available = f"{', '.join(models[:_MAX_LISTED])}{more}"
    return OpenAIRequestError(
        404, f"the model '{name}' does not exist; there is {available}", code="model_not_found", param="model"
    )


def stop_condition(fields: SamplingFields, eos_ids: Sequence[int]) -> StopCondition:
    texts = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    if "" in texts:
        raise invalid_request("a stop string is empty", "stop")
    stops = len(texts) + len(fields.stop_token_ids or ())
    if stops > MAX_STOPS or sum(map(len, texts)) > MAX_STOP_BYTES:
        limits = f"{MAX_STOPS} stops, with {MAX_STOP_BYTES} bytes of text"
        raise invalid_request(f"a request has at most {limits}", "stop")
    return StopCondition(tuple(texts), frozenset([*eos_ids, *(fields.stop_token_ids or ())]))


def sampling_params(
    fields: SamplingFields, condition: StopCondition, max_tokens: int | None, seed: int | None
) -> SamplingParams:
    stop: tuple[str | int, ...] | None = condition.texts or None
    if fields.stop_token_ids:
        stop = (*condition.texts, *sorted(condition.ids))
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_k=-1 if fields.top_k is None else fields.top_k,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        seed=seed,
        stop=stop,  # type: ignore[arg-type]
    )


def check_samples(prompts: int, samples: int) -> None:
    """OpenAIRequestError: one request asks for more sequences than the engine takes from one."""
    if prompts * samples > MAX_SEQUENCES:
        raise invalid_request(f"{prompts} prompts times {samples} samples are more than {MAX_SEQUENCES}", "n")


def sample_request(
    prompt: Sequence[int], params: SamplingParams, samples: int, topk: int, max_length: int
) -> SampleRequest:
    """OpenAIRequestError: the prompt leaves no room for a token."""
    if len(prompt) + (params.max_tokens != 0) > max_length:
        raise OpenAIRequestError(
            400,
            f"the prompt has {len(prompt)} tokens, but the context length is {max_length} tokens for prompt"
            " and completion together",
            code="context_length_exceeded",
        )
    try:
        ids = np.array(prompt, np.int64)
    except OverflowError as error:
        raise invalid_request("a token id does not fit 64 bits") from error
    return SampleRequest(ids, params, samples, topk_sample_logprobs=topk)


async def sample(
    engine: SamplingBackend, policy_id: str | None, requests: Sequence[SampleRequest]
) -> list[SampleResult]:
    """All results, or the first error; what is still running then is cancelled."""
    futures = [engine.sample(policy_id, request) for request in requests]
    try:
        return await asyncio.gather(*map(asyncio.wrap_future, futures))
    finally:
        for future in futures:
            engine.cancel(future)


async def stream_samples(
    engine: SamplingBackend, policy_id: str | None, requests: Sequence[SampleRequest]
) -> AsyncGenerator[SamplingEvent]:
    """Tokens as they are sampled, then the result of each prompt.

    A request for top logprobs yields its result only: the engine has them at the end.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[SampledToken | tuple[int, Future[SampleResult]]] = asyncio.Queue()

    def start(prompt: int, request: SampleRequest) -> Future[SampleResult]:
        def on_token(sample: int, token: int, logprob: float) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, SampledToken(prompt, sample, token, logprob))

        def on_done(future: Future[SampleResult]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the stream
                loop.call_soon_threadsafe(queue.put_nowait, (prompt, future))

        streamed = request if request.topk_sample_logprobs else replace(request, on_token=on_token)
        future = engine.sample(policy_id, streamed)
        future.add_done_callback(on_done)
        return future

    futures = [start(prompt, request) for prompt, request in enumerate(requests)]
    try:
        running = len(futures)
        while running:
            event = await queue.get()
            if isinstance(event, SampledToken):
                yield event
            else:
                running -= 1
                yield PromptSamples(event[0], event[1].result())
    finally:
        for future in futures:
            engine.cancel(future)


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of the work, which is cancelled if the client disconnects.

    OpenAIRequestError: the client disconnected.
    """
    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise OpenAIRequestError(CLIENT_CLOSED_REQUEST, "the client disconnected")
        return task.result()
    finally:
        disconnect.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))  # its weights stay in use until it has ended


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
