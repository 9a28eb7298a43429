"""The losses by name, each a pure function from per-token tensors to per-token losses, which are summed.

p is the learner's logprob of the target, q the sampler's (`logprobs`), A the advantage, r = exp(p - q). The
loss is always a sum over tokens and data, never a mean: for a mean, callers scale their weights or
advantages. The functions are differentiated by autograd. `trained_mask` tells beforehand which tokens can
have a gradient, so that the others cost no backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hermes.engine.model.lm_head import add_rows
from hermes.engine.types import EngineUserError, Loss

Inputs = Mapping[str, Tensor]
Config = Mapping[str, float]
PerToken = Callable[[Tensor, Inputs, Config], Tensor]


@dataclass(frozen=True, slots=True)
class LossKind:
    per_token: PerToken
    inputs: tuple[str, ...]
    """Required besides target_tokens, all shaped like it."""
    optional: tuple[str, ...] = ()
    config: Config = field(default_factory=dict)
    """The settings, with their defaults."""
    several_targets: bool = False
    """target_tokens may be (N, K)."""
    by_sequence: bool = False
    """A token's loss depends on the other tokens of its sequence."""
    ratio: Callable[[Tensor, Inputs], Tensor] | None = None
    """The importance ratio of the loss, for the metrics."""


def cross_entropy(p: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-p·w; linear in the weights, which may be any real numbers."""
    return -p * inputs["weights"]


def importance_sampling(p: Tensor, inputs: Inputs, config: Config) -> Tensor:
    return -token_ratio(p, inputs) * inputs["advantages"]


def ppo(p: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-min(r·A, clamp(r)·A)"""
    return _clipped(token_ratio(p, inputs), inputs, config)


def cispo(p: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-sg(clamp(r))·p·A"""
    low, high = _thresholds(inputs, config)
    return -torch.clamp(token_ratio(p.detach(), inputs), low, high) * p * inputs["advantages"]


def dro(p: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-(p·A - ½·beta·(p - q)²)"""
    drift = p - inputs["logprobs"]
    return 0.5 * config["beta"] * drift.square() - p * inputs["advantages"]


def gspo(p: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """ppo with the sequence's ratio s as value and the token's own p as gradient.

    log s is the mean of p - q where sequence_ratio_mask is not 0 (0 where it selects nothing).
    """
    return _clipped(sequence_ratio(p.detach(), inputs) * (p - p.detach()).exp(), inputs, config)


def token_ratio(p: Tensor, inputs: Inputs) -> Tensor:
    return (p - inputs["logprobs"]).exp()


def sequence_ratio(p: Tensor, inputs: Inputs) -> Tensor:
    """s at each token; `sequence` in the inputs numbers the sequences."""
    sequence = inputs["sequence"].long()
    mask = (inputs["sequence_ratio_mask"] != 0).float()
    # One element per token is always enough, and needs no synchronisation with the device.
    total, count = torch.zeros_like(p), torch.zeros_like(p)
    add_rows(total, sequence, (p - inputs["logprobs"]) * mask)
    add_rows(count, sequence, mask)
    return (total / count.clamp(min=1.0))[sequence].exp()


_RL = ("logprobs", "advantages")
_CLIPS = ("clip_low_threshold", "clip_high_threshold")

LOSSES: Mapping[str, LossKind] = {
    "cross_entropy": LossKind(cross_entropy, ("weights",), several_targets=True),
    "importance_sampling": LossKind(importance_sampling, _RL, ratio=token_ratio),
    "ppo": LossKind(ppo, _RL, _CLIPS, dict(zip(_CLIPS, (0.8, 1.2), strict=True)), ratio=token_ratio),
    "cispo": LossKind(cispo, _RL, _CLIPS, dict(zip(_CLIPS, (0.0, 4.0), strict=True)), ratio=token_ratio),
    "dro": LossKind(dro, _RL, (), {"beta": 0.05}, ratio=token_ratio),
    "gspo": LossKind(
        gspo,
        (*_RL, "sequence_ratio_mask"),
        _CLIPS,
        # The GSPO paper's 3e-4 below and 4e-4 above: a sequence's mean ratio moves far less than a token's.
        dict(zip(_CLIPS, (1.0 - 3e-4, 1.0 + 4e-4), strict=True)),
        by_sequence=True,
        ratio=sequence_ratio,
    ),
}


@dataclass(frozen=True, slots=True)
class ResolvedLoss:
    """A loss with its complete configuration."""

    name: str
    kind: LossKind
    config: Config


def resolve(loss: Loss) -> ResolvedLoss:
    """The loss with its defaults filled in. EngineUserError: unknown loss, or invalid setting."""
    if loss.name == "stable_reinforce":
        raise EngineUserError(
            "stable_reinforce is not supported: its formula is not public.",
            "Use ppo or cispo for the same purpose.",
        )
    kind = LOSSES.get(loss.name)
    if kind is None:
        raise EngineUserError(f"There is no loss '{loss.name}'.", f"Known losses: {', '.join(LOSSES)}.")
    config = dict(kind.config)
    for name, value in loss.config.items():
        if name not in config:
            settings = ", ".join(config) or "none"
            raise EngineUserError(f"{loss.name} has no setting '{name}'.", f"Its settings: {settings}.")
        if isinstance(value, str) or not np.isfinite(value):
            raise EngineUserError(f"{loss.name}: {name} must be a finite number, not {value!r}.")
        config[name] = float(value)
    low, high = (config.get(name, 0.0) for name in _CLIPS)
    if low < 0 or low > high or config.get("beta", 0.0) < 0:
        raise EngineUserError(
            f"{loss.name}: the settings {config} are invalid.", "0 ≤ clip_low ≤ clip_high, and beta ≥ 0."
        )
    return ResolvedLoss(loss.name, kind, config)


def trained_mask(name: str, inputs: Mapping[str, NDArray[np.generic]]) -> NDArray[np.bool_]:
    """Per position, whether the loss can have a gradient there."""
    if name == "cross_entropy":
        weights = inputs["weights"]
        weighted: NDArray[np.bool_] = (weights.reshape(len(weights), -1) != 0).any(axis=1)
        return weighted
    if name == "dro":
        return np.ones(len(inputs["advantages"]), dtype=bool)
    has_advantage: NDArray[np.bool_] = inputs["advantages"] != 0
    return has_advantage


def losses_and_derivative(kind: LossKind, p: Tensor, inputs: Inputs, config: Config) -> tuple[Tensor, Tensor]:
    """Per-token losses, and d loss / d p."""
    with torch.enable_grad():
        leaf = p.detach().requires_grad_()
        losses = kind.per_token(leaf, inputs, config)
        (derivative,) = torch.autograd.grad(losses.sum(), leaf)
    return losses.detach(), derivative


def ratio_metrics(kind: LossKind, p: Tensor, inputs: Inputs, config: Config) -> dict[str, Tensor]:
    """Per-token metrics of losses that have an importance ratio."""
    if kind.ratio is None:
        return {}
    ratio = kind.ratio(p, inputs)
    metrics = {"ratio": ratio, "logprob_gap": (p - inputs["logprobs"]).abs()}
    if "clip_low_threshold" in config:
        low, high = _thresholds(inputs, config)
        metrics["clip_fraction"] = ((ratio < low) | (ratio > high)).float()
    return metrics


def _clipped(ratio: Tensor, inputs: Inputs, config: Config) -> Tensor:
    low, high = _thresholds(inputs, config)
    advantages = inputs["advantages"]
    return -torch.minimum(ratio * advantages, torch.clamp(ratio, low, high) * advantages)


def _thresholds(inputs: Inputs, config: Config) -> tuple[Tensor, Tensor]:
    """The clip thresholds per token: from the inputs, or else from the configuration."""
    like = inputs["advantages"]
    low, high = (inputs[name] if name in inputs else torch.full_like(like, config[name]) for name in _CLIPS)
    return low, high
