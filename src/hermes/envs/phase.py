"""Whether code runs for training or for evaluation, and keeping what it counts apart.

Everything an evaluation starts inherits its phase, so a model call made during one takes evaluation slots
even if the environment's author forgot to ask for them.

`eval_face` is how the framework calls `evaluate`: on a face of the environment that shares everything with
it, but has its own copies of the lists. What the evaluation appends to a list whose name says `eval` comes
back, because wandb_log reports it later; what it appends to any other list (the reward buffer that
compute_reward fills, say) stays out of the training metrics.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeVar

Phase = Literal["train", "eval"]
E = TypeVar("E")

_PHASE: ContextVar[Phase] = ContextVar("hermes_env_phase", default="train")


def current_phase() -> Phase:
    return _PHASE.get()


@contextmanager
def phase(name: Phase) -> Iterator[None]:
    """For the code inside, and every task it starts."""
    before = _PHASE.set(name)
    try:
        yield
    finally:
        _PHASE.reset(before)


@contextmanager
def eval_face(env: E) -> Iterator[E]:
    """The environment as an evaluation sees it."""
    face = copy.copy(env)
    for name, value in vars(env).items():
        if type(value) is list:
            vars(face)[name] = list(value)
    before = dict(vars(face))
    lengths = {name: len(value) for name, value in before.items() if type(value) is list}
    try:
        with phase("eval"):
            yield face
    finally:
        _bring_back(env, face, before, lengths)


def _bring_back(env: object, face: object, before: dict[str, object], lengths: dict[str, int]) -> None:
    for name, value in vars(face).items():
        if value is not before.get(name):
            if name not in lengths or "eval" in name:
                vars(env)[name] = value
        elif name in lengths and "eval" in name and isinstance(value, list):
            kept = vars(env).get(name)
            if isinstance(kept, list):
                kept.extend(value[lengths[name] :])
