"""A model in memory, and how it generates one answer; without threads or time limits of its own.

Tools are offered and calls are parsed as text in the `hermes` format, even if the chat template supports
tools.

It generates token by token: prefill, sampling, and the logprob of each sampled token. Logprobs are the
model's own, at temperature 1 and before top-k and top-p, because that is what a trainer recomputes. Tokens
are sampled from the distribution that the sampling parameters describe.

The same prompt and seed give the same tokens, whatever the previous requests were: prompts are prefilled in
chunks at fixed positions, and only whole chunks of the last prompt are reused, so the arithmetic never
differs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hermes.core import JSONObject, Message, Role, Sampling, TokenTrace, Usage
from hermes.errors import ContextOverflowError, ProviderError
from hermes.models.base import ChatRequest
from hermes.models.local.bundled import read_manifest
from hermes.models.local.torch_threads import import_torch
from hermes.models.parsers import get_parser
from hermes.models.render.escape import Rendered
from hermes.models.render.prompting import with_tools
from hermes.models.render.template import encode, render_chat, result_role, seen_thinking
from hermes.models.tokens.tokenizer import open_tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
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


DEFAULT_MAX_TOKENS = 512
"""Longest answer, in tokens, if the request sets no limit."""

PARSER = get_parser("hermes")
CALL_MARK = "<tool_call>"


@dataclass(frozen=True, slots=True)
class LocalReply:
    """The result of one request."""

    message: Message
    finish_reason: str
    """stop, length or tool_calls."""
    tokens: TokenTrace
    usage: Usage
    raw: JSONObject
    """The text as generated, and the sampling parameters as they were applied."""
    first_token_at: float
    """By time.perf_counter."""
    seen: tuple[Message, ...] | None
    """See `ChatReply`."""


@dataclass(frozen=True)
class LocalModel:
    name: str
    tokenizer: PreTrainedTokenizerBase
    decoder: Decoder
    context_tokens: int
    end_ids: frozenset[int]
    default: TokenSampling
    """The sampling parameters of the model's generation config."""
    result_role: Role
    """The role of tool results that are written out as text."""
    policy_version: str | None
    """Identifies the weights; None for a folder that Hermes did not create."""

    def generate(
        self, request: ChatRequest, cancelled: Callable[[], bool], on_text: Callable[[str], None]
    ) -> LocalReply:
        """The answer to `request`; `on_text` is called with text to display. GenerationCancelledError."""

        def prompt(messages: tuple[Message, ...]) -> Rendered:
            plain = with_tools(messages, request.tools, PARSER, self.result_role)
            return render_chat(self.tokenizer, plain)

        prompt_ids = encode(self.tokenizer, prompt(request.messages))
        longest = min(request.sampling.max_tokens or DEFAULT_MAX_TOKENS, self._room(prompt_ids))
        parameters = self._parameters(request.sampling)
        stream = TextStream(self.tokenizer, request.sampling.stop, CALL_MARK)
        sampled: list[DecodedToken] = []
        first_token_at = 0.0
        ended = False
        for token in self.decoder.sample(prompt_ids, parameters, cancelled):
            first_token_at = first_token_at or time.perf_counter()
            sampled.append(token)
            if token.id not in self.end_ids:
                on_text(stream.push(token.id))
            ended = token.id in self.end_ids or stream.stopped
            if ended or len(sampled) == longest:
                break
        on_text(stream.finish())
        parsed = PARSER.parse(stream.text, request.tools)
        return LocalReply(
            message=Message.assistant(
                parsed.content, reasoning=parsed.reasoning, tool_calls=parsed.tool_calls
            ),
            finish_reason="length" if not ended else "tool_calls" if parsed.tool_calls else "stop",
            tokens=self._trace(prompt_ids, sampled),
            usage=self._usage(prompt_ids, sampled),
            raw={"text": stream.text, "sampling": {**asdict(parameters), "max_tokens": longest}},
            first_token_at=first_token_at,
            seen=seen_thinking(request.messages, prompt),
        )

    def _room(self, prompt_ids: Sequence[int]) -> int:
        used, limit = len(prompt_ids), self.context_tokens
        if used >= limit:
            raise ContextOverflowError(
                f"the conversation has {used} tokens, and {self.name} holds {limit} with its answer.",
                "Start a new conversation, offer fewer tools, or use a model with a longer context.",
            )
        return limit - used

    def _parameters(self, sampling: Sampling) -> TokenSampling:
        """The request's sampling parameters; where unset, those of the model's generation config."""
        default = self.default
        return TokenSampling(
            temperature=default.temperature if sampling.temperature is None else sampling.temperature,
            top_p=default.top_p if sampling.top_p is None else sampling.top_p,
            top_k=default.top_k if sampling.top_k is None else sampling.top_k,
            seed=int.from_bytes(os.urandom(4), "big") if sampling.seed is None else sampling.seed,
        )

    def _trace(self, prompt_ids: Sequence[int], sampled: Sequence[DecodedToken]) -> TokenTrace:
        return TokenTrace(
            prompt_ids=tuple(prompt_ids),
            sampled_ids=tuple(token.id for token in sampled),
            logprobs=tuple(token.logprob for token in sampled),
            policy_version=self.policy_version,
        )

    def _usage(self, prompt_ids: Sequence[int], sampled: Sequence[DecodedToken]) -> Usage:
        reused = self.decoder.reused_tokens
        return Usage(
            input_tokens=len(prompt_ids) - reused, cached_input_tokens=reused, output_tokens=len(sampled)
        )


def load(name: str, folder: Path, version: str | None = None) -> LocalModel:
    """Loads a transformers folder into memory; `name` is for messages, `version` for the records of calls."""
    import_torch()
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    on_gpu = torch.cuda.is_available()
    try:
        tokenizer = open_tokenizer(folder)
        model = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype="auto" if on_gpu else torch.float32
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ProviderError(
            f"the model in {folder} cannot be loaded: {error}", "Delete the folder if Hermes made it."
        ) from error
    if not tokenizer.chat_template:
        raise ProviderError(f"the model in {folder} has no chat template.", "Use a model made for chat.")
    model.to("cuda" if on_gpu else "cpu").eval()  # type: ignore[arg-type]
    return LocalModel(
        name=name,
        tokenizer=tokenizer,
        decoder=Decoder(model),
        context_tokens=model.config.max_position_embeddings,
        end_ids=_end_ids(model.generation_config, tokenizer),
        default=_default_sampling(model.generation_config),
        result_role=result_role(tokenizer),
        policy_version=version or _policy_version(name, folder),
    )


def _end_ids(config: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    configured = config.eos_token_id if config.eos_token_id is not None else []
    ids = {tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])}
    return frozenset(index for index in ids if index is not None)


def _default_sampling(config: GenerationConfig) -> TokenSampling:
    if not config.do_sample:
        return TokenSampling(temperature=0.0)
    return TokenSampling(
        temperature=1.0 if config.temperature is None else config.temperature,
        top_p=1.0 if config.top_p is None else config.top_p,
        top_k=config.top_k or 0,
    )


def _policy_version(name: str, folder: Path) -> str | None:
    manifest = read_manifest(folder)
    return f"{name}@{manifest['files']['model.safetensors']['sha256'][:16]}" if manifest else None


class TextStream:
    """The text of an answer while it is being generated.

    `text` is everything decoded so far, cut before the first stop string. What `push` and `finish` return is
    for display: it withholds text that may become a stop string, and tool calls entirely.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str], call_mark: str) -> None:
        from tokenizers.decoders import DecodeStream

        self._backend = tokenizer.backend_tokenizer
        self._decoder = DecodeStream(skip_special_tokens=False)
        self._stops = tuple(stop for stop in stops if stop)
        self._marks = (*self._stops, call_mark)
        self._displayed = 0
        self.text = ""
        self.stopped = False
        """True once a stop string was reached."""

    def push(self, token: int) -> str:
        """Adds a token; returns the text that can be displayed now."""
        self.text += self._decoder.step(self._backend, token) or ""
        starts = [start for stop in self._stops if (start := self.text.find(stop)) >= 0]
        if starts:
            self.text, self.stopped = self.text[: min(starts)], True
            return self.finish()
        return self._display(self._safe_length())

    def finish(self) -> str:
        """Returns the withheld text that is no stop string and no call."""
        call_start = self.text.find(self._marks[-1])
        return self._display(len(self.text) if call_start < 0 else call_start)

    def _display(self, length: int) -> str:
        piece = self.text[self._displayed : length]
        self._displayed = max(self._displayed, length)
        return piece

    def _safe_length(self) -> int:
        call_start = self.text.find(self._marks[-1])
        if call_start >= 0:
            return call_start
        return len(self.text) - max(_overlap(self.text, mark) for mark in self._marks)


def _overlap(text: str, mark: str) -> int:
    """How much of the text's end is a beginning of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(mark[:size])), 0)
