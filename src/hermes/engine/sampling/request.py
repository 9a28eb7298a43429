"""Validates a sample request against the model and resolves its stops, seed and limits into a job.

Every invalid request is rejected here, before any work and in the caller's thread.
"""

from __future__ import annotations

import math
import secrets
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np

from hermes.engine.attention.kv_cache import slot_size
from hermes.engine.lora.weights import Policy
from hermes.engine.sampling.logits import derive_seed
from hermes.engine.sampling.prefix_cache import PrefixMatch
from hermes.engine.sampling.prompt_logprobs import PromptScores
from hermes.engine.sampling.stops import StopParser, Stops
from hermes.engine.types import (
    EngineUserError,
    Ints,
    SampledSequence,
    SampleRequest,
    SampleResult,
    SamplingParams,
)

MAX_SAMPLES = 4096
MAX_SCORES = 1 << 22
"""Numbers in one prompt's top-k, target or alternative logprobs."""


@dataclass(frozen=True, slots=True)
class SamplerLimits:
    vocab: int
    max_length: int
    """Longest sequence that can be trained."""
    kv_tokens: int
    """Size of the pool of keys and values."""

    @property
    def longest(self) -> int:
        """Longest sequence that can be sampled: it has to fit into the pool."""
        return min(self.max_length, self.kv_tokens)


@dataclass(slots=True, eq=False)
class SampleJob:
    """A request in progress. Only the compute thread changes it."""

    request: SampleRequest
    policy: Policy
    future: Future[SampleResult]
    prompt: Ints
    stops: Stops
    limit: int
    """Tokens to sample at most."""
    seed: int
    slot_size: int
    """Size of the slot that each sample needs."""
    scores: PromptScores | None
    started: int = 0
    """How many samples have been given a slot so far."""
    awaited: PrefixMatch | None = None
    """A prefix that another job computes, and that this one waits for."""
    cached_tokens: int = 0
    resolved: bool = False
    """Its future has a result or an exception, or was cancelled."""
    sequences: dict[int, SampledSequence] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The first position whose hidden state is needed; the tokens before it may come from the cache."""
        return self.scores.first if self.scores is not None and not self.started else len(self.prompt) - 1

    @property
    def complete(self) -> bool:
        return len(self.sequences) == self.request.num_samples

    def sample_seed(self, index: int) -> int:
        return derive_seed(self.seed, index)

    def result(self) -> SampleResult:
        result = SampleResult(
            sequences=tuple(self.sequences[index] for index in range(self.request.num_samples)),
            cached_tokens=self.cached_tokens,
            version=self.policy.id or "",
        )
        if self.scores is None:
            return result
        return replace(
            result,
            prompt_logprobs=self.scores.logprobs,
            topk_prompt=self.scores.topk,
            target_prompt_logprobs=self.scores.targets,
            alt_tokens=self.scores.alternatives,
        )


def parse_request(
    request: SampleRequest, policy: Policy, limits: SamplerLimits, stops: StopParser
) -> SampleJob:
    """The request as a job. EngineUserError: it is invalid."""
    prompt = _parse_prompt(request.prompt, limits)
    _check_params(request.params)
    _check_scores(request, len(prompt), limits.vocab)
    if not 1 <= request.num_samples <= MAX_SAMPLES:
        raise EngineUserError(f"num_samples is {request.num_samples}; it must be 1 to {MAX_SAMPLES}.")
    room = max(1, limits.longest - len(prompt))
    max_tokens = request.params.max_tokens
    limit = room if max_tokens is None else min(max_tokens, room)
    seed = request.params.seed if request.params.seed is not None else secrets.randbits(63)
    scored = (
        request.prompt_logprobs
        or request.topk_prompt_logprobs
        or request.prompt_alt_tokens_k
        or request.target_prompt_logprobs is not None
    )
    return SampleJob(
        request=request,
        policy=policy,
        future=Future(),
        prompt=prompt,
        stops=stops.parse(request.params.stop),
        limit=limit,
        seed=seed,
        # The last token too: the step in flight when a sequence ends writes its keys and values.
        slot_size=min(slot_size(len(prompt) + limit), limits.kv_tokens),
        scores=PromptScores(request, seed, limits.vocab) if scored else None,
    )


def _parse_prompt(prompt: Ints, limits: SamplerLimits) -> Ints:
    tokens = np.asarray(prompt)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise EngineUserError("The prompt must be a list of token ids.")
    if not len(tokens):
        raise EngineUserError("The prompt is empty.", "Send at least one token.")
    if len(tokens) > limits.longest:
        raise EngineUserError(
            f"The prompt has {len(tokens)} tokens, more than the context limit of {limits.longest}.",
            "The memory for keys and values is the limit: start the engine with more --kv-gib."
            if limits.kv_tokens < limits.max_length
            else "Shorten it.",
        )
    if int(tokens.min()) < 0 or int(tokens.max()) >= limits.vocab:
        raise EngineUserError(f"The prompt holds ids outside the vocabulary of {limits.vocab} tokens.")
    return np.ascontiguousarray(tokens, np.int64)


def _check_params(params: SamplingParams) -> None:
    if params.max_tokens is not None and params.max_tokens < 0:
        raise EngineUserError(f"max_tokens is {params.max_tokens}; it must be 0 or more.")
    if not math.isfinite(params.temperature) or params.temperature < 0:
        raise EngineUserError(f"temperature is {params.temperature}; it must be 0 or more.")
    if not 0 < params.top_p <= 1:
        raise EngineUserError(f"top_p is {params.top_p}; it must be over 0 and at most 1.")
    if params.top_k < -1:
        raise EngineUserError(f"top_k is {params.top_k}; it must be 1 or more, or -1 for all.")


def _check_scores(request: SampleRequest, size: int, vocab: int) -> None:
    last = request.prompt_logprobs_last_n
    if last is not None and not (request.prompt_logprobs and 1 <= last < max(size, 2)):
        raise EngineUserError(
            f"prompt_logprobs_last_n is {last}; it needs prompt_logprobs and must be 1 to {size - 1}."
        )
    widths = {
        "topk_prompt_logprobs": request.topk_prompt_logprobs,
        "topk_sample_logprobs": request.topk_sample_logprobs,
        "prompt_alt_tokens_k": request.prompt_alt_tokens_k,
    }
    targets = request.target_prompt_logprobs
    if targets is not None:
        _check_targets(targets, size, vocab)
        widths["target_prompt_logprobs"] = targets.shape[1]
    for name, width in widths.items():
        if width < 0 or (width > vocab and name != "prompt_alt_tokens_k"):
            raise EngineUserError(f"{name} is {width}; it must be 0 to {vocab}.")
        if width * size > MAX_SCORES:
            raise EngineUserError(
                f"{name} of {width} over {size} tokens is more than {MAX_SCORES} numbers.", "Request fewer."
            )


def _check_targets(targets: Ints, size: int, vocab: int) -> None:
    if targets.ndim != 2 or targets.dtype.kind not in "iu" or len(targets) != size - 1:
        raise EngineUserError(
            f"target_prompt_logprobs must be token ids of shape [{size - 1}, K], not {list(targets.shape)}."
        )
    if targets.size and (int(targets.min()) < -1 or int(targets.max()) >= vocab):
        raise EngineUserError(f"target_prompt_logprobs holds ids outside the vocabulary of {vocab} tokens.")
