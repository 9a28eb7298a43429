"""The way to the weights: the public `tinker` SDK, against a local engine or the managed service.

Every call waits for its result, and every failure of the SDK becomes an `EngineError` that says where and
what to do. `lost` on it means that the engine no longer knows the adapter (it restarted, or gave the client
up): the run goes on from its last checkpoint with a new one. Nothing but public calls of the SDK is used.
"""

from __future__ import annotations

import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hermes.config.settings import MANAGED
from hermes.errors import HermesError, MissingDependencyError, UsageError
from hermes.training.data.correction import LossSpec
from hermes.training.data.datums import token_logprobs, weighted
from hermes.training.service.token_meter import TokenMeter

if TYPE_CHECKING:
    import tinker

URL_VARIABLE, KEY_VARIABLE, TOKEN_VARIABLE = "TINKER_BASE_URL", "TINKER_API_KEY", "HERMES_ENGINE_TOKEN"
LOCAL_URL = "http://127.0.0.1:8001"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_KNOCK_S = 5.0
_GONE = (404, 410)


class EngineError(HermesError):
    """The engine refused, failed or is not there."""

    def __init__(self, message: str, hint: str = "", *, lost: bool = False) -> None:
        super().__init__(message, hint)
        self.lost = lost
        """The adapter is gone; its checkpoints are not."""


@dataclass(frozen=True, slots=True)
class ServiceConnection:
    url: str
    """Or MANAGED."""
    key: str = field(repr=False)

    @property
    def base_url(self) -> str | None:
        """For the SDK; None: wherever it goes of itself."""
        return None if self.url == MANAGED else self.url

    @property
    def local(self) -> bool:
        return urlsplit(self.url).hostname in _LOOPBACK


def connection(url: str | None, environ: Mapping[str, str]) -> ServiceConnection:
    """Where to train: the address given, else TINKER_BASE_URL, else the engine of this machine."""
    chosen = (url or environ.get(URL_VARIABLE) or LOCAL_URL).rstrip("/")
    parts = urlsplit(chosen)
    if chosen != MANAGED and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise UsageError(f"'{chosen}' is not an address", f"write it like {LOCAL_URL}, or: {MANAGED}")
    token = environ.get(TOKEN_VARIABLE)
    key = environ.get(KEY_VARIABLE) or (f"tml-{token}" if token else "")
    found = ServiceConnection(chosen, key or "tml-local")
    if not key and not found.local:
        raise UsageError(
            f"there is no key for {chosen}", f"set {KEY_VARIABLE}: hermes config set {KEY_VARIABLE} …"
        )
    return found


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """The adapter that is to be trained."""

    base_model: str
    rank: int = 32
    seed: int = 0
    policy: str | None = None
    """A name for the newest sampler weights, beside the engine's own `policy`."""
    start: str | None = None
    """Weights to begin with: a tinker:// path or an adapter's folder; None: the base model's."""


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """What a pass over the data gave."""

    logprobs: list[list[float]]
    """By sequence and token; 0 for the first token, which nothing predicts."""
    metrics: dict[str, float]

    @property
    def loss(self) -> float:
        """The sum over all tokens."""
        return self.metrics["loss:sum"]


class AdapterClient:
    """One adapter in training. Use as a context manager: leaving it says goodbye to the engine."""

    def __init__(
        self, connection: ServiceConnection, wish: LoraSpec, meter: TokenMeter, resume: str | None = None
    ) -> None:
        """`resume`: the tinker:// path to go on from, optimizer and all. `meter` counts what is asked."""
        self._url = connection.url
        self._meter = meter
        _quiet()
        if connection.local:
            knock(connection.url)
        with self._errors():
            import tinker

            self._service = tinker.ServiceClient(base_url=connection.base_url, api_key=connection.key)
            self._rest: Any = None
            try:
                self._training = self._open(connection, wish, resume)
            except BaseException:
                self._goodbye("errored")
                raise
        self._connection = connection

    def _open(
        self, connection: ServiceConnection, wish: LoraSpec, resume: str | None
    ) -> tinker.TrainingClient:
        metadata = {"policy": wish.policy} if wish.policy else {}
        if resume is not None:
            return self._service.create_training_client_from_state_with_optimizer(
                resume, user_metadata=metadata
            )
        if wish.start is not None:
            from hermes.training.start import as_path

            path = as_path(connection, wish.start)
            return self._service.create_training_client_from_state(path, user_metadata=metadata)
        return self._service.create_lora_training_client(
            wish.base_model, rank=wish.rank, seed=wish.seed, train_unembed=False, user_metadata=metadata
        )

    def forward(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """The logprobs of every token; gradients are not touched."""
        data = [weighted(tokens, [0.0] * len(tokens)) for tokens in sequences]
        self._meter.count(prefill=sum(map(len, sequences)))
        with self._errors():
            return token_logprobs(self._training.forward(data, "cross_entropy").result())

    def evaluate(self, data: Sequence[tinker.Datum]) -> ForwardOutput:
        """Cross-entropy without gradients."""
        self._meter.count(prefill=sum(one.model_input.length for one in data))
        with self._errors():
            output = self._training.forward(list(data), "cross_entropy").result()
            return ForwardOutput(token_logprobs(output), dict(output.metrics))

    def forward_backward(self, data: Sequence[tinker.Datum], loss: LossSpec) -> ForwardOutput:
        """Adds to the gradients."""
        self._meter.count(trained=sum(one.model_input.length for one in data))
        with self._errors():
            name: Any = loss.name
            output = self._training.forward_backward(list(data), name, dict(loss.config) or None).result()
            return ForwardOutput(token_logprobs(output), dict(output.metrics))

    def optim_step(self, rate: float, beta1: float, beta2: float, clip_norm: float) -> dict[str, float]:
        """One Adam update; what the optimizer says about it."""
        with self._errors():
            import tinker

            params = tinker.AdamParams(learning_rate=rate, beta1=beta1, beta2=beta2, grad_clip_norm=clip_norm)
            return dict(self._training.optim_step(params).result().metrics or {})

    def save(self, name: str) -> str:
        """Weights and optimizer, to go on from; the tinker:// path."""
        with self._errors():
            return str(self._training.save_state(name).result().path)

    def publish(self, name: str) -> str:
        """The weights become what samplers get; the tinker:// path."""
        with self._errors():
            return str(self._training.save_weights_for_sampler(name).result().path)

    def score(self, weights: str, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Logprobs as the sampler computes them; `weights` is a tinker:// path, or the base model's name."""
        self._meter.count(prefill=sum(map(len, sequences)))
        with self._errors():
            from tinker import ModelInput

            path = weights.startswith("tinker://")
            sampler = self._service.create_sampling_client(
                model_path=weights if path else None, base_model=None if path else weights
            )
            asked = [sampler.compute_logprobs(ModelInput.from_ints(list(tokens))) for tokens in sequences]
            return [[0.0 if one is None else float(one) for one in future.result()] for future in asked]

    def delete(self, path: str) -> None:
        """A checkpoint that is gone already is as good as deleted."""
        import tinker

        if self._rest is None:
            self._rest = tinker.RestClient(base_url=self._connection.base_url, api_key=self._connection.key)
        try:
            self._rest.delete_checkpoint_from_tinker_path(path).result()
        except (tinker.NotFoundError, tinker.BadRequestError):
            return
        except tinker.TinkerError as error:
            raise _engine_error(error, self._url) from error

    def __enter__(self) -> AdapterClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._goodbye("success" if kind is None else "errored")

    def _goodbye(self, status: Any) -> None:
        import tinker

        try:
            self._service.close(status).result(timeout=_KNOCK_S)
        except (tinker.TinkerError, TimeoutError):
            return  # the engine frees it once it has not heard of us for long enough

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            import tinker
        except ImportError as error:
            raise MissingDependencyError("tinker", "train", "Training") from error
        try:
            yield
        except tinker.TinkerError as error:
            raise _engine_error(error, self._url) from error
        except Exception as error:
            # The SDK has no public name for: the engine was started anew and does not know this request.
            if not type(error).__module__.startswith("tinker."):
                raise
            raise EngineError(f"{self._url}: {error}", _AGAIN, lost=True) from error


def _engine_error(error: Exception, url: str) -> EngineError:
    import tinker

    text = str(error).strip() or type(error).__name__
    if isinstance(error, tinker.AuthenticationError | tinker.PermissionDeniedError):
        return EngineError(
            f"{url} refused the key",
            f"set {KEY_VARIABLE}; for an engine of your own started with {TOKEN_VARIABLE} it is tml-TOKEN",
        )
    if isinstance(error, tinker.APIConnectionError):
        return EngineError(f"{url} does not answer: {text}", _START, lost=True)
    if isinstance(error, tinker.APIStatusError):
        lost = error.status_code in _GONE
        return EngineError(f"{url} refused: {text}", _AGAIN if lost else "", lost=lost)
    return EngineError(f"{url}: {text}")


_START = "start it with: hermes engine serve"
_AGAIN = "run the same command again: it goes on from the last checkpoint"


def knock(url: str) -> None:
    """The SDK tries for minutes; an engine that is not there at all is said at once."""
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=_KNOCK_S).close()
    except (OSError, ValueError) as error:
        raise EngineError(f"no engine answers at {url}: {error}", _START, lost=True) from error


def answers(url: str) -> bool:
    """Whether an engine of this machine is ready for work."""
    try:
        with urllib.request.urlopen(f"{url}/api/v1/healthz", timeout=_KNOCK_S):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500  # it wants a key, say: it is there
    except (OSError, ValueError):
        return False


def _quiet() -> None:
    """Nothing leaves this machine but what the person asked for."""
    os.environ.setdefault("TINKER_TELEMETRY", "0")
