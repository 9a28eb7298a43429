"""One model on one server: the openai client and what every call through it shares.

`run` is the whole discipline of a call: its place in the endpoint's throttle, its retries, its deadline.
`post` and `stream` are one request each and raise only typed errors. The openai package is imported at
the first request. Redirects are not followed, so that a key goes nowhere but to the configured address.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from hermes.core import JSONObject
from hermes.errors import AuthError, ProviderError
from hermes.models import failures
from hermes.models.fields import as_objects, as_text, finite
from hermes.models.retry import RetryPolicy, with_retries
from hermes.models.throttle import Throttle, throttle_for

if TYPE_CHECKING:
    import ssl

    from openai import AsyncOpenAI, Omit

    from hermes.config.providers import ModelTarget

T = TypeVar("T")
_CONNECT_TIMEOUT_S = 10.0
_LISTING_TIMEOUT_S = 5.0
_MODELS_SHOWN = 8


class Endpoint:
    def __init__(self, target: ModelTarget, rng: random.Random | None = None) -> None:
        if target.api_key and not (target.api_key.isascii() and target.api_key.isprintable()):
            raise AuthError(
                f"The API key in {target.key_env} contains characters that no key has.",
                f"Copy it again: hermes config set {target.key_env} …",
            )
        self.target = target
        self.place = failures.Place(target.base_url, target.name, target.key_env)
        self._rng = rng or random.Random()
        self._client: AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def throttle(self) -> Throttle:
        return throttle_for(self.target.base_url, self.target.settings.max_concurrency)

    async def run(self, attempt: Callable[[], Awaitable[T]], timeout_s: float | None) -> tuple[T, int]:
        """The answer of the first attempt that succeeds, and how many it took.

        `timeout_s` bounds everything, waiting for a turn included. The provider's own time limit also
        bounds all attempts together, but stands still while one waits for its turn: a long queue is no
        fault of the server.
        """
        self._openai()  # before the clock starts: importing the package takes most of a second
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
        import openai

        try:
            response = await self._openai().post(
                path, cast_to=httpx2.Response, content=_encoded(body), options={"headers": self._headers()}
            )
        except openai.OpenAIError as error:
            raise await self._explained(failures.from_openai(error, self.place)) from error
        return self._decoded(response.content, response.headers.get("content-type", ""))

    async def stream(
        self, path: str, body: JSONObject, feed: Callable[[JSONObject], None]
    ) -> JSONObject | None:
        """One streamed request; `feed` gets each chunk until the server ends the stream.

        Returns the whole response if the server did not stream it, as some do not, else None.
        """
        import httpx2
        import openai

        try:
            async with await self._openai().post(
                path,
                cast_to=object,
                content=_encoded(body),
                options={"headers": self._headers()},
                stream=True,
                stream_cls=openai.AsyncStream[object],
            ) as chunks:
                content_type = chunks.response.headers.get("content-type", "")
                if content_type.startswith(("application/json", "text/html")):
                    return self._decoded(await chunks.response.aread(), content_type)
                async for chunk in chunks:
                    if isinstance(chunk, dict):
                        feed(chunk)
        except openai.OpenAIError as error:
            raise await self._explained(failures.from_openai(error, self.place)) from error
        except httpx2.RequestError as error:
            raise failures.from_network(error, self.place) from error
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise failures.garbled(self.place, str(error).encode(), "") from error
        return None

    async def model_names(self) -> list[str]:
        """What the server says it serves; a typed error if it does not say."""
        import httpx2
        import openai

        try:
            response = await self._openai().get(
                "/models", cast_to=httpx2.Response, options={"headers": self._headers()}
            )
        except openai.OpenAIError as error:
            raise failures.from_openai(error, self.place) from error
        data = self._decoded(response.content, response.headers.get("content-type", ""))
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
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.close()
        self._client = None

    def _openai(self) -> AsyncOpenAI:
        """The client of the running loop: connections cannot move from one loop to another."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client, self._loop = self._connect(), loop
        return self._client

    def _connect(self) -> AsyncOpenAI:
        import httpx2
        import openai

        loopback = _is_loopback(self.target.base_url)
        http = openai.DefaultAsyncHttpx2Client(
            timeout=httpx2.Timeout(None, connect=_CONNECT_TIMEOUT_S),
            limits=httpx2.Limits(max_keepalive_connections=self.target.settings.max_concurrency),
            follow_redirects=False,
            # Plain HTTP to this machine has no certificates, and reading the authorities takes its time.
            verify=_trust() if not loopback or self.target.base_url.startswith("https:") else False,
            # A proxy from the environment cannot reach this machine's own servers.
            trust_env=not loopback,
        )
        return openai.AsyncOpenAI(
            base_url=self.target.base_url,
            api_key=self.target.api_key or "none",
            max_retries=0,
            http_client=http,
        )

    def _headers(self) -> dict[str, str | Omit]:
        """The key of this target alone; the client would add what the environment holds for OpenAI."""
        from openai import Omit

        headers: dict[str, str | Omit] = {
            "Authorization": f"Bearer {self.target.api_key}" if self.target.api_key else Omit()
        }
        if urlsplit(self.target.base_url).hostname != "api.openai.com":
            headers |= {"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()}
        return headers

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

    async def _explained(self, error: ProviderError) -> ProviderError:
        """Adds the models that there are to an error that may say there is no such model."""
        if not failures.concerns_model(error):
            return error
        names: list[str] = []
        with suppress(ProviderError, TimeoutError):
            async with asyncio.timeout(_LISTING_TIMEOUT_S):
                names = await self.model_names()
        if names and self.target.model not in names:
            near = get_close_matches(self.target.model, names, n=3, cutoff=0.5) or names[:_MODELS_SHOWN]
            error.hint = f"The server has no model '{self.target.model}'; it has {', '.join(near)}."
        else:
            error.hint = "Check the model's name and base_url, which usually ends in /v1."
        return error


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


@cache
def _trust() -> ssl.SSLContext:
    """The authorities to trust; reading them takes tens of milliseconds, so clients share them."""
    import httpx2

    return httpx2.create_ssl_context()


def _encoded(body: JSONObject) -> bytes:
    """ASCII, since a model can write lone surrogates, which have no UTF-8 form."""
    return json.dumps(body, separators=(",", ":")).encode("ascii")


def _is_loopback(base_url: str) -> bool:
    host = urlsplit(base_url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
