"""Replaces the package wandb where it is not installed: accepts every call and sends nothing.

Environments create tables and log them unconditionally. Every attribute of this module can be called, entered
and iterated over, and has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

IS_STAND_IN = True
"""Lets our own reporting distinguish it from the package."""
run = None
config: dict[str, Any] = {}


class Error(Exception):
    """The base of W&B's exceptions."""


class Nothing:
    """An object that accepts every call and has every attribute."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accepts any arguments."""

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
