"""One model on one server.

`run` applies the endpoint's throttle, the retries and the deadline to a call. `post` and `stream` send one
request each and raise only typed errors. They use the untyped methods of the `openai` client and read the
body themselves: the record contains the server's own JSON, including fields that the package does not define,
and building the package's objects as well would double the CPU time of a request.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from hermes.core import JSONObject, Sampling, Usage
from hermes.core.names import nearest
from hermes.errors import AuthError, ProviderError
from hermes.models.budget import Budget, Spent
from hermes.models.fields import as_objects, as_text, finite
from hermes.models.remote import failures, wire
from hermes.models.remote.client import Client
from hermes.models.remote.retry import OnRetry, RetryPolicy, with_retries
from hermes.models.remote.throttle import Throttle, throttle_for
from hermes.models.usage import cost_usd, read_usage, reported_cost_usd

if TYPE_CHECKING:
    import httpx2

    from hermes.config.providers import ModelTarget
    from hermes.config.settings import PriceSettings


class RemoteModel:
    def __init__(
        self, target: ModelTarget, price: PriceSettings | None = None, budget: Budget | None = None
    ) -> None:
        self._target = target
        self.price = price
        self._budget = budget or Budget()
        self._endpoint = Endpoint(target)
        self._dialect = wire.dialect_for(target.base_url, send_reasoning=target.settings.send_reasoning)

    @property
    def name(self) -> str:
        """As the user names it: provider/model."""
        return self._target.name

    async def close(self) -> None:
        await self._endpoint.close()

    def _sampling(self, sampling: Sampling) -> Sampling:
        """With the provider's configured extra fields, so that the record contains them too."""
        return wire.with_extra_body(sampling, self._target.settings.extra_body)

    async def _call(
        self,
        attempt: Callable[[Spent], Awaitable[T]],
        prompt_tokens: int,
        sampling: Sampling,
        timeout_s: float | None,
        on_retry: OnRetry | None = None,
    ) -> tuple[T, int]:
        """The first successful result, and the number of attempts; each attempt counts towards the budget."""

        async def attempt_within_budget() -> T:
            with self._budget.reserve(self.name, self.price, prompt_tokens, sampling.max_tokens) as spent:
                return await attempt(spent)

        return await self._endpoint.run(attempt_within_budget, timeout_s, on_retry)

    def _bill(self, raw: JSONObject) -> tuple[Usage, float | None]:
        """Usage and cost of a response; a cost that the server reports takes precedence over our prices."""
        usage, reported = read_usage(raw), reported_cost_usd(raw)
        if reported is not None or usage is None:
            return usage or Usage(), reported
        return usage, cost_usd(usage, self.price)


T = TypeVar("T")
_LISTING_TIMEOUT_S = 5.0
_MODELS_SHOWN = 8
_END_OF_STREAM = b"[DONE]"


class Endpoint:
    def __init__(self, target: ModelTarget, rng: random.Random | None = None) -> None:
        if target.api_key and not (target.api_key.isascii() and target.api_key.isprintable()):
            raise AuthError(
                f"The API key in {target.key_env} contains characters that no key has.",
                f"Copy it again: hermes config set {target.key_env} …",
            )
        self.target = target
        self.ref = failures.EndpointRef(target.base_url, target.name, target.key_env, target.api_key)
        self._rng = rng or random.Random()
        self._client = Client(target)

    @property
    def throttle(self) -> Throttle:
        return throttle_for(self.target.base_url, self.target.settings.max_concurrency)

    async def run(
        self,
        attempt: Callable[[], Awaitable[T]],
        timeout_s: float | None,
        on_retry: OnRetry | None = None,
    ) -> tuple[T, int]:
        """The result of the first attempt that succeeds, and the number of attempts.

        `timeout_s` bounds everything, time in the queue included. The provider's own time limit bounds all
        attempts together, but not the time in the queue, which is not the server's fault.
        """
        self._client.get()  # before the clock starts: the first call imports the package
        settings = self.target.settings
        throttle = self.throttle
        deadline = _Deadline(settings.timeout_s, timeout_s)

        async def throttled() -> T:
            if throttle.gate_left_s > max(0.0, deadline.left_s()):
                raise failures.gate_error(self.ref, throttle.gate_left_s)
            deadline.pause(scope)
            async with throttle.slot() as slot:
                deadline.begin(scope)
                try:
                    result = await attempt()
                except ProviderError as error:
                    deadline.last = error
                    if error.status == 429 or error.retry_after_s is not None:
                        slot.refused(error.retry_after_s)
                    await self._suggest_models(error)
                    raise
                slot.succeeded()
                return result

        try:
            async with asyncio.timeout_at(deadline.ends_s) as scope:
                return await with_retries(
                    throttled, RetryPolicy(settings.max_retries), scope, self._rng, on_retry
                )
        except TimeoutError:
            if not deadline.begun:
                raise failures.queue_timeout(self.ref, throttle.limit) from None
            raise failures.timeout_error(self.ref, deadline.limit_s, deadline.last) from deadline.last

    async def post(self, path: str, body: JSONObject) -> JSONObject:
        """One request, one JSON object."""
        import httpx2

        client, options = self._client.get()
        with self._typed_errors():
            response = await client.post(
                path, cast_to=httpx2.Response, content=_encode(body), options=options
            )
        return self._decode(response.content, _content_type(response))

    async def stream(
        self, path: str, body: JSONObject, feed: Callable[[JSONObject], None]
    ) -> JSONObject | None:
        """One streamed request; `feed` is called with each chunk until the stream ends.

        Returns the whole response if the server does not stream, else None.
        """
        import openai

        client, options = self._client.get()
        chunks = openai.AsyncStream[object]
        with self._typed_errors():
            async with await client.post(
                path, cast_to=object, content=_encode(body), options=options, stream=True, stream_cls=chunks
            ) as stream:
                content_type = _content_type(stream.response)
                if content_type.startswith(("application/json", "text/html")):
                    return self._decode(await stream.response.aread(), content_type)
                async for data in _events(stream.response):
                    self._feed(data, feed)
        return None

    async def model_names(self) -> list[str]:
        """The models that the server lists. ProviderError if it does not."""
        import httpx2

        client, options = self._client.get()
        with self._typed_errors():
            response = await client.get("/models", cast_to=httpx2.Response, options=options)
        data = self._decode(response.content, _content_type(response))
        return [name for entry in as_objects(data.get("data")) if (name := as_text(entry.get("id")))]

    def first_choice(self, raw: JSONObject) -> JSONObject:
        """The first choice of a response. ProviderError if it has none, or one that is an error."""
        choice = next(iter(as_objects(raw.get("choices"))), None)
        if choice is None:
            raise ProviderError(f"{self.ref.url} answered without a choice.", retryable=True)
        if choice.get("finish_reason") == "error":
            raise failures.from_report(choice.get("error") or "the model failed", self.ref)
        return choice

    async def close(self) -> None:
        await self._client.close()

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        import httpx2
        import openai

        try:
            yield
        except openai.OpenAIError as error:
            raise failures.from_openai(error, self.ref) from error
        except (httpx2.RequestError, ssl.SSLError) as error:  # in the middle of a stream
            raise failures.from_network(error, self.ref) from error

    def _feed(self, data: bytes, feed: Callable[[JSONObject], None]) -> None:
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise failures.invalid_body(self.ref, str(error).encode(), "") from error
        if not isinstance(chunk, dict):
            return
        if chunk.get("error") and not chunk.get("choices"):
            raise failures.from_report(chunk["error"], self.ref)
        feed(chunk)

    def _decode(self, body: bytes, content_type: str) -> JSONObject:
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise failures.invalid_body(self.ref, body, content_type)
        if data.get("error") and not data.get("choices"):
            raise failures.from_report(data["error"], self.ref)
        return finite(data)

    async def _suggest_models(self, error: ProviderError) -> None:
        """Sets the hint of an error that may mean that there is no such model: the models there are."""
        if not failures.concerns_model(error):
            return
        names: list[str] = []
        with suppress(ProviderError, TimeoutError):
            async with asyncio.timeout(_LISTING_TIMEOUT_S):
                names = await self.model_names()
        if names and self.target.model not in names:
            similar = nearest(self.target.model, names, cutoff=0.5) or names[:_MODELS_SHOWN]
            error.hint = f"The server has no model '{self.target.model}'; it has {', '.join(similar)}."
        else:
            error.hint = "Check the model's name and base_url, which usually ends in /v1."


class _Deadline:
    """The time limits of one call: the caller's, and the provider's own, which pauses in the queue."""

    def __init__(self, own_limit_s: float, timeout_s: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.limit_s = own_limit_s if timeout_s is None else min(own_limit_s, timeout_s)
        self.ends_s = None if timeout_s is None else self._loop.time() + timeout_s
        """When the caller's time limit ends."""
        self.begun = False
        self.last: ProviderError | None = None
        """The error of the latest attempt."""
        self._own_ends_s: float | None = None
        """When the provider's own limit ends; None while it is paused."""
        self._own_left_s = self.limit_s

    def left_s(self) -> float:
        now_s = self._loop.time()
        own_s = self._own_left_s if self._own_ends_s is None else self._own_ends_s - now_s
        return own_s if self.ends_s is None else min(own_s, self.ends_s - now_s)

    def pause(self, scope: asyncio.Timeout) -> None:
        """In the queue only the caller's limit runs."""
        if self._own_ends_s is not None:
            self._own_left_s = self._own_ends_s - self._loop.time()
            self._own_ends_s = None
            scope.reschedule(self.ends_s)

    def begin(self, scope: asyncio.Timeout) -> None:
        """An attempt starts: the provider's own limit runs."""
        self.begun = True
        self._own_ends_s = self._loop.time() + self._own_left_s
        scope.reschedule(min(self._own_ends_s, self.ends_s or float("inf")))


async def _events(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The data of each event, up to the one that ends the stream."""
    decoder = EventDecoder()
    async for received in response.aiter_bytes():
        for data in decoder.feed(received):
            if data.strip() == _END_OF_STREAM:
                return
            yield data
    for data in decoder.end():
        if data.strip() != _END_OF_STREAM:
            yield data


def _content_type(response: httpx2.Response) -> str:
    content_type: str = response.headers.get("content-type", "")
    return content_type


def _encode(body: JSONObject) -> bytes:
    """ASCII, since a model can write lone surrogates, which have no UTF-8 form."""
    return json.dumps(body, separators=(",", ":")).encode("ascii")


class EventDecoder:
    """One stream. Lines end with LF or CRLF; other separators may occur inside a JSON text."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> Iterator[bytes]:
        """The data of every event that is now complete."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data.clear()

    def end(self) -> Iterator[bytes]:
        """The last event, where the server did not close it with an empty line."""
        yield from self.feed(b"\n\n")
