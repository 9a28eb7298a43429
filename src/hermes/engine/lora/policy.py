"""A policy: the base model, or one frozen version of an adapter."""

from __future__ import annotations

from dataclasses import dataclass

from hermes.engine.lora.weights import LoraWeights


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """Weights to sample from, which never change."""

    id: str | None
    """None: the base model."""
    weights: LoraWeights | None
    """fp32; None for the base model."""
    applied: LoraWeights | None
    """The same weights in the dtype of the base model."""
