"""The sum of several reward functions, plain or normalised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hermes.compat.atropos.reward_fns.function import RewardFunction
from hermes.compat.atropos.reward_fns.registry import registry
from hermes.errors import UsageError

_NORMALIZATIONS = ("none", "sum", "minmax")


class CombinedReward(RewardFunction):
    """Parts are names or configs. `sum` divides by the sum of weights; `minmax` scales a group to 0 to 1."""

    def __init__(
        self,
        rewards: Sequence[str | dict[str, Any]],
        normalization: str = "none",
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        if normalization not in _NORMALIZATIONS:
            raise UsageError(f"normalization is '{normalization}'; it can be {', '.join(_NORMALIZATIONS)}.")
        self.normalization = normalization
        self.reward_functions = [registry.create(reward) for reward in rewards]

    @property
    def name(self) -> str:
        return f"combined({','.join(reward.name for reward in self.reward_functions)})"

    def set_wandb_logger(self, logger: Any) -> None:
        super().set_wandb_logger(logger)
        for reward in self.reward_functions:
            reward.set_wandb_logger(logger)

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        parts = [reward(completions, **kwargs) for reward in self.reward_functions]
        totals = [sum(values) for values in zip(*parts, strict=True)] if parts else [0.0] * len(completions)
        if self.normalization == "sum":
            weights = sum(reward.weight for reward in self.reward_functions)
            return [total / weights for total in totals] if weights > 0 else totals
        if self.normalization == "minmax" and totals:
            low, high = min(totals), max(totals)
            return [(total - low) / (high - low) for total in totals] if high > low else totals
        return totals
