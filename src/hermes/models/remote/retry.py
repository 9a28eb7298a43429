"""Retries with exponential backoff: one loop, and what decides about the next attempt.

The schedule is pure: full jitter over an exponentially growing span, never sooner than the server's
Retry-After. `with_retries` retries only errors that are marked retryable and stops at the deadline instead of
sleeping past it. `OutageWait` is for a service that is waited for, whatever the number of attempts.
"""

from __future__ import annotations

import asyncio
import random
import time
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


PauseAfter = Callable[[Exception, int], float | None]
"""Called with the error of an attempt and the number of attempts so far: the seconds until the next attempt;
None: the error is raised."""


async def retry(attempt: Callable[[], Awaitable[T]], pause_after: PauseAfter) -> tuple[T, int]:
    """The first result, and the number of attempts it took."""
    attempts = 0
    while True:
        attempts += 1
        try:
            return await attempt(), attempts
        except Exception as error:
            pause = pause_after(error, attempts)
            if pause is None:
                raise
        await asyncio.sleep(pause)


def retry_blocking(attempt: Callable[[], T], pause_after: PauseAfter) -> T:
    """The same for code that is not async."""
    attempts = 0
    while True:
        attempts += 1
        try:
            return attempt()
        except Exception as error:
            pause = pause_after(error, attempts)
            if pause is None:
                raise
        time.sleep(pause)


class OutageWait:
    """Growing pauses until the patience is exhausted."""

    def __init__(self, patience_s: float, policy: RetryPolicy) -> None:
        """Only the policy's schedule of pauses is used."""
        self._deadline_s = time.monotonic() + patience_s
        self._policy = policy
        self._random = random.Random()
        self._pauses = 0

    def next_pause_s(self, retry_after_s: float | None = None) -> float | None:
        """The next pause, shortened to the deadline; None if that has passed."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            return None
        self._pauses += 1
        return min(pause_s(self._policy, self._pauses, retry_after_s, self._random), left_s)


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

    def pause_after(error: Exception, attempts: int) -> float | None:
        if not isinstance(error, ProviderError) or not error.retryable or attempts > policy.max_retries:
            return None
        pause = pause_s(policy, attempts, error.retry_after_s, rng)
        ends_s = scope.when()
        if ends_s is not None and asyncio.get_running_loop().time() + pause >= ends_s:
            return None
        if on_retry is not None:
            on_retry(error, pause)
        return pause

    return await retry(attempt, pause_after)
