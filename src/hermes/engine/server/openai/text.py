"""Text to token ids and back, with the tokenizer and chat template of the served model.

A stop token or stop string is not part of a response's text; its ids are part of the response's token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hermes.core import JSONObject, Message
from hermes.engine.sampling.stops import token_bytes
from hermes.engine.server.openai.backend import SamplingBackend
from hermes.engine.server.openai.errors import OpenAIRequestError, invalid_request
from hermes.engine.types import Floats, SampledSequence, TopK
from hermes.errors import HermesError
from hermes.models.base import ChatRequest
from hermes.models.render.escape import Rendered
from hermes.models.render.template import encode
from hermes.models.tokens.tokenizer import open_tokenizer_if_any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hermes.models.render.chat import ChatRenderer

MAX_PROMPTS = 2048
"""In one request."""
_MAX_TEXT_CHARS = 16 << 20
"""The length of the prompts of one request, which the event loop tokenises."""
_MAX_CHARS_PER_TOKEN = 64
_EMPTY_LOGPROB = -99999.0
"""Logprob of an empty cell in a `TopK`."""
_MIN_LOGPROB = -9999.0


class RenderedPrompt(NamedTuple):
    ids: list[int]
    thinking: bool
    """The template opened the thinking block that the response begins in."""


@dataclass(frozen=True, slots=True)
class StopCondition:
    """The conditions that end the samples of one request, besides their length."""

    texts: tuple[str, ...]
    ids: frozenset[int]

    def cut(self, text: str) -> str:
        """The text before the first stop string in it."""
        starts = [start for stop in self.texts if (start := text.find(stop)) >= 0]
        return text[: min(starts)] if starts else text

    def matched(self, sequence: SampledSequence, text: str) -> int | str | None:
        """The token id or the string that ended the sequence; None: its length did."""
        if sequence.stop_reason == "length":
            return None
        last = int(sequence.tokens[-1])
        return last if last in self.ids else next((stop for stop in self.texts if stop in text), last)


class Detokenizer:
    """Belongs to the event loop: a tokenizer is used by one thread at a time."""

    def __init__(self, engine: SamplingBackend, parser: str) -> None:
        self._engine = engine
        self._parser = parser
        self._tokenizer = open_tokenizer_if_any(engine.tokenizer_dir)

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """OpenAIRequestError: the model has none."""
        if self._tokenizer is None:
            raise invalid_request("this model has no tokenizer: use /generate with token ids")
        return self._tokenizer

    @cached_property
    def chat_renderer(self) -> ChatRenderer:
        """OpenAIRequestError: the model has no chat template."""
        from hermes.models.render.chat import ChatRenderer

        try:
            return ChatRenderer.of(self.tokenizer, self._parser, self._engine.spec.max_length)
        except HermesError as error:
            raise invalid_request(error.message) from error

    @cached_property
    def _bytes(self) -> tuple[bytes, ...]:
        return token_bytes(self.tokenizer, self._engine.spec.vocab)

    def render_chat(
        self, messages: Sequence[Message], tools: Sequence[JSONObject], settings: JSONObject
    ) -> RenderedPrompt:
        """`settings` are variables of the template. OpenAIRequestError: the template rejects the messages."""
        try:
            rendered = self.chat_renderer.render(ChatRequest(tuple(messages), tuple(tools)), {}, settings)
        except HermesError as error:
            raise invalid_request(error.message, "messages") from error
        self._check_length(rendered.text)
        return RenderedPrompt(encode(self.tokenizer, rendered), rendered.text.rstrip().endswith("<think>"))

    def encode_opening(self, text: str, thinking: bool) -> list[int]:
        """The ids of the beginning of an answer; `thinking`: after a block that is still open."""
        if not text:
            return []
        return list(encode(self.tokenizer, Rendered(f"\n</think>\n\n{text}" if thinking else text)))

    def encode_prompts(
        self, prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """One prompt or a list of them as token ids. OpenAIRequestError: none, or too many."""
        if is_single_prompt(prompt):
            return [self._encode(prompt)]  # type: ignore[arg-type]
        if not 1 <= len(prompt) <= MAX_PROMPTS:
            raise invalid_request(
                f"a request has from 1 to {MAX_PROMPTS} prompts, this one has {len(prompt)}", "prompt"
            )
        if sum(len(text) for text in prompt if isinstance(text, str)) > _MAX_TEXT_CHARS:
            raise invalid_request(f"the prompts have more than {_MAX_TEXT_CHARS} characters", "prompt")
        return [self._encode(text_or_ids) for text_or_ids in prompt]  # type: ignore[arg-type]

    def _encode(self, prompt: str | Sequence[int]) -> list[int]:
        """A text is one that the client has templated: special tokens in it are parsed."""
        if isinstance(prompt, str):
            self._check_length(prompt)
            return list(self.tokenizer(prompt, verbose=False)["input_ids"])
        return list(prompt)

    def _check_length(self, text: str) -> None:
        """OpenAIRequestError: no tokenizer could fit the text into the context."""
        max_length = self._engine.spec.max_length
        if len(text) > _MAX_CHARS_PER_TOKEN * max_length:
            raise OpenAIRequestError(
                400,
                f"the prompt has {len(text)} characters, too much for a context of {max_length} tokens",
                code="context_length_exceeded",
            )

    def text(self, ids: Sequence[int], stop: StopCondition, *, special: bool) -> str:
        """The text up to the stop; with `special`, special tokens are part of it."""
        return stop.cut(self.decode(ids, stop, special=special))

    def decode(self, ids: Sequence[int], stop: StopCondition, *, special: bool) -> str:
        """The text of all tokens but a final stop token, including a stop string."""
        ids = list(ids[:-1] if ids and ids[-1] in stop.ids else ids)
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:  # transformers' wrapper around it doubles the cost
            return str(backend.decode(ids, skip_special_tokens=not special))
        return str(
            self.tokenizer.decode(ids, skip_special_tokens=not special, clean_up_tokenization_spaces=False)
        )

    def incremental(self, stop: StopCondition, *, special: bool) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(self.tokenizer, stop, special=special)

    def token_text(self, token: int) -> str:
        return self._bytes[token].decode("utf-8", "replace")

    def logprob_entry(self, token: int, logprob: float) -> JSONObject:
        """A token in the form of OpenAI's chat logprobs."""
        return {
            "token": self.token_text(token),
            "logprob": finite_logprob(logprob),
            "bytes": list(self._bytes[token]),
        }


class IncrementalDetokenizer:
    """The text of a sequence while it is sampled."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: StopCondition, *, special: bool) -> None:
        from tokenizers.decoders import DecodeStream

        self._backend = tokenizer.backend_tokenizer
        self._decoder = DecodeStream(skip_special_tokens=not special)
        self._stop = stop
        self._text = ""

    def push(self, token: int) -> str:
        """Adds a token; returns the text that no later token can change."""
        if token not in self._stop.ids:
            self._text += self._decoder.step(self._backend, token) or ""
        cut = self._stop.cut(self._text)
        return cut if cut != self._text else stable_prefix(self._text, self._stop.texts)


def is_single_prompt(prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]) -> bool:
    return isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], int))


def stable_prefix(text: str, marks: Sequence[str]) -> str:
    """The text without an end that may become one of the marks."""
    return text[: len(text) - max((_overlap(text, mark) for mark in marks), default=0)]


def _overlap(text: str, mark: str) -> int:
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(mark[:size])), 0)


def top_logprobs(sequence: SampledSequence, position: int, count: int) -> list[tuple[int, float]]:
    """The likeliest tokens at a position with their logprobs; empty if the request has no `topk`."""
    return top_of(sequence.topk, position, count)


def top_of(topk: TopK | None, position: int, count: int) -> list[tuple[int, float]]:
    """The same of a prompt's or a sample's table."""
    if topk is None:
        return []
    ids, logprobs = topk.ids[position, :count], topk.logprobs[position, :count]
    pairs = zip(ids.tolist(), logprobs.tolist(), strict=True)
    return [(token, logprob) for token, logprob in pairs if logprob > _EMPTY_LOGPROB]


def finite_logprob(logprob: float) -> float:
    """JSON has no infinity: -inf becomes the value that other servers send."""
    return max(float(logprob), _MIN_LOGPROB)


def finite_logprobs(logprobs: Floats) -> list[float]:
    """`finite_logprob` of each."""
    values: list[float] = np.maximum(logprobs, _MIN_LOGPROB).tolist()
    return values
