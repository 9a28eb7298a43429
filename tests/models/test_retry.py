from __future__ import annotations

import asyncio
import random

import pytest

from hermes.errors import AuthError, ProviderError
from hermes.models.remote.retry import OutageWait, RetryPolicy, pause_s, retry_blocking, with_retries

POLICY = RetryPolicy(max_retries=5, base_s=0.5, cap_s=4.0)
QUICK = RetryPolicy(max_retries=3, base_s=0.001)


def test_pauses_lie_in_a_span_that_doubles_up_to_the_cap() -> None:
    rng = random.Random(1)
    for failures, span in enumerate([0.5, 1.0, 2.0, 4.0, 4.0, 4.0], start=1):
        pauses = [pause_s(POLICY, failures, None, rng) for _ in range(2000)]
        assert 0 <= min(pauses) < span * 0.02
        assert span * 0.98 < max(pauses) <= span


def test_the_schedule_is_the_same_for_the_same_seed() -> None:
    first = [pause_s(POLICY, n, None, random.Random(3)) for n in range(1, 6)]
    assert first == [pause_s(POLICY, n, None, random.Random(3)) for n in range(1, 6)]
    assert first != [pause_s(POLICY, n, None, random.Random(4)) for n in range(1, 6)]


def test_a_retry_after_is_a_minimum_even_beyond_the_cap() -> None:
    rng = random.Random(1)
    assert pause_s(POLICY, 1, 60.0, rng) == 60.0
    assert all(pause_s(POLICY, 4, 0.5, rng) >= 0.5 for _ in range(500))


class Failing:
    """Fails as told, then answers."""

    def __init__(self, *errors: ProviderError) -> None:
        self.errors = list(errors)
        self.attempts = 0

    async def __call__(self) -> str:
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


async def run(attempt: Failing, timeout_s: float | None = 60) -> tuple[str, int]:
    async with asyncio.timeout(timeout_s) as scope:
        return await with_retries(attempt, QUICK, scope, random.Random(1))


async def test_the_answer_comes_with_the_number_of_attempts() -> None:
    attempt = Failing(ProviderError("a", retryable=True), ProviderError("b", retryable=True))
    assert await run(attempt) == ("answer", 3)


async def test_an_error_that_is_not_retryable_is_raised_at_once() -> None:
    attempt = Failing(AuthError("no"))
    with pytest.raises(AuthError):
        await run(attempt)
    assert attempt.attempts == 1


async def test_the_last_error_is_raised_when_the_retries_are_used_up() -> None:
    attempt = Failing(*(ProviderError(str(n), retryable=True) for n in range(9)))
    with pytest.raises(ProviderError, match="3"):
        await run(attempt)
    assert attempt.attempts == 4


async def test_a_pause_that_would_pass_the_deadline_is_not_begun() -> None:
    attempt = Failing(ProviderError("busy", retryable=True, retry_after_s=3600))
    with pytest.raises(ProviderError, match="busy"):
        await run(attempt, timeout_s=30)
    assert attempt.attempts == 1


async def test_without_a_deadline_the_retries_still_end() -> None:
    attempt = Failing(*(ProviderError("busy", retryable=True) for _ in range(9)))
    with pytest.raises(ProviderError):
        await run(attempt, timeout_s=None)
    assert attempt.attempts == 4


def test_an_outage_is_waited_for_until_the_patience_is_exhausted() -> None:
    wait = OutageWait(3600.0, POLICY)
    pauses = [wait.next_pause_s() for _ in range(50)]
    assert all(pause is not None and 0 <= pause <= POLICY.cap_s for pause in pauses)
    assert wait.next_pause_s(retry_after_s=60.0) == 60.0
    assert 3500 < (wait.next_pause_s(retry_after_s=7200.0) or 0) <= 3600, "shortened to the deadline"
    assert OutageWait(0.0, POLICY).next_pause_s() is None


def test_blocking_code_retries_by_the_same_rule() -> None:
    errors = [OSError("first"), OSError("second"), KeyError("bug")]
    seen: list[tuple[str, int]] = []

    def attempt() -> str:
        raise errors.pop(0)

    def pause_after(error: Exception, attempts: int) -> float | None:
        seen.append((str(error), attempts))
        return 0.0 if isinstance(error, OSError) else None

    with pytest.raises(KeyError, match="bug"):
        retry_blocking(attempt, pause_after)
    assert seen == [("first", 1), ("second", 2), ("'bug'", 3)]
