"""The train/eval split of generated items: decided by an item's value, never by its position.

An item's key names what the item is about (the numbers of a sum, the function to call). The hash of the key
decides the split, so the two splits never overlap, whatever the seed and the size, and an item stays in its
split from version to version.

Training tasks have a seed that a policy cannot draw again, although it may know their generator. Without a
run's seed it is random. With one it is a function of that seed and of a secret of this home: two runs with
the same seed train on the same tasks, and the seed alone does not tell which.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Protocol, TypeVar

from hermes.core import content_hash
from hermes.disk.filelock import FileLock
from hermes.disk.files import atomic_write, ensure_dir, read_text

EVAL_SHARE = 0.1
_GIVE_UP_AFTER = 2_000
"""Draws in a row without a new item after which the generator counts as exhausted."""


class Split(StrEnum):
    TRAIN = "train"
    EVAL = "eval"


class Keyed(Protocol):
    @property
    def key(self) -> str:
        """The subject of the item; items with equal keys test the same knowledge."""
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


@lru_cache(maxsize=4)
def pass_order(count: int, pass_number: int, seed: int | None) -> Sequence[int]:
    """The positions of so many tasks in the order of one pass: the same in all replicas of an environment.

    Files and folders are often sorted by kind; batches in that order would have tasks of one kind each.
    """
    positions = list(range(count))
    random.Random(f"pass {pass_number} {seed or 0}").shuffle(positions)
    return positions


_BITS = 48
_SECRET_FILE = "task_secret"
"""In the folder `rl` of the home, readable by its user only."""


def secret_seed(home: Path, run_seed: int | None) -> int:
    """`run_seed` None: random."""
    if run_seed is None:
        return secrets.randbits(_BITS)
    digest = blake2b(str(run_seed).encode(), key=bytes.fromhex(_home_secret(home)), digest_size=_BITS // 8)
    return int.from_bytes(digest.digest(), "big")


def _home_secret(home: Path) -> str:
    """Hexadecimal; drawn when it is first needed."""
    path = ensure_dir(home / "rl") / _SECRET_FILE
    with FileLock(path.with_suffix(".lock")):
        secret = read_text(path)
        if secret is None:
            secret = secrets.token_hex(32)
            atomic_write(path, secret)
    return secret.strip()
