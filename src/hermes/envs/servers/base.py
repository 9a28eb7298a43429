"""A client of one inference server: slots for training and for evaluation, retries, timings, health.

A call is retried a few times with backoff if that can help (connection refused, 429, 5xx); then its error is
raised to the caller. A server that cannot be connected to counts as down until it responds again; while it is
down it is probed with a request that generates nothing.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from hermes.envs.phase import current_phase
from hermes.envs.servers.config import APIServerConfig, ReasoningConfig, is_openai_itself
from hermes.errors import ProviderError
from hermes.models.remote.retry import RetryPolicy, pause_s, retry

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion
    from openai.types.completion import Completion

T = TypeVar("T")
Sampled = tuple[list[int], list[list[int]], list[list[float]], list[Any]]
"""Prompt ids; then, one entry per completion: its ids, their logprobs, its finish reason."""

_RETRIES = RetryPolicy(max_retries=2, base_s=1.0, cap_s=30.0)
_PROBE_TIMEOUT_S = 5.0


class APIServer(ABC):
    """The calls an environment makes. A subclass implements the four `_…_wrapper` methods of its protocol."""

    def __init__(self, config: APIServerConfig, reasoning_config: ReasoningConfig | None = None) -> None:
        self.config = config
        self.reasoning_config = reasoning_config
        self.sem = AsyncSemWithAdaptiveWeight(config.num_max_requests_at_once)
        self.eval_sem = AsyncSemWithAdaptiveWeight(config.num_requests_for_eval)
        self._random = random.Random()
        self.server_healthy = True
        buffer_length = max(1, config.rolling_buffer_length)
        self.request_timings: deque[float] = deque(maxlen=buffer_length)
        self.attempts_list: deque[int] = deque(maxlen=buffer_length)
        self.eval_request_timings: deque[float] = deque(maxlen=buffer_length)
        self.eval_attempts_list: deque[int] = deque(maxlen=buffer_length)

    @property
    def root(self) -> str:
        """The server's address without /v1."""
        return (self.config.base_url or "").rstrip("/").removesuffix("/v1")

    @property
    def health_url(self) -> str:
        return f"{self.root}/health"

    @abstractmethod
    async def _chat_completion_wrapper(self, **kwargs: Any) -> ChatCompletion: ...

    @abstractmethod
    async def _completion_wrapper(self, **kwargs: Any) -> Completion: ...

    @abstractmethod
    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> Sampled: ...

    async def _get_logprobs_wrapper(self, **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError(f"servers of type {self.config.server_type} return no prompt logprobs.")

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        split = kwargs.pop("split", None)
        return await self._call(self._chat_completion_wrapper, split, self._with_reasoning(kwargs))

    async def completion(self, **kwargs: Any) -> Completion:
        return await self._call(self._completion_wrapper, kwargs.pop("split", None), kwargs)

    async def tokens_and_logprobs_completion(self, **kwargs: Any) -> Sampled:
        return await self._call(
            self._tokens_and_logprobs_completion_wrapper, kwargs.pop("split", None), kwargs
        )

    async def get_logprobs(self, **kwargs: Any) -> dict[str, Any]:
        """`prompt_tokens`, `prompt_topk_token_ids` and `prompt_topk_logprobs` of a prompt."""
        return await self._call(self._get_logprobs_wrapper, kwargs.pop("split", None), kwargs)

    async def update_weight(self, weight: float) -> None:
        self.sem.update_weight(weight)
        self.eval_sem.update_weight(weight)

    def slots(self, split: str | None) -> AsyncSemWithAdaptiveWeight:
        """The slots of a split; None: of the phase (train or eval) that the caller runs in."""
        return self.eval_sem if (split or current_phase()) == "eval" else self.sem

    async def probe(self) -> bool:
        """Requests `health_url`; any status below 500 counts as healthy."""
        import httpx2

        headers = {"Authorization": f"Bearer {self.config.api_key}"} if self.config.api_key else {}
        try:
            async with httpx2.AsyncClient(timeout=_PROBE_TIMEOUT_S, trust_env=False) as client:
                response = await client.get(self.health_url, headers=headers)
        except (httpx2.HTTPError, httpx2.InvalidURL):
            self.server_healthy = False
        else:
            self.server_healthy = response.status_code < 500
        return self.server_healthy

    async def check_server_status_task(self, chat_completion: bool = True) -> None:
        await self.probe()

    async def close(self) -> None:  # noqa: B027 - an optional hook
        """Closes the connections."""

    async def wandb_metrics(
        self, metrics_dict: dict[str, Any] | None = None, server_name: str | None = None
    ) -> dict[str, Any]:
        metrics = metrics_dict if metrics_dict is not None else {}
        name = f"server/{server_name or 'server'}"
        for prefix, timings in (("", self.request_timings), ("eval_", self.eval_request_timings)):
            if timings:
                ordered = sorted(timings)
                metrics[f"{name}_{prefix}request_time_avg"] = statistics.fmean(ordered)
                metrics[f"{name}_{prefix}request_time_std"] = statistics.pstdev(ordered)
                metrics[f"{name}_{prefix}request_time_99p"] = ordered[int(0.99 * (len(ordered) - 1))]
        if self.attempts_list:
            metrics[f"{name}_average_num_attempts"] = statistics.fmean(self.attempts_list)
        if self.eval_attempts_list:
            metrics[f"{name}_eval_retry_rate"] = statistics.fmean(self.eval_attempts_list)
        return metrics

    def _with_reasoning(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        skip = kwargs.pop("skip_reasoning", False)
        reasoning = self.reasoning_config and self.reasoning_config.build_extra_body(self.config.base_url)
        if skip or not reasoning:
            return kwargs
        kwargs["extra_body"] = {**(kwargs.get("extra_body") or {}), **reasoning}
        if is_openai_itself(self.config.base_url):
            kwargs["temperature"] = 1.0
            if kwargs.get("max_tokens"):
                kwargs["max_completion_tokens"] = kwargs.pop("max_tokens")
        return kwargs

    async def _call(
        self, wrapper: Callable[..., Awaitable[T]], split: str | None, kwargs: dict[str, Any]
    ) -> T:
        kwargs["model"] = self.config.model_name
        slots = self.slots(split)
        evaluating = slots is self.eval_sem

        async def attempt() -> T:
            started_s = time.monotonic()
            result = await wrapper(**kwargs)
            timings = self.eval_request_timings if evaluating else self.request_timings
            timings.append(time.monotonic() - started_s)
            return result

        async with slots:
            result, attempts = await retry(attempt, self._pause_after)
        self.server_healthy = True
        (self.eval_attempts_list if evaluating else self.attempts_list).append(attempts)
        return result

    def _pause_after(self, error: Exception, attempts: int) -> float | None:
        """See `PauseAfter`. The server counts as down if it did not respond."""
        status, retryable, retry_after_s = _classify(error)
        if status is None and retryable:
            self.server_healthy = not self.config.health_check
        if not retryable or attempts > _RETRIES.max_retries:
            return None
        # Capped: a call that waits keeps its slot.
        return min(pause_s(_RETRIES, attempts, retry_after_s, self._random), _RETRIES.cap_s)


def _classify(error: Exception) -> tuple[int | None, bool, float | None]:
    """Status (None: no response), whether a retry can help, and the server's Retry-After in seconds."""
    import httpx2
    import openai

    if isinstance(error, ProviderError):
        return error.status, error.retryable, error.retry_after_s
    if isinstance(error, openai.APIStatusError):
        status = error.status_code
        retryable = status in (408, 409, 429) or status >= 500
        return status, retryable, _seconds(error.response.headers.get("retry-after"))
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
        return 408, False, None  # config.timeout has passed, and the server may still be generating
    return None, isinstance(error, openai.APIConnectionError | httpx2.TransportError | ConnectionError), None


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None


class AsyncSemWithAdaptiveWeight:
    """First come, first served. A smaller weight does not interrupt requests that have a slot."""

    def __init__(self, value: int) -> None:
        self.max_val = value
        self.weight = 1.0
        self.in_use = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """At least 1, so that an environment of little weight is slow but not stuck."""
        return max(1, math.ceil(self.max_val * self.weight - 1e-9))

    @property
    def free(self) -> int:
        return max(0, self.limit - self.in_use - len(self._waiters))

    def update_weight(self, weight: float) -> None:
        self.weight = weight
        self._admit()

    def locked(self) -> bool:
        return self.free == 0

    async def acquire(self) -> bool:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._admit()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise
        return True

    def release(self) -> None:
        self.in_use -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiters and self.in_use < self.limit:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.in_use += 1
                waiter.set_result(None)

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *exception: object) -> None:
        self.release()
