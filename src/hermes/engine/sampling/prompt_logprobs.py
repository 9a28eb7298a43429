"""Scores of a prompt's own tokens and of others in their place, gathered while the prompt is computed.

Logits are made for a few positions at a time, from the first one that anybody asked about, and only the
numbers asked for are kept. Everything is at temperature 1; alternatives are drawn at the request's
temperature and reported with the model's own logprob.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from hermes.engine.sampling.logits import Draws, choose, derive_seed
from hermes.engine.types import Floats, Ints, NotFiniteError, SampleRequest, TopK

_LOGITS = 1 << 24
"""How many logits lie in memory at once."""

_EMPTY = -99999.0


class PromptScores:
    """`first` is the first position whose hidden state is needed; position p scores the token at p + 1."""

    def __init__(self, request: SampleRequest, seed: int, vocab: int) -> None:
        size = len(request.prompt)
        self._request = request
        self._seed = seed
        self._rows = max(1, _LOGITS // vocab)
        self._from = max(1, size - request.prompt_logprobs_last_n) if request.prompt_logprobs_last_n else 1
        self.first = self._first_position(size)
        plain = request.prompt_logprobs
        self.logprobs = np.full(size, np.nan, np.float32) if plain else None
        self.topk = _empty(size, request.topk_prompt_logprobs)
        targets = request.target_prompt_logprobs
        self.targets = None if targets is None else np.zeros(targets.shape, np.float32)
        self.alternatives = _empty(size - 1, request.prompt_alt_tokens_k)

    def _first_position(self, size: int) -> int:
        request = self._request
        firsts = [size - 1]
        if request.prompt_logprobs or request.topk_prompt_logprobs:
            firsts.append(self._from - 1)
        if request.target_prompt_logprobs is not None:
            named = np.flatnonzero((request.target_prompt_logprobs >= 0).any(axis=1))
            firsts.extend(named[:1].tolist())
        if request.prompt_alt_tokens_k:
            firsts.append(0)
        return min(firsts)

    def add(self, position: int, hidden: Tensor, logits_of: Callable[[Tensor], Tensor]) -> None:
        """The hidden states [rows, hidden] of the positions from `position` on. Raises if they give NaN."""
        rows = min(len(hidden), len(self._request.prompt) - 1 - position)
        for start in range(0, rows, self._rows):
            self._score(position + start, logits_of(hidden[start : min(rows, start + self._rows)]))

    def _score(self, position: int, logits: Tensor) -> None:
        request = self._request
        here = slice(position, position + len(logits))
        after = slice(position + 1, position + 1 + len(logits))
        whole = logits.logsumexp(-1, keepdim=True)
        if not bool(whole.isfinite().all()):
            raise NotFiniteError
        seen = np.arange(after.start, after.stop) >= self._from
        if self.logprobs is not None:
            ids = _on(logits, request.prompt[after])[:, None]
            self.logprobs[after] = np.where(seen, _host(logits.gather(1, ids) - whole)[:, 0], np.nan)
        if self.topk is not None:
            best = torch.topk(logits, request.topk_prompt_logprobs, dim=-1)
            self.topk.ids[after] = np.where(seen[:, None], _host(best.indices), 0)
            self.topk.logprobs[after] = np.where(seen[:, None], _host(best.values - whole), _EMPTY)
        if self.targets is not None and request.target_prompt_logprobs is not None:
            ids = _on(logits, request.target_prompt_logprobs[here])
            found = logits.gather(1, ids.clamp_min(0)) - whole
            self.targets[here] = _host(found.masked_fill(ids < 0, 0.0))
        if self.alternatives is not None:
            self._draw(here, logits, whole, self.alternatives)

    def _draw(self, here: slice, logits: Tensor, whole: Tensor, into: TopK) -> None:
        rows, temperature = len(logits), self._request.params.temperature
        for index in range(self._request.prompt_alt_tokens_k):
            draws = Draws(
                seeds=torch.full((rows,), derive_seed(self._seed, -1 - index), device=logits.device),
                counts=torch.arange(here.start, here.stop, device=logits.device),
                temperature=torch.full((rows,), temperature, device=logits.device),
                top_k=torch.zeros(rows, dtype=torch.int64, device=logits.device),
                top_p=torch.ones(rows, device=logits.device),
                greedy=temperature <= 0,
                filtered=False,
            )
            tokens, _ = choose(logits.clone(), draws)
            into.ids[here, index] = _host(tokens)
            into.logprobs[here, index] = _host(logits.gather(1, tokens[:, None]) - whole)[:, 0]


def _empty(rows: int, width: int) -> TopK | None:
    if not width:
        return None
    return TopK(np.zeros((rows, width), np.int64), np.full((rows, width), _EMPTY, np.float32))


def _on(like: Tensor, ids: Ints) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(ids)).to(like.device)


def _host(values: Tensor) -> Floats:
    array: Floats = values.cpu().numpy()
    return array
