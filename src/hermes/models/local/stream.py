"""Turning sampled ids into text as they come: what may be shown, and whether a stop string was reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextStream:
    """The text of an answer in the making.

    `text` is everything decoded so far, cut before the first stop string. What `push` and `finish` return is
    for display: it holds back what may become a stop string, and a tool call altogether.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str], call_mark: str) -> None:
        from tokenizers.decoders import DecodeStream

        self._backend = tokenizer.backend_tokenizer
        self._decoder = DecodeStream(skip_special_tokens=False)
        self._stops = tuple(stop for stop in stops if stop)
        self._marks = (*self._stops, call_mark)
        self._shown = 0
        self.text = ""
        self.stopped = False
        """True once a stop string was reached."""

    def push(self, token: int) -> str:
        """Adds a token; returns what can be shown now."""
        self.text += self._decoder.step(self._backend, token) or ""
        places = [place for stop in self._stops if (place := self.text.find(stop)) >= 0]
        if places:
            self.text, self.stopped = self.text[: min(places)], True
            return self.finish()
        return self._show(self._safe_length())

    def finish(self) -> str:
        """Returns what was held back and turned out to be text."""
        place = self.text.find(self._marks[-1])
        return self._show(len(self.text) if place < 0 else place)

    def _show(self, length: int) -> str:
        piece = self.text[self._shown : length]
        self._shown = max(self._shown, length)
        return piece

    def _safe_length(self) -> int:
        place = self.text.find(self._marks[-1])
        if place >= 0:
            return place
        held = max(_overlap(self.text, mark) for mark in self._marks)
        return len(self.text) - held


def _overlap(text: str, mark: str) -> int:
    """How much of the text's end is a beginning of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(mark[:size])), 0)
