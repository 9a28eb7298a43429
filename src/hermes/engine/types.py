"""The engine's requests and results, as plain data over numpy.

Nothing here depends on torch, HTTP or files, so that training, sampling and the protocols can be tested
separately.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hermes.errors import HermesError

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

StopReason = Literal["stop", "length"]


class EngineUserError(HermesError):
    """The request is invalid; sending it again does not help."""


class NotFiniteError(EngineUserError):
    """The weights give logits that are not finite. Only the request fails."""

    def __init__(self) -> None:
        super().__init__(
            "These weights give logits that are not finite: nothing can be sampled or scored with them.",
            "Continue training from an earlier checkpoint with a lower learning rate.",
        )


class EngineCapacityError(HermesError):
    """The request does not fit into memory. Other requests are not affected."""


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """The size of an adapter and the parts that it trains. The scale is alpha / rank."""

    rank: int = 32
    alpha: float = 32.0
    seed: int | None = None
    """None: random."""
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True


@dataclass(frozen=True, slots=True)
class Datum:
    """One training sequence. Position i of `tokens` predicts position i of the targets."""

    tokens: Ints
    inputs: Mapping[str, NDArray[np.generic]]
    """Loss inputs by name (target_tokens, weights, logprobs, advantages, …), dense."""


@dataclass(frozen=True, slots=True)
class Loss:
    name: str
    config: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainOutput:
    logprobs: tuple[Floats, ...]
    """Per datum, shaped like its target_tokens, at temperature 1."""
    metrics: Mapping[str, float]
    """Keys are `name:reduction`; `loss:sum` is always present."""
    trained_tokens: int = 0
    """Over which the means are taken."""


@dataclass(frozen=True, slots=True)
class AdamParams:
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    """Decoupled, as in AdamW."""
    grad_clip_norm: float = 0.0
    """0: no clipping."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int | None = None
    """None: up to the context limit."""
    temperature: float = 1.0
    """0: always the most likely token."""
    top_k: int = -1
    """-1: all."""
    top_p: float = 1.0
    seed: int | None = None
    """None: random. Each sample of a request has its own seed, derived from this one."""
    stop: tuple[str, ...] | tuple[int, ...] | None = None
    """None: stop at end-of-sequence. (): stop only at max_tokens. Ids: stop at these. Texts: stop at these
    and at end-of-sequence. The match stays in the output."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    prompt: Ints
    params: SamplingParams = SamplingParams()
    num_samples: int = 1
    prompt_logprobs: bool = False
    prompt_logprobs_last_n: int | None = None
    """Only the last n positions are computed; the others are NaN."""
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: Ints | None = None
    """[len(prompt) - 1, K]: row i has the tokens to score at position i + 1; -1 skips."""
    prompt_alt_tokens_k: int = 0
    """Tokens to sample per prompt position, at the request's temperature."""
    on_token: Callable[[int, int, float], None] | None = None
    """Called as (sample index, token id, logprob) in the compute thread; must return at once."""


@dataclass(frozen=True, slots=True)
class TopK:
    """Row-major [length, k]; a missing entry is id 0 with logprob -99999."""

    ids: Ints
    logprobs: Floats


@dataclass(frozen=True, slots=True)
class SampledSequence:
    tokens: Ints
    logprobs: Floats
    """The sampled tokens' logprobs, under the distribution they were sampled from (temperature applied)."""
    stop_reason: StopReason
    topk: TopK | None = None


@dataclass(frozen=True, slots=True)
class SampleResult:
    sequences: tuple[SampledSequence, ...]
    prompt_logprobs: Floats | None = None
    """Length of the prompt; NaN where undefined. Temperature 1."""
    topk_prompt: TopK | None = None
    target_prompt_logprobs: Floats | None = None
    alt_tokens: TopK | None = None
    cached_tokens: int = 0
    """How many tokens of the prompt were in the prefix cache."""
    version: str = ""
    """The policy that sampled; empty for the base model."""
