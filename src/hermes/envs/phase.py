"""Whether code runs for training or for evaluation, and keeping what it counts apart.

Everything an evaluation starts inherits its phase, so a model call made during one takes evaluation slots
even if the environment's author forgot to ask for them.

`eval_face` is how the framework calls `evaluate`: on a face of the environment that shares everything with
it, but has its own copies of what metrics are gathered in: lists, dicts (with the lists in them), counters,
sets, deques, and its own numbers. What the evaluation adds under a name or key that says `eval` comes back,
because wandb_log reports it later; what it does to any other (the reward buffer that compute_reward fills,
a count of rollouts) stays out of the training metrics. Objects that it makes on first use come back as well.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

Phase = Literal["train", "eval"]
E = TypeVar("E")

_PHASE: ContextVar[Phase] = ContextVar("hermes_env_phase", default="train")
_DICTS = (dict, defaultdict, OrderedDict, Counter)
_CONTAINERS = (list, deque, set, *_DICTS)
_SHARED = frozenset({"workers", "eval_workers", "running_items", "status_dict", "_opened"})
"""The framework's own, which there is one of."""
_DEPTH = 3
"""How far down dicts are looked through for what metrics are gathered in."""


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
        if type(value) in _CONTAINERS and name not in _SHARED:
            vars(face)[name] = _apart(value, _DEPTH)
    before = dict(vars(face))
    lengths = {name: len(value) for name, value in before.items() if type(value) is list}
    try:
        with phase("eval"):
            yield face
    finally:
        for name, value in vars(face).items():
            if name not in before:
                vars(env)[name] = value
            elif value is not before[name]:
                _bring_back_new(env, name, before[name], value)
            elif name not in _SHARED:
                _bring_back_added(env, name, value, lengths.get(name, 0))


def _apart(value: Any, depth: int) -> Any:
    """A copy to add to. What is in it is shared, except for what metrics are gathered in under its keys."""
    twin = copy.copy(value)
    if type(value) in _DICTS and depth:
        for key, inner in value.items():
            if type(inner) in _CONTAINERS:
                twin[key] = _apart(inner, depth - 1)
    return twin


def _says_eval(name: object) -> bool:
    return isinstance(name, str) and "eval" in name.lower()


def _bring_back_new(env: object, name: str, before: Any, value: Any) -> None:
    """An attribute that the evaluation set anew."""
    gathers = type(before) in _CONTAINERS or (_is_number(before) and _is_number(value))
    if _says_eval(name) or not gathers:
        vars(env)[name] = value


def _bring_back_added(env: object, name: str, value: Any, length: int) -> None:
    """What the evaluation added to its copy."""
    kept = vars(env).get(name)
    if _says_eval(name):
        if type(value) is list and type(kept) is list:
            kept.extend(value[length:])
        elif type(value) in _CONTAINERS:
            vars(env)[name] = value
    elif isinstance(value, dict) and isinstance(kept, dict):
        kept.update({key: inner for key, inner in value.items() if _says_eval(key)})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
