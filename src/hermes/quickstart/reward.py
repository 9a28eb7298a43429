"""The reward of a generated trajectory: that of the calculator environment.

`hermes batch --reward` accepts this file too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes.batch.reward import RewardContext


def exact_number(ctx: RewardContext) -> float:
    """1 if the answer commits to the expected number, else 0."""
    from hermes.envs.rewards.number import numeric

    return numeric(ctx.answer, str(ctx.expected)).value
