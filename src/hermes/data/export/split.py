"""Train or eval, by hash: a trajectory is on the same side in every export.

All attempts at one task are on the same side, so that no eval row's task was trained on.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum


class Side(StrEnum):
    TRAIN = "train"
    EVAL = "eval"


def side_of(task: str, eval_share: float) -> Side:
    """`task` as `Example.task` gives it; `eval_share` of all tasks, on average, are for evaluation."""
    digest = hashlib.blake2b(task.encode("utf-8", "surrogatepass"), digest_size=8, person=b"hermes-split")
    drawn = int.from_bytes(digest.digest(), "big") / 2**64
    return Side.EVAL if drawn < eval_share else Side.TRAIN
