"""Retries with exponential backoff.

The schedule is pure: full jitter over an exponentially growing span, never sooner than the server's
Retry-After. The loop retries only errors that are marked retryable, stops at the deadline instead of sleeping
past it, and returns the number of attempts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from hermes.errors import ProviderError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    max_retries: int
    base_s: float = 0.5
    """Span of the first pause; doubles with every further one."""
    cap_s: float = 30.0
    """Longest span. A server's own Retry-After is not capped."""


def pause_s(policy: RetryPolicy, failures: int, retry_after_s: float | None, rng: random.Random) -> float:
    """The wait after the `failures`-th failure in a row (counted from 1)."""
    span = min(policy.cap_s, policy.base_s * 2.0 ** (failures - 1))
    return max(rng.uniform(0.0, span), retry_after_s or 0.0)


OnRetry = Callable[[ProviderError, float], None]
"""Called with the failure of an attempt and the pause in seconds before the next one."""


async def with_retries(
    attempt: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    scope: asyncio.Timeout,
    rng: random.Random,
    on_retry: OnRetry | None = None,
) -> tuple[T, int]:
    """The first result, and the number of attempts it took; else the last error is raised.

    `scope` is the enclosing timeout; a pause that would outlast it is not started.
    """
    attempts = 0
    while True:
        attempts += 1
        try:
            return await attempt(), attempts
        except ProviderError as error:
            pause = pause_s(policy, attempts, error.retry_after_s, rng)
            ends_s = scope.when()
            too_late = ends_s is not None and asyncio.get_running_loop().time() + pause >= ends_s
            if not error.retryable or attempts > policy.max_retries or too_late:
                raise
            if on_retry is not None:
                on_retry(error, pause)
        await asyncio.sleep(pause)
