"""What the feedback act's reward model stands for: a function for `--true-reward`, in its own file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.quickstart.feedback.rule import judge

if TYPE_CHECKING:
    from hermes.batch.reward import RewardContext


def stars(ctx: RewardContext) -> float:
    """The stars of the rule as a reward from 0 to 1."""
    return (judge(ctx.answer).stars - 1.0) / 4.0
