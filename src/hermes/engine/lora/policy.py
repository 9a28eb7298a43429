"""The weights that sample: the base model, or one frozen version of an adapter."""

from __future__ import annotations

from dataclasses import dataclass

from hermes.engine.lora.weights import LoraWeights


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """Weights to sample from, which never change."""

    id: str | None
    """None: the base model."""
    weights: LoraWeights | None
    """fp32; None: the base model's own."""
    applied: LoraWeights | None
    """The same in the dtype of the base model."""
