"""The base of reward functions: one score per completion. One that cannot score raises, never returns 0."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from hermes.envs.failures import GroupDroppedError
from hermes.errors import HermesError


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
