"""Evaluations: an environment's `evaluate` isolated from its training, and many items measured concurrently.

Training continues while an evaluation runs, and an author's methods add to attributes such as `self.rewards`
in both. `EvalRunner` therefore calls `evaluate` on a view of the environment. The view shares everything with
it except metric buffers, which are numbers and built-in containers: of these it has copies. What the
evaluation adds to a buffer is discarded, unless the name of the attribute, or the key of a dict, contains
`eval`: authors report that in `wandb_log` later. Anything else that it sets on `self` is set on the
environment when it ends.

An item that cannot be measured is retried if the infrastructure failed, then dropped and counted. It is never
counted as a wrong answer.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from hermes.envs.failures import MAX_TRIES, EnvironmentRunError, GroupFailure, classify
from hermes.envs.modes.hooks import EnvHooks
from hermes.envs.phase import phase

logger = logging.getLogger(__name__)

E = TypeVar("E", bound=EnvHooks)
T = TypeVar("T")
S = TypeVar("S")

_DICTS = (dict, defaultdict, OrderedDict, Counter)
_CONTAINERS = (list, deque, set, *_DICTS)
_MAX_DEPTH = 3
"""How deep dicts are searched for nested metric buffers."""


class EvalRunner(Generic[E]):
    """Evaluates one environment while it is training."""

    def __init__(self, env: E) -> None:
        self._env = env

    async def run(self) -> None:
        """Calls `evaluate`. If it fails, the error is logged and training continues."""
        with self.isolate() as view:
            try:
                await view.evaluate()
            except Exception as error:  # an author's code may raise anything
                logger.exception("the evaluation failed (%s)", classify(error).reason)

    @contextmanager
    def isolate(self) -> Iterator[E]:
        """The view to call `evaluate` on; everything started inside is in the phase `eval`."""
        view = copy.copy(self._env)
        for name, value in vars(self._env).items():
            if _is_container(value):
                vars(view)[name] = _copy_buffer(value)
        initial = dict(vars(view))
        lengths = {name: len(value) for name, value in initial.items() if type(value) is list}
        try:
            with phase("eval"):
                yield view
        finally:
            for name, value in vars(view).items():
                if name not in initial or value is not initial[name]:
                    self._set(name, initial.get(name), value)
                elif _is_container(value):
                    self._add(name, value, lengths.get(name, 0))

    def _set(self, name: str, initial: Any, value: Any) -> None:
        """Sets an attribute that the evaluation set, unless it is a metric of the training."""
        if _is_eval_name(name) or not (_is_container(initial) or _is_number(initial)):
            vars(self._env)[name] = value

    def _add(self, name: str, buffer: Any, initial_length: int) -> None:
        """Adds what the evaluation added to its copy of a buffer, if it is a metric of the evaluation."""
        current = vars(self._env).get(name)
        if _is_eval_name(name):
            if isinstance(buffer, list) and isinstance(current, list):
                current.extend(buffer[initial_length:])
            else:
                vars(self._env)[name] = buffer
        elif isinstance(buffer, dict) and isinstance(current, dict):
            current.update({key: element for key, element in buffer.items() if _is_eval_name(key)})


def _is_container(value: object) -> bool:
    return type(value) in _CONTAINERS


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_eval_name(name: object) -> bool:
    return isinstance(name, str) and "eval" in name.lower()


def _copy_buffer(buffer: Any, depth: int = _MAX_DEPTH) -> Any:
    """A copy to add to. Its elements are shared, except for containers that are values of a dict."""
    duplicate = copy.copy(buffer)
    if type(buffer) in _DICTS and depth:
        for key, element in buffer.items():
            if _is_container(element):
                duplicate[key] = _copy_buffer(element, depth - 1)
    return duplicate


@dataclass(frozen=True, slots=True)
class FailedItem:
    """An item that could not be measured."""

    failure: GroupFailure
    error: Exception


async def run_items(
    items: Sequence[T], work: Callable[[T], Awaitable[S]], max_concurrency: int, max_tries: int = MAX_TRIES
) -> list[S | FailedItem]:
    """Runs `work` on every item, `max_concurrency` at a time; results are in the order of the items.

    After an infrastructure failure an item is tried again. A failure that would repeat for every item, such
    as a wrong setting, is raised. If no item can be measured, the first error is raised.
    """
    slots = asyncio.Semaphore(max(1, max_concurrency))

    async def run_item(item: T) -> S | FailedItem:
        async with slots:
            return await _run_item(item, work, max_tries)

    results = await asyncio.gather(*map(run_item, items))
    failed = [result for result in results if isinstance(result, FailedItem)]
    if failed and len(failed) == len(results):
        raise failed[0].error
    return results


async def _run_item(item: T, work: Callable[[T], Awaitable[S]], max_tries: int) -> S | FailedItem:
    tries = 0
    while True:
        tries += 1
        try:
            return await work(item)
        except Exception as error:  # counted by its reason, or raised
            failure = classify(error)
            logger.warning(
                "an item could not be measured (%s): %s",
                failure.reason,
                failure.text,
                exc_info=not failure.infrastructure,  # then it is an error in the environment's code
            )
            if failure.fatal:
                raise
            if not failure.infrastructure or tries == max_tries:
                return FailedItem(failure, error)


@dataclass
class Samples(Generic[S]):
    """The results of the items of an evaluation."""

    measured: list[S] = field(default_factory=list)
    """In the order of their items."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Items that could not be measured, by reason."""


async def measure(items: Sequence[T], work: Callable[[T], Awaitable[S]], max_concurrency: int) -> Samples[S]:
    """Measures items concurrently, for use in `evaluate`. EnvironmentRunError if none can be measured."""
    try:
        results = await run_items(items, work, max_concurrency)
    except Exception as error:
        failure = classify(error)
        if failure.fatal:
            raise
        raise EnvironmentRunError(
            f"none of {len(items)} samples could be measured: {failure.text}"
        ) from error
    samples: Samples[S] = Samples()
    for result in results:
        if isinstance(result, FailedItem):
            samples.dropped[result.failure.reason] += 1
        else:
            samples.measured.append(result)
    return samples
