"""Whether code runs for training or for evaluation.

Every task that an evaluation starts inherits its phase. A model call made during an evaluation therefore
takes one of the slots reserved for evaluation, even if the environment's author does not pass `split="eval"`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Phase = Literal["train", "eval"]

_PHASE: ContextVar[Phase] = ContextVar("hermes_env_phase", default="train")


def current_phase() -> Phase:
    return _PHASE.get()


@contextmanager
def phase(name: Phase) -> Iterator[None]:
    """Sets the phase of the code inside, and of every task it starts."""
    token = _PHASE.set(name)
    try:
        yield
    finally:
        _PHASE.reset(token)
