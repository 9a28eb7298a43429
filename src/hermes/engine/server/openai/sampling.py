"""Asking the engine on behalf of an HTTP client: which weights, how to sample, and for as long as it listens.

A request samples one set of weights from its beginning to its end, whatever its model name means meanwhile;
`version` says which. A client that hangs up takes its samples with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from starlette.requests import Request

from hermes.engine.checkpoints.store import EXTERNAL_WEIGHTS, Checkpoint
from hermes.engine.server.openai.backend import OpenAIBackend, SamplingBackend
from hermes.engine.server.openai.errors import CLIENT_GONE, OpenAIRequestError, wrong
from hermes.engine.server.openai.schema import SamplingFields
from hermes.engine.server.openai.text import StopCondition
from hermes.engine.types import EngineUserError, SampleRequest, SampleResult, SamplingParams

T = TypeVar("T")

_MOST_LISTED = 30
"""Names in a refusal."""


class Weights(NamedTuple):
    policy_id: str | None
    """None: the base model."""
    version: str
    """Names these weights, and never others."""


class SampledToken(NamedTuple):
    """A token of one sample of one of the prompts, as soon as it is drawn."""

    prompt: int
    sample: int
    id: int
    logprob: float


class PromptSamples(NamedTuple):
    """All samples of one of the prompts."""

    prompt: int
    result: SampleResult


Event: TypeAlias = SampledToken | PromptSamples


@contextlib.asynccontextmanager
async def weights_of(state: OpenAIBackend, name: str) -> AsyncIterator[Weights]:
    """What the name means now, in memory for the duration. Problem: nothing has that name."""
    try:
        key = state.names.resolve(name)
    except EngineUserError as error:
        raise no_model(state, name) from error
    async with state.names.use(name) as policy_id:  # nothing can have moved the name in between
        yield Weights(policy_id, key or state.names.base_names[0])


def to_sample(state: OpenAIBackend) -> list[Checkpoint]:
    """The checkpoints that can be asked for by their path."""
    return [one for one in state.store.checkpoints() if one.path.kind != EXTERNAL_WEIGHTS]


def no_model(state: OpenAIBackend, name: str) -> OpenAIRequestError:
    known = [*state.names.names(), *(str(one.path) for one in to_sample(state))]
    more = f" and {len(known) - _MOST_LISTED} more" if len(known) > _MOST_LISTED else ""
    there = f"there is {', '.join(known[:_MOST_LISTED])}{more}"
    return OpenAIRequestError(
        404, f"nothing here is called '{name}' ({there})", code="model_not_found", param="model"
    )


def ending_of(asked: SamplingFields, eos_ids: Sequence[int]) -> StopCondition:
    texts = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    if "" in texts:
        raise wrong("a stop text is empty", "stop")
    return StopCondition(tuple(texts), frozenset([*eos_ids, *(asked.stop_token_ids or ())]))


def params_of(
    asked: SamplingFields, ending: StopCondition, max_tokens: int | None, seed: int | None
) -> SamplingParams:
    stop: tuple[str | int, ...] | None = ending.texts or None
    if asked.stop_token_ids:
        stop = (*ending.texts, *sorted(ending.ids))
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_k=-1 if asked.top_k is None else asked.top_k,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        seed=seed,
        stop=stop,  # type: ignore[arg-type]
    )


def sample_request(
    prompt: Sequence[int], params: SamplingParams, samples: int, topk: int, max_length: int
) -> SampleRequest:
    """Problem: the prompt leaves no room for an answer."""
    if len(prompt) + (params.max_tokens != 0) > max_length:
        raise OpenAIRequestError(
            400,
            f"the prompt has {len(prompt)} tokens, and the context length is {max_length} with the answer",
            code="context_length_exceeded",
        )
    try:
        ids = np.array(prompt, np.int64)
    except OverflowError as error:
        raise wrong("a token id does not fit 64 bits") from error
    return SampleRequest(ids, params, samples, topk_sample_logprobs=topk)


async def sample(
    request: Request, engine: SamplingBackend, policy_id: str | None, asks: Iterable[SampleRequest]
) -> list[SampleResult]:
    """All of them, or the first error; what is under way is given up then.

    Problem: the client has hung up.
    """
    futures = [engine.sample(policy_id, ask) for ask in asks]

    def give_up(_: object = None) -> None:
        for future in futures:
            engine.cancel(future)

    gone = asyncio.ensure_future(_gone(request))
    gone.add_done_callback(give_up)
    try:
        return await asyncio.gather(*map(asyncio.wrap_future, futures))
    except asyncio.CancelledError:
        if gone.done():
            raise OpenAIRequestError(CLIENT_GONE, "the client has hung up") from None
        raise
    finally:
        gone.cancel()
        give_up()


async def sample_live(
    engine: SamplingBackend, policy_id: str | None, asks: Sequence[SampleRequest]
) -> AsyncGenerator[Event]:
    """Tokens as they are drawn, then each prompt's result.

    Where alternatives are asked for there is only the result: the engine gives them at the end.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[SampledToken | tuple[int, Future[SampleResult]]] = asyncio.Queue()

    def start(prompt: int, ask: SampleRequest) -> Future[SampleResult]:
        def tell(index: int, token: int, logprob: float) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, SampledToken(prompt, index, token, logprob))

        def end(future: Future[SampleResult]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(queue.put_nowait, (prompt, future))

        listening = ask if ask.topk_sample_logprobs else replace(ask, on_token=tell)
        future = engine.sample(policy_id, listening)
        future.add_done_callback(end)
        return future

    futures = [start(prompt, ask) for prompt, ask in enumerate(asks)]
    try:
        waiting = len(futures)
        while waiting:
            event = await queue.get()
            if isinstance(event, SampledToken):
                yield event
            else:
                waiting -= 1
                yield PromptSamples(event[0], event[1].result())
    finally:
        for future in futures:
            engine.cancel(future)


async def while_there(request: Request, work: Awaitable[T]) -> T:
    """The work's result. Problem: the client has hung up, and the work was given up."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise OpenAIRequestError(CLIENT_GONE, "the client has hung up")
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
