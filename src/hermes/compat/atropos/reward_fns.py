"""Reward functions by name, as Atropos environments create them: `registry.create("accuracy", weight=2)`.

One score per completion. A function that cannot score raises, it never returns 0. The built-in ones are
those that public environments name; others are registered by an environment, or are modules on its path.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from hermes.envs.failures import GroupDroppedError
from hermes.envs.rewards.mathematics import MathGrader, final_answer
from hermes.errors import HermesError, UsageError


class RewardError(GroupDroppedError):
    """A reward function failed. That is not a score: the group is dropped and counted under `grader`."""

    def __init__(self, message: str) -> None:
        super().__init__("grader", message)


class RewardFunction(ABC):
    """Subclasses implement `compute`; calling the object applies the weight."""

    def __init__(self, weight: float = 1.0, name: str | None = None, **kwargs: Any) -> None:
        self.weight = weight
        self._name = name
        self.config = kwargs
        self.wandb_logger: Any = None

    @property
    def name(self) -> str:
        return self._name or type(self).__name__.lower()

    @abstractmethod
    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        """A score for each completion. References are keyword arguments, such as `solution`."""

    def __call__(self, completions: list[Any], **kwargs: Any) -> list[float]:
        rewards = self.checked(completions, **kwargs)
        weighted = [reward * self.weight for reward in rewards]
        if self.wandb_logger and rewards:
            self.log_metrics(rewards, weighted)
        return weighted

    def checked(self, completions: list[Any], **kwargs: Any) -> list[float]:
        """The unweighted scores; RewardError unless there is a finite one for each completion."""
        try:
            rewards = self.compute(completions, **kwargs)
            numbers = [float(reward) for reward in rewards]
        except HermesError:
            raise
        except Exception as error:  # the author's code can raise anything
            raise RewardError(f"the reward {self.name} failed: {type(error).__name__}: {error}") from error
        if len(numbers) != len(completions) or not all(map(math.isfinite, numbers)):
            raise RewardError(
                f"the reward {self.name} returned {numbers} for {len(completions)} completions."
            )
        return numbers

    def set_wandb_logger(self, logger: Any) -> None:
        self.wandb_logger = logger

    def log_metrics(self, raw_rewards: list[float], weighted_rewards: list[float]) -> None:
        self.wandb_logger.log(
            {
                f"reward/{self.name}/mean_raw": sum(raw_rewards) / len(raw_rewards),
                f"reward/{self.name}/mean_weighted": sum(weighted_rewards) / len(weighted_rewards),
                f"reward/{self.name}/min": min(raw_rewards),
                f"reward/{self.name}/max": max(raw_rewards),
            }
        )

    @staticmethod
    def get_content(completion: Any) -> str:
        """The assistant's text in a completion: text, a message, `{"message": …}`, or a list of messages."""
        if isinstance(completion, str):
            return completion
        if isinstance(completion, dict):
            completion = [completion.get("message", completion)]
        if isinstance(completion, list):
            for message in completion:
                if isinstance(message, dict) and message.get("role") == "assistant" and "content" in message:
                    return str(message["content"] or "")
        return ""


class FunctionReward(RewardFunction):
    """A plain function as a reward function; a single number applies to every completion."""

    def __init__(self, function: Callable[..., Any], weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(weight=weight, **kwargs)
        self.function = function

    @property
    def name(self) -> str:
        return self._name or self.function.__name__

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        result = self.function(completions, **kwargs)
        return result if isinstance(result, list) else [result] * len(completions)


def per_completion(value: Any, count: int) -> list[Any]:
    """A keyword argument as a list with one entry per completion; a single value applies to all."""
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise RewardError(f"{len(value)} solutions were given for {count} completions.")
    return value


_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)


class AccuracyReward(RewardFunction):
    """1 where the answer equals the solution in value: boxed, after ####, or plain."""

    def __init__(
        self,
        tolerance: float = 1e-6,
        split_on_think_tag: bool = True,
        max_boxed_threshold: int = 6,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.tolerance = tolerance
        self.split_on_think_tag = split_on_think_tag
        self.max_boxed_threshold = max_boxed_threshold
        """More boxes than this in one response are a list of guesses, and wrong."""
        self._grader: MathGrader | None = None

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        ground_truth = kwargs.get("ground_truth")
        expected = ground_truth if ground_truth is not None else kwargs.get("solution")
        if expected is None:
            raise RewardError("the accuracy reward was given no solution.")
        pairs = zip(completions, per_completion(expected, len(completions)), strict=True)
        return [float(self._is_right(self.get_content(completion), str(gold))) for completion, gold in pairs]

    def _is_right(self, text: str, gold: str) -> bool:
        response = text.rpartition("</think>")[2] if self.split_on_think_tag else text
        if response.count("\\boxed") > self.max_boxed_threshold:
            return False
        number, gold_number = _number(final_answer(response)), _number(final_answer(gold))
        if number is not None and gold_number is not None:
            return abs(number - gold_number) <= self.tolerance
        if self._grader is None:
            self._grader = MathGrader()
        return self._grader.grade(response, final_answer(gold)).success


def _number(text: str) -> float | None:
    try:
        return float(text.strip().rstrip(".").replace(",", "").removeprefix("$").rstrip("%"))
    except ValueError:
        return None


class FormatReasoningReward(RewardFunction):
    """The response is one block of thinking, then text."""

    def __init__(
        self,
        reward_value: float = 1.0,
        require_thinking: bool = True,
        require_response: bool = True,
        allow_multiple_thinking: bool = False,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.reward_value = reward_value
        self.require_thinking = require_thinking
        self.require_response = require_response
        self.allow_multiple_thinking = allow_multiple_thinking

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        return [self.reward_value if self._fits(text) else 0.0 for text in map(self.get_content, completions)]

    def _fits(self, text: str) -> bool:
        thoughts = _THOUGHT.findall(text)
        return (
            (bool(thoughts and thoughts[0].strip()) or not self.require_thinking)
            and (bool(_after_thinking(text)) or not self.require_response)
            and (len(thoughts) <= 1 or self.allow_multiple_thinking)
        )


def _after_thinking(text: str) -> str:
    return text.rpartition("</think>")[2].strip()


class AccuracyXReward(RewardFunction):
    """The response equals the solution, or contains it."""

    def __init__(
        self,
        exact_match: bool = False,
        case_sensitive: bool = False,
        reward_value: float = 1.0,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.exact_match = exact_match
        self.case_sensitive = case_sensitive
        self.reward_value = reward_value

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        if (solution := kwargs.get("solution")) is None:
            raise RewardError("the accuracy reward was given no solution.")
        pairs = zip(completions, per_completion(solution, len(completions)), strict=True)
        return [
            self.reward_value if self._matches(self.get_content(completion), gold) else 0.0
            for completion, gold in pairs
        ]

    def _matches(self, text: str, gold: Any) -> bool:
        solution = gold if isinstance(gold, str) else self.get_content(gold) or str(gold)
        response = _after_thinking(text)
        if not self.case_sensitive:
            solution, response = solution.lower(), response.lower()
        return response == solution if self.exact_match else solution in response


class R1Reward(RewardFunction):
    """The weighted sum of form and accuracy."""

    def __init__(
        self, format_weight: float = 0.5, accuracy_weight: float = 1.0, weight: float = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.format_weight = format_weight
        self.accuracy_weight = accuracy_weight
        self.format_reward_fn = FormatReasoningReward()
        self.accuracy_reward_fn = AccuracyXReward()

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        forms = self.format_reward_fn.compute(completions, **kwargs)
        accuracies = self.accuracy_reward_fn.compute(completions, **kwargs)
        return [
            form * self.format_weight + accuracy * self.accuracy_weight
            for form, accuracy in zip(forms, accuracies, strict=True)
        ]


class FormatReward(RewardFunction):
    """1 if the text has a closed pair of any of the tags, or, with `require_all_tags`, of all."""

    def __init__(
        self,
        preferred_tags: Sequence[str] | None = None,
        require_all_tags: bool = False,
        case_sensitive: bool = False,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.preferred_tags = list(preferred_tags or ("think", "answer"))
        self.require_all_tags = require_all_tags
        self.case_sensitive = case_sensitive

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        flags = re.DOTALL | (0 if self.case_sensitive else re.IGNORECASE)
        tags = [re.compile(f"<{re.escape(tag)}>.*?</{re.escape(tag)}>", flags) for tag in self.preferred_tags]
        combine = all if self.require_all_tags else any
        return [
            float(combine(tag.search(text) for tag in tags)) for text in map(self.get_content, completions)
        ]


class RewardRegistry:
    def __init__(self) -> None:
        self._registry: dict[str, Any] = {
            "accuracy": AccuracyReward,
            "combined": CombinedReward,
            "format": FormatReward,
            "r1": R1Reward,
        }

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
            self._registry[key] = self._load(key)
        return self._registry[name if name in self._registry else key]

    def list_registered(self) -> list[str]:
        return sorted(self._registry)

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

    def _load(self, name: str) -> Any:
        for path in (Path(f"{name}.py"), Path(f"{name}_reward.py")):
            spec = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
            if spec is not None:
                return _from_module(importlib.import_module(path.stem), name)
        raise UsageError(
            f"there is no reward function '{name}'.",
            f"There are: {', '.join(self.list_registered())}. Others must be registered first.",
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


registry = RewardRegistry()
