"""From words to tokens and back, with the served model's own tokenizer and template.

What ended an answer (an end token, a stop text) is not in its text; its ids are among the token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hermes.core import JSONObject, Message
from hermes.engine.sampling.stops import token_bytes
from hermes.engine.server.openai.backend import SamplingBackend
from hermes.engine.server.openai.errors import wrong
from hermes.engine.types import Floats, SampledSequence
from hermes.errors import HermesError
from hermes.models.base import ChatRequest
from hermes.models.render.template import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hermes.models.render.chat import ChatRenderer


_EMPTY_CELL = -99999.0
"""Logprob of a place among the likeliest that no token has."""
_LEAST = -9999.0


class RenderedPrompt(NamedTuple):
    ids: list[int]
    thinking: bool
    """The template has opened the thinking that the answer begins with."""


@dataclass(frozen=True, slots=True)
class StopCondition:
    """What ends an answer of one request."""

    texts: tuple[str, ...]
    ids: frozenset[int]

    def cut(self, text: str) -> str:
        """The text before the first stop text in it."""
        places = [place for stop in self.texts if (place := text.find(stop)) >= 0]
        return text[: min(places)] if places else text

    def matched(self, sequence: SampledSequence, text: str) -> int | str | None:
        """The id or the text that ended it; None: its length did."""
        if sequence.stop_reason == "length":
            return None
        last = int(sequence.tokens[-1])
        return last if last in self.ids else next((stop for stop in self.texts if stop in text), last)


class Detokenizer:
    """Belongs to the event loop: a tokenizer is used by one thread at a time."""

    def __init__(self, engine: SamplingBackend, parser: str) -> None:
        self._engine = engine
        self._parser = parser
        self._tokenizer = _load_tokenizer(engine.tokenizer_dir)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Problem: the model comes without one."""
        if self._tokenizer is None:
            raise wrong("this model has no tokenizer: send and read token ids, over /generate")
        return self._tokenizer

    @cached_property
    def speech(self) -> ChatRenderer:
        """Problem: the model is not made for chat."""
        from hermes.models.render.chat import ChatRenderer

        try:
            return ChatRenderer.of(self.tokenizer, self._parser, self._engine.spec.max_length)
        except HermesError as error:
            raise wrong(error.message) from error

    @cached_property
    def _bytes(self) -> tuple[bytes, ...]:
        return token_bytes(self.tokenizer, self._engine.spec.vocab)

    def chat_prompt(
        self, messages: Sequence[Message], tools: Sequence[JSONObject], settings: JSONObject
    ) -> RenderedPrompt:
        """`settings` are the template's own. Problem: the model's template refuses the conversation."""
        try:
            rendered = self.speech.render(ChatRequest(tuple(messages), tuple(tools)), {}, settings)
        except HermesError as error:
            raise wrong(error.message, "messages") from error
        return RenderedPrompt(encode(self.tokenizer, rendered), rendered.text.rstrip().endswith("<think>"))

    def encode(self, text: str) -> list[int]:
        """As a text that the client has templated itself: control tokens in it count."""
        return list(self.tokenizer(text, verbose=False)["input_ids"])

    def text(self, ids: Sequence[int], ending: StopCondition, *, special: bool) -> str:
        """What an answer says; with `special`, control tokens within it are shown."""
        return ending.cut(self.decode(ids, ending, special=special))

    def decode(self, ids: Sequence[int], ending: StopCondition, *, special: bool) -> str:
        """The same with the stop text, and all that came with it."""
        said = ids[:-1] if ids and ids[-1] in ending.ids else ids
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:  # what transformers does around it costs as much again
            return str(backend.decode(list(said), skip_special_tokens=not special))
        return str(
            self.tokenizer.decode(
                list(said), skip_special_tokens=not special, clean_up_tokenization_spaces=False
            )
        )

    def words(self, ids: Sequence[int], ending: StopCondition, *, special: bool) -> str:
        """Like `decode`; empty where the model has no words for its tokens."""
        return "" if self._tokenizer is None else self.decode(ids, ending, special=special)

    def text_so_far(self, ending: StopCondition, *, special: bool) -> IncrementalDetokenizer | None:
        """None where the model has no words for its tokens."""
        return (
            None
            if self._tokenizer is None
            else IncrementalDetokenizer(self._tokenizer, ending, special=special)
        )

    def piece(self, token: int) -> str:
        return self._bytes[token].decode("utf-8", "replace")

    def entry(self, token: int, logprob: float) -> dict[str, Any]:
        """A token as chat logprobs name it."""
        return {"token": self.piece(token), "logprob": finite(logprob), "bytes": list(self._bytes[token])}


class IncrementalDetokenizer:
    """The text of an answer in the making."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, ending: StopCondition, *, special: bool) -> None:
        from tokenizers.decoders import DecodeStream

        self._backend = tokenizer.backend_tokenizer
        self._decoder = DecodeStream(skip_special_tokens=not special)
        self._ending = ending
        self._text = ""

    def push(self, token: int) -> str:
        """Adds a token; returns the text that no later token can change."""
        if token not in self._ending.ids:
            self._text += self._decoder.step(self._backend, token) or ""
        cut = self._ending.cut(self._text)
        return cut if cut != self._text else held_back(self._text, self._ending.texts)


def _load_tokenizer(source: str) -> PreTrainedTokenizerBase | None:
    from transformers import AutoTokenizer

    try:
        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError):
        return None
    return found


def held_back(text: str, marks: Sequence[str]) -> str:
    """The text without what may become one of the marks at its end."""
    return text[: len(text) - max((_overlap(text, mark) for mark in marks), default=0)]


def alternatives(sequence: SampledSequence, at: int, count: int) -> list[tuple[int, float]]:
    """The likeliest tokens at a position with their logprobs; none if they were not asked for."""
    if sequence.topk is None:
        return []
    pairs = zip(
        sequence.topk.ids[at, :count].tolist(), sequence.topk.logprobs[at, :count].tolist(), strict=True
    )
    return [(token, logprob) for token, logprob in pairs if logprob > _EMPTY_CELL]


def finite(logprob: float) -> float:
    """JSON has no infinity: what cannot happen is as unlikely as other servers say it is."""
    return max(float(logprob), _LEAST)


def finite_all(logprobs: Floats) -> list[float]:
    """The same for many."""
    found: list[float] = np.maximum(logprobs, _LEAST).tolist()
    return found


def _overlap(text: str, mark: str) -> int:
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(mark[:size])), 0)
