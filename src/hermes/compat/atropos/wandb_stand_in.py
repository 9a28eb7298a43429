"""Stands for the package wandb where it is not installed: takes everything, sends nothing.

Environments make tables and log them whether or not anybody looks. Whatever is asked of this module can be
called, indexed and iterated over, and comes to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

IS_STAND_IN = True
"""How our own reporting tells it from the package."""
run = None
config: dict[str, Any] = {}


class Error(Exception):
    """As W&B's own: the base of what it raises."""


class Nothing:
    """The answer to everything."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes whatever it is made of."""

    def __call__(self, *args: Any, **kwargs: Any) -> Nothing:
        return Nothing()

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing was opened."""


class Table:
    """Keeps its rows, since environments read them back."""

    def __init__(self, columns: Any = None, data: Any = None, **options: Any) -> None:
        self.columns = list(columns or ())
        self.data = [list(row) for row in data or ()]

    def add_data(self, *row: Any) -> None:
        self.data.append(list(row))


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Nothing
