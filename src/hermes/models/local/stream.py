"""Incremental detokenization: the text that can be displayed, and whether a stop string was reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
