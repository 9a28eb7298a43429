"""The train/eval split of generated items: decided by an item's value, never by its position.

An item's key names what the item is about (the numbers of a sum, the function to call). The hash of the key
decides the split, so the two splits never overlap, whatever the seed and the size, and an item stays in its
split from version to version.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Protocol, TypeVar

from hermes.core import content_hash

EVAL_SHARE = 0.1
_GIVE_UP_AFTER = 2_000
"""Draws in a row without a new item after which the generator counts as exhausted."""


class Split(StrEnum):
    TRAIN = "train"
    EVAL = "eval"


class Keyed(Protocol):
    @property
    def key(self) -> str:
        """What the item is about; items with equal keys test the same knowledge."""
        ...


ItemT = TypeVar("ItemT", bound=Keyed)


def split_of(key: str) -> Split:
    share = int(content_hash(f"split {key}")[:8], 16) / 2**32
    return Split.EVAL if share < EVAL_SHARE else Split.TRAIN


def draw(make: Callable[[random.Random], ItemT], split: Split, seed: int) -> Iterator[ItemT]:
    """Distinct items of a split, in an order that the seed decides; ends when the generator is exhausted."""
    return distinct(make, split, seed, lambda item: split_of(item.key) is split)


def distinct(
    make: Callable[[random.Random], ItemT],
    split: Split,
    seed: int,
    belongs: Callable[[ItemT], bool] = lambda item: True,
) -> Iterator[ItemT]:
    """The same for a `make` that draws from one split already."""
    rng = random.Random(f"{split} {seed}")
    keys: set[str] = set()
    misses = 0
    while misses < _GIVE_UP_AFTER:
        item = make(rng)
        if item.key in keys or not belongs(item):
            misses += 1
            continue
        misses = 0
        keys.add(item.key)
        yield item
