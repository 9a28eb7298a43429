"""RL runs of a few steps: the trainer's settings, and an environment at work beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hermes.training.monitor.sinks import JsonLines, Sinks
from hermes.training.rl import RlTrainerConfig, RunServices, train
from hermes.training.schedule import Schedule
from hermes.training.session import TrainingRunSpec, TrainResult
from tests.training.world import Environment

Change = Callable[[dict[str, Any]], None]


def settings(api: str, steps: int = 3, **more: Any) -> RlTrainerConfig:
    given = {"schedule": Schedule(0.02), "batch_size": 8, "api_url": api, "api_patience_s": 5.0, **more}
    return RlTrainerConfig(num_steps=steps, **given)


def services(run: TrainingRunSpec, **more: Any) -> RunServices:
    return RunServices(Sinks([JsonLines(run.folder)]), lambda line: None, **more)


@contextmanager
def feeding(environment: Environment, change: Change | None = None, groups: int = 2) -> Iterator[None]:
    """The environment at work beside the trainer: a batch of `groups` from each published weights."""
    done = threading.Event()
    worker = threading.Thread(target=environment.feed_until, args=(done.is_set, groups, change))
    worker.start()
    try:
        yield
    finally:
        done.set()
        worker.join()


def trained(
    run: TrainingRunSpec, environment: Environment, change: Change | None = None, **more: Any
) -> TrainResult:
    given = settings(environment.api_url, **more)
    with feeding(environment, change, given.batch_size // environment.group_size):
        return train(run, given, services(run))


def always_the_first(environment: Environment) -> Change:
    """The weights of the environment's first rollouts sample all of them."""
    first: list[str] = []

    def change(made: dict[str, Any]) -> None:
        first.append(made["overrides"][0]["policy_version"])
        if first[-1] != first[0]:
            made.update(environment.rollouts(first[0]))

    return change
