"""Reward functions by name: those made here, those an environment registers, and files beside it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from hermes.compat.atropos.reward_fns.function import FunctionReward, RewardFunction
from hermes.errors import UsageError

_BUILT_IN = {
    "accuracy": "maths:AccuracyReward",
    "cascading_r1_math": "maths:CascadingR1MathReward",
    "chandas_meter": "meter:ChandasMeterReward",
    "combined": "combined:CombinedReward",
    "cosine_scaled": "similarity:CosineScaledReward",
    "crossword_format": "text:CrosswordFormatReward",
    "format": "text:FormatReward",
    "r1": "maths:R1Reward",
    "reasoning_steps": "text:ReasoningStepsReward",
    "repetition_penalty": "repetition:RepetitionPenaltyReward",
}


class RewardRegistry:
    def __init__(self) -> None:
        self._registry: dict[str, Any] = {}

    def register(self, cls: Any = None, name: str | None = None) -> Any:
        """A decorator, with or without a name; else the class's in lower case, without 'reward'."""

        def add(made: Any) -> Any:
            if not inspect.isclass(made) or not issubclass(made, RewardFunction):
                raise TypeError(f"{made} is not a RewardFunction")
            self._registry[(name or made.__name__).lower().removesuffix("reward").rstrip("_")] = made
            return made

        return add if cls is None else add(cls)

    def register_function(self, name: str, function: Callable[..., Any]) -> None:
        self._registry[name] = function

    def create(self, name_or_config: str | dict[str, Any], **kwargs: Any) -> RewardFunction:
        """By name, or by `{"type": name, "params": {…}, …}`; keywords are what the config does not say."""
        if isinstance(name_or_config, str):
            wanted, options = name_or_config, kwargs
        else:
            config = dict(name_or_config)
            wanted, params = config.pop("type"), config.pop("params", {})
            options = {**kwargs, **config, **params}
        made = self.get(wanted)
        if not inspect.isclass(made):
            return FunctionReward(made, **options)
        return cast(RewardFunction, made(**options))

    def get(self, name: str) -> Any:
        """The class or function of a name, loaded if need be."""
        key = name.removesuffix("_reward")
        if name not in self._registry and key not in self._registry:
            self._registry[key] = _load(key)
        return self._registry[name if name in self._registry else key]

    def list_registered(self) -> list[str]:
        return sorted({*self._registry, *_BUILT_IN})

    def load_required_functions(self, config: Any) -> set[str]:
        """Loads every reward function that a config's datasets or its own lists name."""
        listed: list[Any] = []
        for place in (config, *(getattr(config, "datasets", None) or ())):
            for field in ("reward_functions", "reward_funcs", "dataset_reward_funcs"):
                listed += getattr(place, field, None) or ()
            for kind in getattr(place, "types", None) or ():
                listed += kind.get("reward_funcs", ())
        names = {one if isinstance(one, str) else one["type"] for one in listed}
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
        f"Known: {', '.join(sorted(_BUILT_IN))}; or register it first.",
    )


def _from_module(module: Any, name: str) -> Any:
    for value in vars(module).values():
        own = inspect.isclass(value) and value.__module__ == module.__name__
        if own and issubclass(value, RewardFunction):
            return value
    for attribute in (name, f"{name}_reward"):
        if callable(function := getattr(module, attribute, None)):
            return function
    raise UsageError(f"{module.__file__} has no reward function '{name}'.")


registry = RewardRegistry()
