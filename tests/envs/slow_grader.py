"""Functions for a grader's worker that misbehave in every way."""

from __future__ import annotations

import os
import time


def double(number: int) -> int:
    print("a package that prints where it should not")
    return 2 * number


def never_ends() -> None:
    while True:
        time.sleep(0.01)


def calculates() -> None:
    while True:
        pass


def dies() -> None:
    os._exit(3)


def raises() -> None:
    raise ValueError("no such thing")


def eats_memory() -> int:
    return len(bytearray(64 * 1024**3))


def environment() -> list[str]:
    return sorted(os.environ)
