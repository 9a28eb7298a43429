"""Generation token by token: prefill, sampling, and the logprob of each sampled token.

Logprobs are the model's own, at temperature 1 and before top-k and top-p, because that is what a trainer
recomputes. Tokens are sampled from the distribution that the sampling parameters describe.

The same prompt and seed give the same tokens, whatever the previous requests were: prompts are prefilled in
chunks at fixed positions, and only whole chunks of the last prompt are reused, so the arithmetic never
differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
    from transformers.cache_utils import Cache

CHUNK = 256


class GenerationCancelledError(Exception):
    """Raised in the worker thread when the request was cancelled."""


@dataclass(frozen=True, slots=True)
class TokenSampling:
    """Sampling parameters of a request, all of them set."""

    temperature: float
    """0: always the most likely."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    seed: int = 0


class DecodedToken(NamedTuple):
    id: int
    logprob: float


class Decoder:
    """One model, one conversation at a time. Not thread-safe: its owner has one worker."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._cache: Cache | None = None
        self._cached_ids: tuple[int, ...] = ()
        """The prompt that `_cache` begins with."""
        self.reused_tokens = 0
        """Tokens of the last prompt that were already in the cache."""

    def sample(
        self, prompt_ids: Sequence[int], choice: TokenSampling, cancelled: Callable[[], bool]
    ) -> Iterator[DecodedToken]:
        """Samples tokens indefinitely; the caller stops iterating."""
        import torch

        device = self._model.device
        generator = torch.Generator(device=device).manual_seed(choice.seed)
        logits = self._prefill(tuple(prompt_ids), cancelled)
        while True:
            token = choose(logits, choice, generator)
            yield DecodedToken(token, float(torch.log_softmax(logits, dim=-1)[token]))
            if cancelled():
                raise GenerationCancelledError
            logits = self._forward([token])

    def _prefill(self, prompt_ids: tuple[int, ...], cancelled: Callable[[], bool]) -> torch.Tensor:
        self.reused_tokens = start = self._rewind(prompt_ids)
        self._cached_ids = prompt_ids[:start]
        while True:
            if cancelled():
                raise GenerationCancelledError
            logits = self._forward(prompt_ids[start : start + CHUNK])
            start += CHUNK
            self._cached_ids = prompt_ids[:start]
            if start >= len(prompt_ids):
                return logits

    def _rewind(self, prompt_ids: tuple[int, ...]) -> int:
        """Truncates the cache to the whole chunks shared with `prompt_ids`; returns how many tokens."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        cache = self._cache
        keep = _shared_chunks(self._cached_ids, prompt_ids)
        if keep and cache is not None and all(type(layer) is DynamicLayer for layer in cache.layers):
            cache.crop(keep - cache.get_seq_length())
            return keep
        self._cache = DynamicCache(config=self._model.config)
        return 0

    def _forward(self, ids: Sequence[int]) -> torch.Tensor:
        """The next token's logits in float32, after `ids`."""
        import torch

        try:
            with torch.inference_mode():
                batch = torch.tensor([list(ids)], device=self._model.device)
                output = self._model(batch, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
                logits: torch.Tensor = output.logits[0, -1].float()
        except RuntimeError:
            self._cached_ids = ()  # some layers may have advanced further than others
            raise
        return logits


def choose(logits: torch.Tensor, choice: TokenSampling, generator: torch.Generator) -> int:
    """Samples one token from the logits over the vocabulary."""
    import torch

    if choice.temperature == 0:
        return int(logits.argmax())
    scaled = logits / choice.temperature
    if 0 < choice.top_k < scaled.numel():
        scaled = scaled.masked_fill(scaled < scaled.topk(choice.top_k).values[-1], float("-inf"))
    if choice.top_p < 1:
        ordered, indices = scaled.sort(descending=True)
        probabilities = ordered.softmax(dim=-1)
        beyond = probabilities.cumsum(dim=-1) - probabilities >= choice.top_p
        scaled = scaled.index_fill(0, indices[beyond], float("-inf"))
    return int(torch.multinomial(scaled.softmax(dim=-1), 1, generator=generator))


def _shared_chunks(cached: tuple[int, ...], prompt_ids: tuple[int, ...]) -> int:
    """The length of the common prefix in whole chunks; at least one token is left to prefill."""
    keep = 0
    while keep + CHUNK < len(prompt_ids) and cached[keep : keep + CHUNK] == prompt_ids[keep : keep + CHUNK]:
        keep += CHUNK
    return keep
