"""Reward functions by name, as Atropos environments create them: `registry.create("accuracy", weight=2)`."""

from hermes.compat.atropos.reward_fns.function import RewardError, RewardFunction
from hermes.compat.atropos.reward_fns.registry import CombinedReward, RewardRegistry, registry

__all__ = ["CombinedReward", "RewardError", "RewardFunction", "RewardRegistry", "registry"]
