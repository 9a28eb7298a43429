"""Keyword arguments of graders under their former names: `answer` for `response`, `wanted` for `required`.

An environment that uses the former names still runs. Type checkers know only the new ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def accepts_former(**former_names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accepts each former keyword as the parameter that its value names."""

    def decorate(grader: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(grader)
        def accepting(*args: P.args, **kwargs: P.kwargs) -> R:
            for former, name in former_names.items():
                if former in kwargs:
                    if name in kwargs:
                        raise TypeError(
                            f"{grader.__name__}() got both {name!r} and its former name {former!r}"
                        )
                    kwargs[name] = kwargs.pop(former)
            return grader(*args, **kwargs)

        return accepting

    return decorate
