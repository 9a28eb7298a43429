"""Which items are for training and which are held out: decided by an item's value, never by its position.

An item's key names what there is to be known about it (the numbers of a sum, the function to be called).
The hash of the key decides the split, so the two can never overlap, whatever the seed and the size, and an
item moves from one to the other in no version.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Protocol, TypeVar

from hermes.core import content_hash

EVAL_SHARE = 0.1
_GIVE_UP_AFTER = 2_000
"""Draws in a row that bring nothing new: what there was has been found."""


class Split(StrEnum):
    TRAIN = "train"
    EVAL = "eval"


class Keyed(Protocol):
    @property
    def key(self) -> str:
        """What the item is about; items with equal keys ask for the same knowledge."""
        ...


ItemT = TypeVar("ItemT", bound=Keyed)


def split_of(key: str) -> Split:
    share = int(content_hash(f"split {key}")[:8], 16) / 2**32
    return Split.EVAL if share < EVAL_SHARE else Split.TRAIN


def draw(make: Callable[[random.Random], ItemT], split: Split, seed: int) -> Iterator[ItemT]:
    """Distinct items of a split, in an order that the seed decides; ends when no more are found."""
    return distinct(make, split, seed, lambda item: split_of(item.key) is split)


def distinct(
    make: Callable[[random.Random], ItemT],
    split: Split,
    seed: int,
    belongs: Callable[[ItemT], bool] = lambda item: True,
) -> Iterator[ItemT]:
    """The same for makers that know the split themselves."""
    chance = random.Random(f"{split} {seed}")
    seen: set[str] = set()
    misses = 0
    while misses < _GIVE_UP_AFTER:
        item = make(chance)
        if item.key in seen or not belongs(item):
            misses += 1
            continue
        misses = 0
        seen.add(item.key)
        yield item
