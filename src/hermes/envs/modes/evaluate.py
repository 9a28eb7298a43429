"""Evaluations: an environment's `evaluate` while it trains, and many items measured concurrently.

Training continues while an evaluation runs, and an author's methods add to attributes such as `self.rewards`
in both. `EvalRunner` therefore calls `evaluate` on a view of the environment and owns an `EvalState` for it.
A training metric is an attribute of the environment that holds a number or a built-in container, unless the
class lists it in `eval_attributes`. The evaluation has its own values of the training metrics, which end with
it. Every other attribute is the environment's: the view reads it there and sets it there, at once.

Not promised: `vars(self)` inside `evaluate` does not show the environment's attributes.

An item that cannot be measured is retried if the infrastructure failed, then dropped and counted. It is never
counted as a wrong answer.

Results go to the terminal and to the files that Atropos's tools read. `metrics.json` has the metrics under
the task's name, and confidence intervals of the numbers in the samples (`score`, `reward`, `correct` and
others). `samples.jsonl` has one line for each sample.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import sys
import time
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from hermes.core.stats import Interval, interval
from hermes.envs.failures import MAX_TRIES, EnvironmentRunError, GroupFailure, classify
from hermes.envs.groups import to_plain
from hermes.envs.modes.hooks import EnvHooks
from hermes.envs.modes.redaction import clean_text
from hermes.envs.phase import phase
from hermes.errors import NothingToEvaluateError
from hermes.safety.text import printable

_MEASURED = ("score", "reward", "correct", "is_correct", "success", "passed", "accuracy")


def evaluate_log(
    metrics: Mapping[str, Any],
    eval_dir: str | None = None,
    task_name: str | None = None,
    model_name: str | None = None,
    start_time: float | None = None,
    end_time: float | None = None,
    generation_parameters: Mapping[str, Any] | None = None,
    samples: Sequence[Mapping[str, Any]] | None = None,
    verbose: bool = True,
) -> None:
    """Prints a table if `verbose`, and writes the two files if `eval_dir` is given."""
    now = time.time()
    duration_s = (now if end_time is None else end_time) - (now if start_time is None else start_time)
    intervals = sample_intervals(samples or ())
    if verbose:
        sys.stdout.write(table(task_name or "evaluation", metrics, intervals, duration_s))
        sys.stdout.flush()
    if eval_dir is None:
        logger.warning("data_dir_to_save_evals is not set: the evaluation is not saved")
        return
    folder = Path(eval_dir)
    folder.mkdir(parents=True, exist_ok=True)
    result = {
        "config_general": {
            "model_name": model_name,
            "total_evaluation_time_seconds": str(duration_s),
            "generation_parameters": dict(generation_parameters or {}),
        },
        "results": {f"atropos|{task_name}|0": dict(metrics), "all": dict(metrics)},
        "confidence_intervals": {name: asdict(value) for name, value in intervals.items()},
    }
    _write(folder / "metrics.json", clean_text(_dumps(result, indent=2)) + "\n")
    if samples:
        _write(folder / "samples.jsonl", "".join(clean_text(_dumps(sample)) + "\n" for sample in samples))
    logger.info("the evaluation is saved in %s", folder)


def sample_intervals(samples: Sequence[Mapping[str, Any]]) -> dict[str, Interval]:
    """The interval of each known key, over the samples in which it is a finite number."""
    intervals = {}
    for key in _MEASURED:
        values = [sample.get(key) for sample in samples if isinstance(sample, Mapping)]
        numbers = [float(value) for value in values if isinstance(value, bool | int | float)]
        if numbers and all(map(math.isfinite, numbers)):
            intervals[key] = interval(numbers)
    return intervals


def table(task: str, metrics: Mapping[str, Any], intervals: Mapping[str, Interval], duration_s: float) -> str:
    """A Markdown table."""
    rows = [(str(name), _format_value(value)) for name, value in metrics.items()]
    rows += [
        (
            f"{name} (95 % interval, n={estimate.n})",
            f"{estimate.mean:.4f} [{estimate.low:.4f}, {estimate.high:.4f}]",
        )
        for name, estimate in intervals.items()
    ]
    width = max((len(name) for name, _ in rows), default=0)
    lines = [
        f"{task}: {duration_s:.1f} s",
        "",
        f"| {'metric':<{width}} | value |",
        f"|{'-' * (width + 2)}|-------|",
    ]
    lines += [f"| {name:<{width}} | {value} |" for name, value in rows]
    return printable("\n".join(lines)) + "\n\n"


def _format_value(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _dumps(value: Any, indent: int | None = None) -> str:
    """JSON; NaN, such as an empty mean, is written as Python's `NaN`."""
    return json.dumps(value, default=to_plain, indent=indent)


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.touch(mode=0o600)
    part.chmod(0o600)
    part.write_text(text, encoding="utf-8")
    part.replace(path)


logger = logging.getLogger(__name__)

E = TypeVar("E", bound=EnvHooks)
T = TypeVar("T")
S = TypeVar("S")

_DICTS = (dict, defaultdict, OrderedDict, Counter)
_CONTAINERS = (list, deque, set, *_DICTS)
_MAX_DEPTH = 3
"""How deep dicts are searched for nested metric buffers."""


class EvalRunner(Generic[E]):
    """Runs the evaluations of one environment while it trains, one at a time."""

    def __init__(self, env: E) -> None:
        self._env = env
        self._reported: set[str] = set()
        """Training metrics whose change by an evaluation was logged."""
        self._has_items = True

    async def run(self) -> None:
        """Calls `evaluate`. If it fails, the error is logged and training continues. An environment that
        has no tasks to evaluate is not evaluated again."""
        if not self._has_items:
            return
        with self.open_view() as view:
            try:
                await view.evaluate()
            except NothingToEvaluateError as error:
                self._has_items = False
                logger.warning("%s Training continues without evaluations. %s", error.message, error.hint)
            except Exception as error:  # an author's code may raise anything
                logger.exception("the evaluation failed (%s)", classify(error).reason)

    @contextmanager
    def open_view(self) -> Iterator[E]:
        """The object to call `evaluate` on; everything started inside is in the phase `eval`."""
        state = EvalState(self._env)
        try:
            with phase("eval"):
                yield cast(E, object.__new__(_view_class(type(self._env), state)))
        finally:
            self._report(state)

    def _report(self, state: EvalState) -> None:
        """Logs, once a name, which of its values the evaluation changed and nobody will see."""
        names = [name for name in state.changed_metrics() if name not in self._reported]
        self._reported.update(names)
        if names:
            logger.info(
                "the evaluation changed %s; training keeps its own value. If the evaluation reports its "
                "result there, list the name in eval_attributes of %s.",
                ", ".join(f"self.{name}" for name in names),
                type(self._env).__name__,
            )


class EvalState:
    """The attributes of an evaluation: its own values of the training metrics, and else the environment's."""

    def __init__(self, env: EnvHooks) -> None:
        self._env = env
        self._metrics: dict[str, Any] = {}
        """The evaluation's own values. Containers are copied when they are first read."""
        self._initial_lengths: dict[str, int] = {}

    def has(self, name: str) -> bool:
        """Whether it is an attribute of the object, and not of its class."""
        return name in self._metrics or name in vars(self._env)

    def read(self, name: str) -> Any:
        if name in self._metrics:
            return self._metrics[name]
        value = vars(self._env)[name]
        if not (_is_container(value) and self._is_training_metric(name)):
            return value
        self._metrics[name] = _copy_buffer(value)
        self._initial_lengths[name] = len(value)
        return self._metrics[name]

    def write(self, name: str, value: Any) -> None:
        if self._is_training_metric(name):
            self._metrics[name] = value
            self._initial_lengths.pop(name, None)
        else:
            setattr(self._env, name, value)

    def delete(self, name: str) -> None:
        """Deletes an attribute; of a training metric, the evaluation's own value."""
        if self._is_training_metric(name):
            self._metrics.pop(name, None)
            self._initial_lengths.pop(name, None)
        else:
            delattr(self._env, name)

    def changed_metrics(self) -> list[str]:
        """The training metrics that the evaluation set, or whose length it changed."""
        return [
            name
            for name, value in self._metrics.items()
            if name not in self._initial_lengths or len(value) != self._initial_lengths[name]
        ]

    def _is_training_metric(self, name: str) -> bool:
        if name in self._metrics:
            return True
        value = vars(self._env).get(name)
        return (_is_container(value) or _is_number(value)) and name not in self._env.eval_attributes


def _view_class(env_class: type, state: EvalState) -> type:
    """A subclass of the environment's class whose one instance has the attributes of the state."""

    def read(view: Any, name: str) -> Any:
        if state.has(name):
            return state.read(name)
        return cast(Any, env_class).__getattribute__(view, name)  # methods, properties, defaults of the class

    def write(view: Any, name: str, value: Any) -> None:
        if isinstance(descriptor := getattr(env_class, name, None), property):
            descriptor.__set__(view, value)
        else:
            state.write(name, value)

    def delete(view: Any, name: str) -> None:
        state.delete(name)

    methods = {
        "__getattribute__": read,
        "__setattr__": write,
        "__delattr__": delete,
        "__module__": env_class.__module__,
        "__qualname__": env_class.__qualname__,
    }
    return types.new_class(env_class.__name__, (env_class,), exec_body=lambda body: body.update(methods))


def _is_container(value: object) -> bool:
    return type(value) in _CONTAINERS


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
