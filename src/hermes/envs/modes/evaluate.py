"""The evaluate mode, and the way to run many samples at once that environments may use in `evaluate`.

A sample that failed for the infrastructure's sake is tried again; if that does not help it is left out and
counted. It is never a wrong answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hermes.envs.failures import MAX_TRIES, EnvironmentRunError, GroupFailure, classify
from hermes.envs.modes.group_worker import finish, prepare
from hermes.envs.phase import phase
from hermes.errors import HermesError

if TYPE_CHECKING:
    from hermes.envs.base import BaseEnv

logger = logging.getLogger(__name__)

T = TypeVar("T")
S = TypeVar("S")


@dataclass
class Samples(Generic[S]):
    """What came of the items of an evaluation."""

    made: list[S] = field(default_factory=list)
    """In the order of their items."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Reason → items that could not be measured."""


async def run(env: BaseEnv) -> None:
    """Sets up, waits for the model, evaluates."""
    try:
        await prepare(env)
        with phase("eval"):
            await env.evaluate()
    except HermesError:
        raise
    except Exception as error:  # a stranger's code: what it raised is the message
        logger.exception("the evaluation failed")
        raise EnvironmentRunError(
            f"the evaluation failed ({classify(error).reason}): {type(error).__name__}: {error}"
        ) from error
    finally:
        await finish(env)


async def measure(items: Sequence[T], work: Callable[[T], Awaitable[S]], at_once: int) -> Samples[S]:
    """Runs the work on every item, `at_once` at a time. If not one item can be measured, that is an error."""
    slots = asyncio.Semaphore(max(1, at_once))

    async def one(item: T) -> S | GroupFailure:
        async with slots:
            return await _tried(item, work)

    samples: Samples[S] = Samples()
    last: GroupFailure | None = None
    for result in await asyncio.gather(*(one(item) for item in items)):
        if isinstance(result, GroupFailure):
            last = result
            samples.dropped[result.reason] += 1
        else:
            samples.made.append(result)
    if last is not None and not samples.made:
        raise EnvironmentRunError(f"not one of {len(items)} samples could be measured: {last.text}")
    return samples


async def _tried(item: Any, work: Callable[[Any], Awaitable[S]]) -> S | GroupFailure:
    failure: GroupFailure | None = None
    for _ in range(MAX_TRIES):
        try:
            return await work(item)
        except Exception as error:  # counted by its reason, or ends the evaluation
            failure = classify(error)
            logger.warning("a sample failed (%s): %s", failure.reason, failure.text)
            if failure.fatal:
                raise
            if not failure.infrastructure:
                break
    assert failure is not None, "a loop that ends without a result has seen a failure"
    return failure
