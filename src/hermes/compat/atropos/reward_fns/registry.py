"""Reward functions by name: built-in ones, those an environment registers, and modules on its path."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from hermes.compat.atropos.reward_fns.function import FunctionReward, RewardFunction
from hermes.errors import UsageError

_BUILT_IN = {
    "accuracy": "maths:AccuracyReward",
    "cascading_r1_math": "maths:CascadingR1MathReward",
    "chandas_meter": "text:ChandasMeterReward",
    "combined": "registry:CombinedReward",
    "cosine_scaled": "text:CosineScaledReward",
    "crossword_format": "text:CrosswordFormatReward",
    "format": "text:FormatReward",
    "r1": "maths:R1Reward",
    "reasoning_steps": "text:ReasoningStepsReward",
    "repetition_penalty": "text:RepetitionPenaltyReward",
}


class RewardRegistry:
    def __init__(self) -> None:
        self._registry: dict[str, Any] = {}

    def register(self, cls: Any = None, name: str | None = None) -> Any:
        """A decorator. The default name is the class's in lower case, without 'reward'."""

        def add(reward: Any) -> Any:
            if not inspect.isclass(reward) or not issubclass(reward, RewardFunction):
                raise TypeError(f"{reward} is not a RewardFunction")
            self._registry[(name or reward.__name__).lower().removesuffix("reward").rstrip("_")] = reward
            return reward

        return add if cls is None else add(cls)

    def register_function(self, name: str, function: Callable[..., Any]) -> None:
        self._registry[name] = function

    def create(self, name_or_config: str | dict[str, Any], **kwargs: Any) -> RewardFunction:
        """By name, or by `{"type": name, "params": {…}, …}`; keywords are defaults for the config."""
        if isinstance(name_or_config, str):
            name, options = name_or_config, kwargs
        else:
            config = dict(name_or_config)
            name, params = config.pop("type"), config.pop("params", {})
            options = {**kwargs, **config, **params}
        reward = self.get(name)
        if not inspect.isclass(reward):
            return FunctionReward(reward, **options)
        return cast(RewardFunction, reward(**options))

    def get(self, name: str) -> Any:
        """The class or function of a name, imported on first use."""
        key = name.removesuffix("_reward")
        if name not in self._registry and key not in self._registry:
            self._registry[key] = _load(key)
        return self._registry[name if name in self._registry else key]

    def list_registered(self) -> list[str]:
        return sorted({*self._registry, *_BUILT_IN})

    def load_required_functions(self, config: Any) -> set[str]:
        """Imports every reward function that a config or its datasets name."""
        listed: list[Any] = []
        for section in (config, *(getattr(config, "datasets", None) or ())):
            for field in ("reward_functions", "reward_funcs", "dataset_reward_funcs"):
                listed += getattr(section, field, None) or ()
            for kind in getattr(section, "types", None) or ():
                listed += kind.get("reward_funcs", ())
        names = {entry if isinstance(entry, str) else entry["type"] for entry in listed}
        for name in names:
            self.get(name)
        return names


def _load(name: str) -> Any:
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return getattr(importlib.import_module(f"hermes.compat.atropos.reward_fns.{module}"), attribute)
    for path in (Path(f"{name}.py"), Path(f"{name}_reward.py")):
        spec = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
        if spec is not None:
            return _from_module(importlib.import_module(path.stem), name)
    raise UsageError(
        f"there is no reward function '{name}'.",
        f"Built in: {', '.join(sorted(_BUILT_IN))}. Others must be registered first.",
    )


def _from_module(module: Any, name: str) -> Any:
    for value in vars(module).values():
        defined_here = inspect.isclass(value) and value.__module__ == module.__name__
        if defined_here and issubclass(value, RewardFunction):
            return value
    for attribute in (name, f"{name}_reward"):
        if callable(function := getattr(module, attribute, None)):
            return function
    raise UsageError(f"{module.__file__} has no reward function '{name}'.")


registry = RewardRegistry()


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
