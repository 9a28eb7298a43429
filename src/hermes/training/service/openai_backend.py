"""A Tinker service in the shape of an engine: all that the engine's OpenAI face needs of one, by the SDK.

The face asks for weights by name, samples them, and gives the samples up again. Here the weights lie with a
service that speaks Tinker only; `policy` is what the trainer published last. A stream comes in one piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hermes.engine.server.policies import LATEST_POLICY
from hermes.engine.types import EngineUserError, SampledSequence, SampleRequest, SampleResult, TopK
from hermes.errors import HermesError, ProviderError
from hermes.training.service.client import ServiceConnection
from hermes.training.service.token_meter import TokenMeter

if TYPE_CHECKING:
    import tinker

_LIVE = 8
"""Sampling clients that stay open."""
_GONE = (404, 410)
_NO_LIMIT = 1 << 20
"""Above this a tokenizer's stated length is a placeholder."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What is known of a model that lies elsewhere."""

    max_length: int
    eos_ids: tuple[int, ...]
    vocab: int


class RemoteEngine:
    """Samples at the service. `sample` may be called once `open` has returned for those weights."""

    def __init__(
        self, connection: ServiceConnection, base_model: str, tokenizer: str, meter: TokenMeter
    ) -> None:
        """`tokenizer`: where transformers finds it."""
        import tinker

        self._url = connection.url
        self._connection = connection
        self._base_model = base_model
        self._meter = meter
        self._service = self._connect()
        self._clients: dict[str | None, tinker.SamplingClient] = {}
        """By tinker:// path; None: the base model."""
        self._opening = threading.Lock()
        self._lost = False
        self.tokenizer_dir = tokenizer
        try:
            self.spec = _read_spec(self._service, base_model, tokenizer)
        except tinker.TinkerError as error:
            raise _error(error, self._url) from error

    def _connect(self) -> tinker.ServiceClient:
        import tinker

        return tinker.ServiceClient(base_url=self._connection.base_url, api_key=self._connection.key)

    def open(self, path: str | None) -> None:
        """Blocks for one round trip, the first time."""
        import tinker

        with self._opening:
            if path in self._clients:
                return
            if self._lost:
                self._lost, self._service = False, self._connect()
            try:
                client = self._service.create_sampling_client(
                    model_path=path, base_model=self._base_model if path is None else None
                )
            except tinker.TinkerError as error:
                raise _error(error, self._url) from error
            self._clients[path] = client
            for oldest in list(self._clients)[:-_LIVE]:
                del self._clients[oldest]

    def sample(self, path: str | None, request: SampleRequest) -> Future[SampleResult]:
        import tinker

        client = self._clients.get(path)
        if client is None:
            raise ProviderError(f"{self._url} was started anew just now", retryable=True)
        self._meter.count(prefill=len(request.prompt))
        answer: Future[SampleResult] = Future()
        asked = client.sample(
            tinker.ModelInput.from_ints(request.prompt.tolist()),
            request.num_samples,
            _params(request),
            include_prompt_logprobs=request.prompt_logprobs,
            topk_sample_logprobs=request.topk_sample_logprobs,
            prompt_logprobs_last_n=request.prompt_logprobs_last_n,
        )

        def hand_over(done: Future[tinker.SampleResponse]) -> None:
            with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
                if done.cancelled():
                    answer.cancel()
                elif (error := done.exception()) is not None:
                    self._forget(path, client, error)
                    answer.set_exception(_error(error, self._url))
                else:
                    self._answer(answer, done.result())

        asked.add_done_callback(hand_over)
        return answer

    def _answer(self, answer: Future[SampleResult], response: tinker.SampleResponse) -> None:
        try:
            sequences = tuple(_sequence(one, self._url) for one in response.sequences)
            self._meter.count(sampled=sum(len(one.tokens) for one in sequences))
        except HermesError as error:
            answer.set_exception(error)
        else:
            scores = response.prompt_logprobs_np
            answer.set_result(SampleResult(sequences, scores, cached_tokens=response.prompt_cache_hit_tokens))

    def _forget(self, path: str | None, client: tinker.SamplingClient, error: BaseException) -> None:
        """A service that was started anew knows neither our session nor its samplers.

        Called in the SDK's own thread, which must not wait: `open` makes the new session.
        """
        if getattr(error, "status_code", None) in _GONE and self._clients.get(path) is client:
            self._clients = {}
            self._lost = True

    def cancel(self, future: Future[SampleResult]) -> None:
        """The service finishes what it has begun; nobody hears of it."""
        future.cancel()

    def close(self) -> None:
        import tinker

        try:
            self._service.close("success").result(timeout=5.0)
        except (tinker.TinkerError, TimeoutError):
            return  # the service frees it by itself


class RemoteNames:
    """What can be asked for: the base model, any checkpoint by its path, and `policy`, which moves."""

    def __init__(self, engine: RemoteEngine, base_model: str) -> None:
        self._engine = engine
        self.base_names = (base_model,)
        self.policy: str | None = None
        """The tinker:// path of what was published last."""

    def names(self) -> list[str]:
        return [*self.base_names, *([LATEST_POLICY] if self.policy else [])]

    def resolve(self, name: str) -> str | None:
        if name in self.base_names:
            return None
        if name == LATEST_POLICY and self.policy:
            return self.policy
        if name.startswith("tinker://"):
            return name
        raise EngineUserError(f"the model '{name}' does not exist", f"there is {', '.join(self.names())}")

    @contextlib.asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[str | None]:
        path = self.resolve(name)
        await asyncio.to_thread(self._engine.open, path)
        yield path


class NoStore:
    """The service's checkpoints are not listed by the face."""

    def checkpoints(self) -> tuple[()]:
        return ()


@dataclass(frozen=True, slots=True)
class RemoteState:
    """What the face's routes are given in place of an engine's own."""

    engine: RemoteEngine
    names: RemoteNames
    store: NoStore = field(default_factory=NoStore)


def _read_spec(service: tinker.ServiceClient, base_model: str, tokenizer: str) -> Spec:
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(tokenizer)
    except (OSError, ValueError) as error:
        raise ProviderError(
            f"the tokenizer of {base_model} cannot be had: {error}", "environments need it too"
        ) from error
    known = {
        one.model_name: one.max_context_length for one in service.get_server_capabilities().supported_models
    }
    longest = known.get(base_model) or min(int(found.model_max_length), _NO_LIMIT)
    eos = () if found.eos_token_id is None else (int(found.eos_token_id),)
    return Spec(longest, eos, len(found))


def _params(request: SampleRequest) -> tinker.SamplingParams:
    import tinker

    asked = request.params
    texts = [one for one in asked.stop or () if isinstance(one, str)]
    ids = [one for one in asked.stop or () if isinstance(one, int)]
    if texts and ids:
        raise EngineUserError("this service takes stop texts or stop token ids, not both in one request")
    stop: Any = None if asked.stop is None else texts or ids
    return tinker.SamplingParams(
        max_tokens=asked.max_tokens,
        seed=asked.seed,
        stop=stop,
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
    )


def _sequence(told: tinker.types.SampledSequence, url: str) -> SampledSequence:
    import numpy as np

    if told.logprobs is None and told.tokens:
        raise ProviderError(f"{url} gives no logprobs of what it samples: nothing can be trained on that")
    top = told.topk_logprobs_np
    return SampledSequence(
        np.array(told.tokens, np.int64),
        np.array(told.logprobs or (), np.float32),
        "stop" if told.stop_reason == "stop" else "length",
        None if top is None else TopK(top.token_ids.astype(np.int64), top.logprobs),
    )


def _error(error: BaseException, url: str) -> HermesError:
    """Final where asking again is no use, else one that clients come back after."""
    import tinker

    text = str(error).strip() or type(error).__name__
    if isinstance(error, tinker.BadRequestError | tinker.UnprocessableEntityError):
        return EngineUserError(f"{url} refused: {text}")
    return ProviderError(f"{url} failed: {text}", retryable=True)
