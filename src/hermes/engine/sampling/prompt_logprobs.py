"""Logprobs of a prompt's tokens, and of other tokens in their positions, collected during prefill.

Logits are computed for a few positions at a time, starting at the first one that was requested, and only the
requested numbers are stored. Everything is at temperature 1; alternatives are sampled at the request's
temperature and reported with their logprob at temperature 1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from hermes.engine.sampling.logits import SamplingTensors, derive_seed, sample_tokens
from hermes.engine.types import Floats, Ints, NotFiniteError, SampleRequest, TopK

_MAX_LOGITS = 1 << 24
"""How many logits are in memory at once."""

_MISSING_LOGPROB = -99999.0


class PromptScores:
    """The scores of one request. The hidden state of position p scores the token at p + 1."""

    def __init__(self, request: SampleRequest, seed: int, vocab: int) -> None:
        size = len(request.prompt)
        self._request = request
        self._seed = seed
        self._rows = max(1, _MAX_LOGITS // vocab)
        self._first_token = (
            max(1, size - request.prompt_logprobs_last_n) if request.prompt_logprobs_last_n else 1
        )
        self.first = self._first_position(size)
        """The first position whose hidden state is needed."""
        self.logprobs = np.full(size, np.nan, np.float32) if request.prompt_logprobs else None
        self.topk = _empty(size, request.topk_prompt_logprobs)
        targets = request.target_prompt_logprobs
        self.targets = None if targets is None else np.zeros(targets.shape, np.float32)
        self.alternatives = _empty(size - 1, request.prompt_alt_tokens_k)

    def _first_position(self, size: int) -> int:
        request = self._request
        firsts = [size - 1]
        if request.prompt_logprobs or request.topk_prompt_logprobs:
            firsts.append(self._first_token - 1)
        if request.target_prompt_logprobs is not None:
            with_targets = np.flatnonzero((request.target_prompt_logprobs >= 0).any(axis=1))
            firsts.extend(with_targets[:1].tolist())
        if request.prompt_alt_tokens_k:
            firsts.append(0)
        return min(firsts)

    def add(self, position: int, hidden: Tensor, logits_of: Callable[[Tensor], Tensor]) -> None:
        """Scores the positions from `position` on, with hidden states [rows, hidden].

        NotFiniteError: they give NaN.
        """
        rows = min(len(hidden), len(self._request.prompt) - 1 - position)
        for start in range(0, rows, self._rows):
            self._score(position + start, logits_of(hidden[start : min(rows, start + self._rows)]))

    def _score(self, position: int, logits: Tensor) -> None:
        request = self._request
        positions = slice(position, position + len(logits))
        scored = slice(position + 1, position + 1 + len(logits))
        lse = logits.logsumexp(-1, keepdim=True)
        if not bool(lse.isfinite().all()):
            raise NotFiniteError
        requested = np.arange(scored.start, scored.stop) >= self._first_token
        if self.logprobs is not None:
            ids = _to_device(logits, request.prompt[scored])[:, None]
            self.logprobs[scored] = np.where(requested, _to_host(logits.gather(1, ids) - lse)[:, 0], np.nan)
        if self.topk is not None:
            best = torch.topk(logits, request.topk_prompt_logprobs, dim=-1)
            self.topk.ids[scored] = np.where(requested[:, None], _to_host(best.indices), 0)
            self.topk.logprobs[scored] = np.where(
                requested[:, None], _to_host(best.values - lse), _MISSING_LOGPROB
            )
        if self.targets is not None and request.target_prompt_logprobs is not None:
            ids = _to_device(logits, request.target_prompt_logprobs[positions])
            logprobs = logits.gather(1, ids.clamp_min(0)) - lse
            self.targets[positions] = _to_host(logprobs.masked_fill(ids < 0, 0.0))
        if self.alternatives is not None:
            self._sample_alternatives(positions, logits, lse, self.alternatives)

    def _sample_alternatives(self, positions: slice, logits: Tensor, lse: Tensor, out: TopK) -> None:
        rows, temperature = len(logits), self._request.params.temperature
        for index in range(self._request.prompt_alt_tokens_k):
            sampling = SamplingTensors(
                seeds=torch.full((rows,), derive_seed(self._seed, -1 - index), device=logits.device),
                counts=torch.arange(positions.start, positions.stop, device=logits.device),
                temperature=torch.full((rows,), temperature, device=logits.device),
                top_k=torch.zeros(rows, dtype=torch.int64, device=logits.device),
                top_p=torch.ones(rows, device=logits.device),
                greedy=temperature <= 0,
                filtered=False,
            )
            tokens, _ = sample_tokens(logits.clone(), sampling)
            out.ids[positions, index] = _to_host(tokens)
            out.logprobs[positions, index] = _to_host(logits.gather(1, tokens[:, None]) - lse)[:, 0]


def _empty(rows: int, width: int) -> TopK | None:
    if not width:
        return None
    return TopK(np.zeros((rows, width), np.int64), np.full((rows, width), _MISSING_LOGPROB, np.float32))


def _to_device(device_of: Tensor, ids: Ints) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(ids)).to(device_of.device)


def _to_host(values: Tensor) -> Floats:
    array: Floats = values.cpu().numpy()
    return array
