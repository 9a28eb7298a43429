"""Client of one adapter in training: the public `tinker` SDK, against a local engine or the managed service.

Every call waits for its result, and every failure of the SDK becomes an `EngineError` with the address and a
hint. `EngineError.lost` means that the engine no longer has the adapter (it restarted, or expired the
client): the run resumes from its last checkpoint with a new one. Only public calls of the SDK are used.
"""

from __future__ import annotations

import json
import os
import socket
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hermes.config.settings import MANAGED
from hermes.core import JSONObject, new_id
from hermes.errors import HermesError, MissingDependencyError, UsageError
from hermes.serving.fetch import fetch
from hermes.training.data.datums import LossSpec, sft_datum, token_logprobs
from hermes.training.service.token_meter import TokenMeter

if TYPE_CHECKING:
    import tinker

URL_VARIABLE, KEY_VARIABLE, TOKEN_VARIABLE = "TINKER_BASE_URL", "TINKER_API_KEY", "HERMES_ENGINE_TOKEN"
LOCAL_URL = "http://127.0.0.1:8001"
DEFAULT_ALPHA = 32.0
"""The alpha of every adapter of the Tinker API."""
TARGETS = ("attn", "mlp", "unembed")
DEFAULT_TARGETS = ("attn", "mlp")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PROBE_TIMEOUT_S = 5.0
_GONE = (404, 410)
_FEW_TOP_TOKENS = 20
"""The number of likeliest tokens of a position that every service returns."""
_MOST_SCORES = 1 << 18
"""Numbers of one sequence that are transferred."""


class EngineError(HermesError):
    """The engine refused a request, failed, or cannot be reached."""

    def __init__(self, message: str, hint: str = "", *, lost: bool = False) -> None:
        super().__init__(message, hint)
        self.lost = lost
        """The engine no longer has the adapter; its checkpoints still exist."""


@dataclass(frozen=True, slots=True)
class ServiceConnection:
    url: str
    """An address, or MANAGED."""
    key: str = field(repr=False)

    @property
    def base_url(self) -> str | None:
        """For the SDK; None: the SDK's default."""
        return None if self.url == MANAGED else self.url

    @property
    def local(self) -> bool:
        return urlsplit(self.url).hostname in _LOOPBACK


def connection(url: str | None, environ: Mapping[str, str]) -> ServiceConnection:
    """Where to train: `url`, else TINKER_BASE_URL, else the engine of this machine."""
    address = (url or environ.get(URL_VARIABLE) or LOCAL_URL).rstrip("/")
    parts = urlsplit(address)
    if address != MANAGED and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise UsageError(f"'{address}' is not an address", f"write it like {LOCAL_URL}, or: {MANAGED}")
    token = environ.get(TOKEN_VARIABLE)
    key = environ.get(KEY_VARIABLE) or (f"tml-{token}" if token else "")
    target = ServiceConnection(address, key or "tml-local")
    if not key and not target.local:
        raise UsageError(
            f"there is no key for {address}", f"set {KEY_VARIABLE}: hermes config set {KEY_VARIABLE} …"
        )
    return target


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """The adapter to train."""

    base_model: str
    rank: int = 32
    seed: int = 0
    policy: str | None = None
    """An alias for the newest sampler weights, besides the engine's `policy`."""
    start: str | None = None
    """Initial weights: a tinker:// path or an adapter's folder; None: a new adapter."""
    alpha: float = DEFAULT_ALPHA
    """The scale of the adapter is alpha / rank."""
    targets: tuple[str, ...] = DEFAULT_TARGETS
    """The parts of the model that have an adapter, out of TARGETS."""

    def changed_shape(self) -> dict[str, Any]:
        """Alpha and targets, where they are not the defaults."""
        shape: dict[str, Any] = {} if self.alpha == DEFAULT_ALPHA else {"alpha": self.alpha}
        return shape if self.targets == DEFAULT_TARGETS else {**shape, "targets": list(self.targets)}


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """The result of a forward or forward-backward pass."""

    logprobs: list[list[float]]
    """By sequence and token; 0 for the first token, which nothing predicts."""
    metrics: dict[str, float]

    @property
    def loss(self) -> float:
        """The sum over all tokens."""
        return self.metrics["loss:sum"]


@dataclass(frozen=True, slots=True)
class TokenScores:
    """A sequence as the sampler scores it, at temperature 1."""

    logprobs: list[float]
    """By token; 0 for the first, which nothing predicts."""
    top: list[list[float]]
    """By token the logprobs of the likeliest tokens in its place, in falling order; empty: not requested."""


class AdapterClient:
    """One adapter in training. A context manager: on exit the session at the engine is closed."""

    def __init__(
        self, connection: ServiceConnection, lora: LoraSpec, meter: TokenMeter, resume: str | None = None
    ) -> None:
        """`resume`: the tinker:// path of weights and optimizer to resume from. `meter` counts the tokens."""
        self._url = connection.url
        self._meter = meter
        _disable_telemetry()
        if connection.local:
            check_reachable(connection.url)
        with self._errors():
            import tinker

            self._service = tinker.ServiceClient(base_url=connection.base_url, api_key=connection.key)
            self._rest: Any = None
            self._scoring: tinker.ServiceClient | None = None
            """The session of the samplers that score; it holds their weights until it is closed."""
            self._samplers: dict[str, tinker.SamplingClient] = {}
            try:
                self._training = self._open(connection, lora, resume)
            except BaseException:
                self._close("errored")
                raise
        self._connection = connection

    def _open(
        self, connection: ServiceConnection, lora: LoraSpec, resume: str | None
    ) -> tinker.TrainingClient:
        metadata = {"policy": lora.policy} if lora.policy else {}
        if lora.alpha != DEFAULT_ALPHA:
            if not _model_metadata(connection):
                raise UsageError(
                    f"{connection.url} is no Hermes engine: its adapters have alpha {DEFAULT_ALPHA:g}",
                    "leave lora_alpha out, and change the learning rate instead",
                )
            metadata["lora_alpha"] = str(lora.alpha)
        if resume is not None:
            return self._service.create_training_client_from_state_with_optimizer(
                resume, user_metadata=metadata
            )
        if lora.start is not None:
            path = upload_weights(connection, lora.start)
            return self._service.create_training_client_from_state(path, user_metadata=metadata)
        return self._service.create_lora_training_client(
            lora.base_model,
            rank=lora.rank,
            seed=lora.seed,
            train_attn="attn" in lora.targets,
            train_mlp="mlp" in lora.targets,
            train_unembed="unembed" in lora.targets,
            user_metadata=metadata,
        )

    def forward(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """The logprobs of every token, without gradients."""
        return self.begin_forward(sequences)()

    def begin_forward(self, sequences: Sequence[Sequence[int]]) -> Callable[[], list[list[float]]]:
        """The same, with the present weights; the function that is returned waits for the logprobs."""
        data = [sft_datum(tokens, [0.0] * len(tokens)) for tokens in sequences]
        self._meter.count(prefill=sum(map(len, sequences)))
        with self._errors():
            pending = self._training.forward(data, "cross_entropy")

        def wait() -> list[list[float]]:
            with self._errors():
                return token_logprobs(pending.result())

        return wait

    def evaluate(self, data: Sequence[tinker.Datum]) -> ForwardOutput:
        """Cross-entropy without gradients."""
        self._meter.count(prefill=sum(datum.model_input.length for datum in data))
        with self._errors():
            output = self._training.forward(list(data), "cross_entropy").result()
            return ForwardOutput(token_logprobs(output), dict(output.metrics))

    def forward_backward(self, data: Sequence[tinker.Datum], loss: LossSpec) -> ForwardOutput:
        """Adds to the gradients."""
        self._meter.count(trained=sum(datum.model_input.length for datum in data))
        with self._errors():
            name: Any = loss.name
            output = self._training.forward_backward(list(data), name, dict(loss.config) or None).result()
            return ForwardOutput(token_logprobs(output), dict(output.metrics))

    def optim_step(self, rate: float, beta1: float, beta2: float, clip_norm: float) -> dict[str, float]:
        """One Adam update; the metrics of the optimizer."""
        with self._errors():
            import tinker

            params = tinker.AdamParams(learning_rate=rate, beta1=beta1, beta2=beta2, grad_clip_norm=clip_norm)
            return dict(self._training.optim_step(params).result().metrics or {})

    def save(self, name: str) -> str:
        """Saves weights and optimizer to resume from; the tinker:// path."""
        with self._errors():
            return str(self._training.save_state(name).result().path)

    def publish(self, name: str) -> str:
        """Publishes the weights to samplers; the tinker:// path."""
        return self.begin_publish(name)()

    def begin_publish(self, name: str) -> Callable[[], str]:
        """The same, of the present weights; the function that is returned waits for the path."""
        with self._errors():
            pending = self._training.save_weights_for_sampler(name)

        def wait() -> str:
            with self._errors():
                return str(pending.result().path)

        return wait

    def score(
        self, weights: str, sequences: Sequence[Sequence[int]], tails: Sequence[int] | None = None
    ) -> list[list[float]]:
        """Logprobs as the sampler computes them; `weights` is a tinker:// path, or the base model's name.

        `tails`: how many tokens at the end of each sequence are scored, 0 for the others; the sampler then
        takes what comes before from its prefix cache.
        """
        return self.begin_score(weights, sequences, tails)()

    def begin_score(
        self, weights: str, sequences: Sequence[Sequence[int]], tails: Sequence[int] | None = None
    ) -> Callable[[], list[list[float]]]:
        """The same; the function that is returned waits for the logprobs."""
        self._meter.count(prefill=sum(map(len, sequences)))
        ends: Sequence[int | None] = tails or [None] * len(sequences)
        with self._errors():
            from tinker import ModelInput

            sampler = self._sampler(weights)
            futures = [
                sampler.compute_logprobs(ModelInput.from_ints(list(tokens)), end)
                for tokens, end in zip(sequences, ends, strict=True)
            ]

        def wait() -> list[list[float]]:
            with self._errors():
                return [[float(logprob or 0.0) for logprob in future.result()] for future in futures]

        return wait

    def score_top(self, weights: str, sequences: Sequence[Sequence[int]], most: int) -> list[TokenScores]:
        """The same with the logprobs of up to `most` of the likeliest tokens of each position.

        Fewer where a sequence is long, or the service returns no more; none if it returns none at all.
        """
        for width in (most, _FEW_TOP_TOKENS):
            try:
                return self._score_top(weights, sequences, width)
            except EngineError as error:
                if error.lost:
                    raise
        return [TokenScores(row, [[] for _ in row]) for row in self.score(weights, sequences)]

    def _score_top(self, weights: str, sequences: Sequence[Sequence[int]], most: int) -> list[TokenScores]:
        self._meter.count(prefill=sum(map(len, sequences)))
        with self._errors():
            from tinker import ModelInput, SamplingParams

            sampler = self._sampler(weights)
            futures = [
                sampler.sample(
                    ModelInput.from_ints(list(tokens)),
                    1,
                    SamplingParams(max_tokens=1),
                    include_prompt_logprobs=True,
                    topk_prompt_logprobs=max(1, min(most, _MOST_SCORES // len(tokens))),
                )
                for tokens in sequences
            ]
            return [_token_scores(future.result()) for future in futures]

    def _sampler(self, weights: str) -> tinker.SamplingClient:
        """A sampler of these weights, opened once."""
        import tinker

        if weights not in self._samplers:
            if self._scoring is None:
                target = self._connection
                self._scoring = tinker.ServiceClient(base_url=target.base_url, api_key=target.key)
            path = weights.startswith("tinker://")
            self._samplers[weights] = self._scoring.create_sampling_client(
                model_path=weights if path else None, base_model=None if path else weights
            )
        return self._samplers[weights]

    def release_samplers(self) -> None:
        """Lets go of the weights that were scored with. A sampler holds them as long as its session lasts,
        even if their checkpoint is deleted: the engine then keeps a copy of them."""
        scoring, self._scoring = self._scoring, None
        self._samplers.clear()
        if scoring is not None:
            _finish(scoring, "success")

    def rounds_nothing(self) -> bool:
        """Whether the service computes in fp32 on a CPU, so that sampler and trainer agree to rounding errors
        of fp32. False where it does not say so."""
        metadata = _model_metadata(self._connection)
        return (metadata.get("device"), metadata.get("dtype")) == ("cpu", "float32")

    def delete(self, path: str) -> None:
        """Deletes a checkpoint; one that does not exist is no error."""
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
        self._close("success" if kind is None else "errored")

    def _close(self, status: Any) -> None:
        self.release_samplers()
        _finish(self._service, status)

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
            # The SDK has no public type for the error that a restarted engine does not have this request.
            if not type(error).__module__.startswith("tinker."):
                raise
            raise EngineError(f"{self._url}: {error}", _RESUME, lost=True) from error


def _model_metadata(connection: ServiceConnection) -> JSONObject:
    """The facts of a Hermes engine about its base model; empty: another service, or it does not answer."""
    if connection.base_url is None:
        return {}
    try:
        models = fetch(
            f"{connection.base_url}/v1/models",
            headers={"X-API-Key": connection.key},
            timeout_s=_PROBE_TIMEOUT_S,
        )
        metadata: JSONObject = json.loads(models)["data"][0]["metadata"]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return {}
    return metadata


def _finish(service: tinker.ServiceClient, status: Any) -> None:
    import tinker

    try:
        service.close(status).result(timeout=_PROBE_TIMEOUT_S)
    except (tinker.TinkerError, TimeoutError):
        return  # the engine frees the session when its heartbeats stop


def _token_scores(response: tinker.SampleResponse) -> TokenScores:
    logprobs = [float(logprob or 0.0) for logprob in response.prompt_logprobs or []]
    rows = response.topk_prompt_logprobs or [None] * len(logprobs)
    top = [sorted((logprob for _, logprob in row), reverse=True) if row else [] for row in rows]
    return TokenScores(logprobs, top)


def _engine_error(error: Exception, url: str) -> EngineError:
    import tinker

    text = str(error).strip() or type(error).__name__
    if isinstance(error, tinker.AuthenticationError | tinker.PermissionDeniedError):
        return EngineError(
            f"{url} refused the key",
            f"set {KEY_VARIABLE}; for your own engine started with {TOKEN_VARIABLE} it is tml-TOKEN",
        )
    if isinstance(error, tinker.APIConnectionError):
        return EngineError(f"{url} does not answer: {text}", _START, lost=True)
    if isinstance(error, tinker.APIStatusError):
        lost = error.status_code in _GONE
        return EngineError(f"{url} refused: {text}", _RESUME if lost else "", lost=lost)
    return EngineError(f"{url}: {text}")


_START = "start it with: hermes engine serve"
_RESUME = "run the same command again: it resumes from the last checkpoint"


def check_reachable(url: str) -> None:
    """EngineError if nothing listens at the address; the SDK itself would retry for minutes."""
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=_PROBE_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise EngineError(f"no engine answers at {url}: {error}", _START, lost=True) from error


def is_ready(url: str) -> bool:
    """Whether an engine is ready for requests."""
    try:
        fetch(f"{url}/api/v1/healthz", timeout_s=_PROBE_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        return error.code < 500  # a missing key, for example: the engine is ready
    except (OSError, ValueError):
        return False
    return True


def upload_weights(connection: ServiceConnection, weights: str) -> str:
    """The tinker:// path of these weights at the engine; files of this machine are uploaded first."""
    if weights.startswith("tinker://"):
        return weights
    if connection.url == MANAGED:
        raise UsageError(f"a service does not take the files in {weights}", "start from a path of its own")
    from hermes.engine.server.client import import_adapter

    imported = import_adapter(connection.url, Path(weights), f"start-{new_id().lower()}")
    return str(imported["weights"])


def _disable_telemetry() -> None:
    """The SDK sends telemetry unless it is disabled."""
    os.environ.setdefault("TINKER_TELEMETRY", "0")
