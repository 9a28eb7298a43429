"""The sampling backend of the OpenAI proxy: a Tinker service with the interface of an engine.

The engine's OpenAI routes resolve weights by name, sample them, and may cancel a request. Here the requests
are sent to a Tinker service through the SDK; `policy` is what the trainer published last. A stream has a
single chunk.
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
from hermes.models.tokens.tokenizer import open_tokenizer
from hermes.training.service.client import ServiceConnection
from hermes.training.service.token_meter import TokenMeter

if TYPE_CHECKING:
    import tinker

_MAX_CLIENTS = 8
"""Sampling clients that stay open."""
_GONE = (404, 410)
_NO_LIMIT = 1 << 20
"""A tokenizer's model_max_length above this is a placeholder."""


@dataclass(frozen=True, slots=True)
class RemoteModelSpec:
    """The facts that the OpenAI routes need of the model."""

    max_length: int
    eos_ids: tuple[int, ...]
    vocab: int


class RemoteEngine:
    """Samples at the service. `open` must return for the weights before `sample` is called."""

    def __init__(
        self, connection: ServiceConnection, base_model: str, tokenizer: str, meter: TokenMeter
    ) -> None:
        """`tokenizer`: its folder or hub name."""
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
        """Opens a sampling client for the weights; blocks for one round trip the first time."""
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
            for oldest in list(self._clients)[:-_MAX_CLIENTS]:
                del self._clients[oldest]

    def sample(self, path: str | None, request: SampleRequest) -> Future[SampleResult]:
        import tinker

        client = self._clients.get(path)
        if client is None:
            raise ProviderError(f"{self._url} was restarted", retryable=True)
        self._meter.count(prefill=len(request.prompt))
        result: Future[SampleResult] = Future()
        response = client.sample(
            tinker.ModelInput.from_ints(request.prompt.tolist()),
            request.num_samples,
            _params(request),
            include_prompt_logprobs=request.prompt_logprobs,
            topk_sample_logprobs=request.topk_sample_logprobs,
            prompt_logprobs_last_n=request.prompt_logprobs_last_n,
        )

        def set_result(done: Future[tinker.SampleResponse]) -> None:
            with contextlib.suppress(InvalidStateError):  # the request was cancelled
                if done.cancelled():
                    result.cancel()
                elif (error := done.exception()) is not None:
                    self._drop_lost_session(path, client, error)
                    result.set_exception(_error(error, self._url))
                else:
                    self._convert(done.result(), result)

        response.add_done_callback(set_result)
        return result

    def _convert(self, response: tinker.SampleResponse, result: Future[SampleResult]) -> None:
        try:
            sequences = tuple(_sequence(sequence, self._url) for sequence in response.sequences)
            self._meter.count(sampled=sum(len(sequence.tokens) for sequence in sequences))
        except HermesError as error:
            result.set_exception(error)
        else:
            scores = response.prompt_logprobs_np
            result.set_result(SampleResult(sequences, scores, cached_tokens=response.prompt_cache_hit_tokens))

    def _drop_lost_session(
        self, path: str | None, client: tinker.SamplingClient, error: BaseException
    ) -> None:
        """A restarted service has neither the session nor its sampling clients.

        Called in the SDK's thread, which must not block: `open` creates the new session.
        """
        if getattr(error, "status_code", None) in _GONE and self._clients.get(path) is client:
            self._clients = {}
            self._lost = True

    def cancel(self, future: Future[SampleResult]) -> None:
        """Drops the result; the service still finishes the request."""
        future.cancel()

    def close(self) -> None:
        import tinker

        try:
            self._service.close("success").result(timeout=5.0)
        except (tinker.TinkerError, TimeoutError):
            return  # the service frees the session by itself


class RemoteNames:
    """The model names that can be requested: the base model, any checkpoint by its path, and `policy`."""

    def __init__(self, engine: RemoteEngine, base_model: str) -> None:
        self._engine = engine
        self.base_names = (base_model,)
        self.policy: str | None = None
        """The tinker:// path of the weights that were published last."""
        self.served: str | None = None
        """A name of theirs; the base model then has none."""

    def names(self) -> list[str]:
        return [self.served] if self.served else [*self.base_names, *([LATEST_POLICY] if self.policy else [])]

    def resolve(self, name: str) -> str | None:
        if name in self.base_names and not self.served:
            return None
        if name in (LATEST_POLICY, self.served) and self.policy:
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
    """An empty checkpoint list: the proxy does not list the checkpoints of the service."""

    def checkpoints(self) -> tuple[()]:
        return ()


@dataclass(frozen=True, slots=True)
class RemoteState:
    """The parts that the OpenAI routes use instead of the state of an engine server."""

    engine: RemoteEngine
    names: RemoteNames
    store: NoStore = field(default_factory=NoStore)


def _read_spec(service: tinker.ServiceClient, base_model: str, tokenizer: str) -> RemoteModelSpec:
    try:
        loaded = open_tokenizer(tokenizer)
    except (OSError, ValueError) as error:
        raise ProviderError(
            f"the tokenizer of {base_model} cannot be loaded: {error}", "environments need it too"
        ) from error
    models = service.get_server_capabilities().supported_models
    context_lengths = {model.model_name: model.max_context_length for model in models}
    longest = context_lengths.get(base_model) or min(int(loaded.model_max_length), _NO_LIMIT)
    eos = () if loaded.eos_token_id is None else (int(loaded.eos_token_id),)
    return RemoteModelSpec(longest, eos, len(loaded))


def _params(request: SampleRequest) -> tinker.SamplingParams:
    import tinker

    params = request.params
    texts = [stop for stop in params.stop or () if isinstance(stop, str)]
    ids = [stop for stop in params.stop or () if isinstance(stop, int)]
    if texts and ids:
        raise EngineUserError("this service takes stop texts or stop token ids, not both in one request")
    stops: Any = None if params.stop is None else texts or ids
    return tinker.SamplingParams(
        max_tokens=params.max_tokens,
        seed=params.seed,
        stop=stops,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
    )


def _sequence(sampled: tinker.types.SampledSequence, url: str) -> SampledSequence:
    import numpy as np

    if sampled.logprobs is None and sampled.tokens:
        raise ProviderError(f"{url} returns no logprobs of sampled tokens: they cannot be trained on")
    top = sampled.topk_logprobs_np
    return SampledSequence(
        np.array(sampled.tokens, np.int64),
        np.array(sampled.logprobs or (), np.float32),
        "stop" if sampled.stop_reason == "stop" else "length",
        None if top is None else TopK(top.token_ids.astype(np.int64), top.logprobs),
    )


def _error(error: BaseException, url: str) -> HermesError:
    """A final error if a retry cannot succeed, else one that clients retry."""
    import tinker

    text = str(error).strip() or type(error).__name__
    if isinstance(error, tinker.BadRequestError | tinker.UnprocessableEntityError):
        return EngineUserError(f"{url} refused: {text}")
    return ProviderError(f"{url} failed: {text}", retryable=True)
