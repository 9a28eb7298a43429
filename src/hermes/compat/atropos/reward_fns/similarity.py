"""Semantic similarity of a text and a solution, by the embeddings of a small model."""

from __future__ import annotations

from typing import Any

from hermes.compat.atropos.reward_fns.function import RewardError, RewardFunction, per_completion
from hermes.errors import ConfigError


class CosineScaledReward(RewardFunction):
    """1 - cosine distance * `scale_factor`, clamped to the two bounds."""

    def __init__(
        self,
        model_name: str | None = None,
        scale_factor: float = 1.0,
        min_reward: float = -1.0,
        max_reward: float = 1.0,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.model_name = model_name or "sentence-transformers/all-MiniLM-L6-v2"
        self.scale_factor = scale_factor
        self.min_reward = min_reward
        self.max_reward = max_reward
        self._loaded: tuple[Any, Any] | None = None

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        if not (solution := kwargs.get("solution")):
            raise RewardError("the cosine_scaled reward was given no solution.")
        pairs = zip(completions, per_completion(solution, len(completions)), strict=True)
        return [
            self._score(self.get_content(completion), self.get_content(gold)) for completion, gold in pairs
        ]

    def _score(self, text: str, gold: str) -> float:
        import torch

        if not text.strip():
            return self.min_reward
        similarity = torch.nn.functional.cosine_similarity(self._embed(text), self._embed(gold), dim=0)
        return min(self.max_reward, max(self.min_reward, 1.0 - (1.0 - float(similarity)) * self.scale_factor))

    def _embed(self, text: str) -> Any:
        """The mean of the last layer over the tokens."""
        import torch

        tokenizer, model = self._load()
        encoded = tokenizer(text, return_tensors="pt", truncation=True, max_length=512)
        with torch.no_grad():
            return model(**encoded).last_hidden_state[0].mean(dim=0)

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            from transformers import AutoModel, AutoTokenizer

            try:
                self._loaded = (
                    AutoTokenizer.from_pretrained(self.model_name),
                    AutoModel.from_pretrained(self.model_name).eval(),
                )
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"the embedding model '{self.model_name}' cannot be loaded: {str(error).splitlines()[0]}",
                    "Give model_name a model that is on this machine.",
                ) from error
        return self._loaded
