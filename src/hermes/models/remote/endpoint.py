"""One model on one server: what every call to it shares.

`run` is the whole discipline of a call: its place in the endpoint's throttle, its retries, its deadline.
`post` and `stream` are one request each and raise only typed errors. They use the plain verbs of the `openai`
client and read the body themselves: the record keeps the server's own JSON, with fields that the package
does not know, and to build the package's objects as well would double what a request costs.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

from hermes.core import JSONObject
from hermes.errors import AuthError, ProviderError
from hermes.models.fields import as_objects, as_text, finite
from hermes.models.remote import failures
from hermes.models.remote.client import Client
from hermes.models.remote.retry import RetryPolicy, with_retries
from hermes.models.remote.sse import EventDecoder
from hermes.models.remote.throttle import Throttle, throttle_for

if TYPE_CHECKING:
    import httpx2

    from hermes.config.providers import ModelTarget

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
        self.place = failures.EndpointRef(target.base_url, target.name, target.key_env)
        self._rng = rng or random.Random()
        self._client = Client(target)

    @property
    def throttle(self) -> Throttle:
        return throttle_for(self.target.base_url, self.target.settings.max_concurrency)

    async def run(self, attempt: Callable[[], Awaitable[T]], timeout_s: float | None) -> tuple[T, int]:
        """The answer of the first attempt that succeeds, and how many it took.

        `timeout_s` bounds everything, waiting for a turn included. The provider's own time limit also
        bounds all attempts together, but stands still while one waits for its turn: a long queue is no
        fault of the server.
        """
        self._client.connected()  # before the clock starts: the first time, the package is imported
        settings = self.target.settings
        throttle = self.throttle
        waiting = _Waiting(settings.timeout_s, timeout_s)

        async def throttled() -> T:
            if throttle.gate_left_s > max(0.0, waiting.left_s()):
                raise failures.gate_closed(self.place, throttle.gate_left_s)
            waiting.pause(scope)
            async with throttle.slot() as slot:
                waiting.begin(scope)
                try:
                    answer = await attempt()
                except ProviderError as error:
                    waiting.last = error
                    if error.status == 429 or error.retry_after_s is not None:
                        slot.refused(error.retry_after_s)
                    await self._explain(error)
                    raise
                slot.succeeded()
                return answer

        try:
            async with asyncio.timeout_at(waiting.ends_s) as scope:
                return await with_retries(throttled, RetryPolicy(settings.max_retries), scope, self._rng)
        except TimeoutError:
            if not waiting.begun:
                raise failures.no_turn(self.place, throttle.limit) from None
            raise failures.timed_out(self.place, waiting.limit_s, waiting.last) from waiting.last

    async def post(self, path: str, body: JSONObject) -> JSONObject:
        """One request, one JSON object."""
        import httpx2

        client, options = self._client.connected()
        with self._typed_errors():
            response = await client.post(
                path, cast_to=httpx2.Response, content=_encoded(body), options=options
            )
        return self._decoded(response.content, _content_type(response))

    async def stream(
        self, path: str, body: JSONObject, feed: Callable[[JSONObject], None]
    ) -> JSONObject | None:
        """One streamed request; `feed` gets each chunk until the server ends the stream.

        Returns the whole response if the server did not stream it, as some do not, else None.
        """
        import openai

        client, options = self._client.connected()
        chunks = openai.AsyncStream[object]
        with self._typed_errors():
            async with await client.post(
                path, cast_to=object, content=_encoded(body), options=options, stream=True, stream_cls=chunks
            ) as stream:
                content_type = _content_type(stream.response)
                if content_type.startswith(("application/json", "text/html")):
                    return self._decoded(await stream.response.aread(), content_type)
                async for data in _events(stream.response):
                    self._feed(data, feed)
        return None

    async def model_names(self) -> list[str]:
        """What the server says it serves; a typed error if it does not say."""
        import httpx2

        client, options = self._client.connected()
        with self._typed_errors():
            response = await client.get("/models", cast_to=httpx2.Response, options=options)
        data = self._decoded(response.content, _content_type(response))
        return [name for entry in as_objects(data.get("data")) if (name := as_text(entry.get("id")))]

    def first_choice(self, raw: JSONObject) -> JSONObject:
        """The answer in a response; an error where the server put a failure, or nothing, in its place."""
        choice = next(iter(as_objects(raw.get("choices"))), None)
        if choice is None:
            raise ProviderError(f"{self.place.url} answered without a choice.", retryable=True)
        if choice.get("finish_reason") == "error":
            raise failures.from_report(choice.get("error") or "the model failed", self.place)
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
            raise failures.from_openai(error, self.place) from error
        except (httpx2.RequestError, ssl.SSLError) as error:  # in the middle of a stream
            raise failures.from_network(error, self.place) from error

    def _feed(self, data: bytes, feed: Callable[[JSONObject], None]) -> None:
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise failures.garbled(self.place, str(error).encode(), "") from error
        if not isinstance(chunk, dict):
            return
        if chunk.get("error") and not chunk.get("choices"):
            raise failures.from_report(chunk["error"], self.place)
        feed(chunk)

    def _decoded(self, body: bytes, content_type: str) -> JSONObject:
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise failures.garbled(self.place, body, content_type)
        if data.get("error") and not data.get("choices"):
            raise failures.from_report(data["error"], self.place)
        return finite(data)

    async def _explain(self, error: ProviderError) -> None:
        """Adds the models that there are to an error that may say there is no such model."""
        if not failures.concerns_model(error):
            return
        names: list[str] = []
        with suppress(ProviderError, TimeoutError):
            async with asyncio.timeout(_LISTING_TIMEOUT_S):
                names = await self.model_names()
        if names and self.target.model not in names:
            near = get_close_matches(self.target.model, names, n=3, cutoff=0.5) or names[:_MODELS_SHOWN]
            error.hint = f"The server has no model '{self.target.model}'; it has {', '.join(near)}."
        else:
            error.hint = "Check the model's name and base_url, which usually ends in /v1."


class _Waiting:
    """How long one call has waited, and for how long it may."""

    def __init__(self, own_limit_s: float, timeout_s: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.limit_s = own_limit_s if timeout_s is None else min(own_limit_s, timeout_s)
        self.ends_s = None if timeout_s is None else self._loop.time() + timeout_s
        """When the caller's time is up."""
        self.begun = False
        self.last: ProviderError | None = None
        """Why the latest attempt failed."""
        self._own_ends_s: float | None = None
        """When the provider's own limit is up, while it runs."""
        self._own_left_s = self.limit_s

    def left_s(self) -> float:
        now_s = self._loop.time()
        own_s = self._own_left_s if self._own_ends_s is None else self._own_ends_s - now_s
        return own_s if self.ends_s is None else min(own_s, self.ends_s - now_s)

    def pause(self, scope: asyncio.Timeout) -> None:
        """In the queue only the caller's time goes on."""
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
    """The data of each event, up to the one that says there are no more."""
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


def _encoded(body: JSONObject) -> bytes:
    """ASCII, since a model can write lone surrogates, which have no UTF-8 form."""
    return json.dumps(body, separators=(",", ":")).encode("ascii")
