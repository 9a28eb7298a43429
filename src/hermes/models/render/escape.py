"""Escapes special tokens in content, so that only those of the chat template are encoded as such.

Only the template may write special tokens. Where content contains the text of one (`<|im_end|>` in a web
page, say), a placeholder replaces it before the template runs and is replaced back afterwards. A `Rendered`
prompt records these spans; they are encoded as ordinary characters, so no content can end its own turn or
open another.

Pure functions; the tokenizer itself is used in `template`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from hermes.core import JSON

_FILL, _STOP = "\ue000", "\ue001"
"""Private-use characters around a placeholder's number."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the chat template renders it."""

    text: str
    literal_spans: tuple[tuple[int, int], ...] = ()
    """(start, end) of each special token's text that the template did not write."""

    @classmethod
    def join(cls, pieces: Iterable[tuple[str, bool]]) -> Rendered:
        """The inverse of `pieces`; empty pieces are dropped."""
        texts: list[str] = []
        spans: list[tuple[int, int]] = []
        size = 0
        for text, literal in pieces:
            if literal and text:
                spans.append((size, size + len(text)))
            texts.append(text)
            size += len(text)
        return cls("".join(texts), tuple(spans))

    def pieces(self, start: int = 0) -> Iterator[tuple[str, bool]]:
        """The text from `start` on as (text, whether special tokens in it are literal), none empty."""
        position = start
        for begin, end in self.literal_spans:
            if end <= start:
                continue
            if begin > position:
                yield self.text[position:begin], False
            yield self.text[max(begin, position) : end], True
            position = end
        if position < len(self.text):
            yield self.text[position:], False

    def continues(self, prefix: Rendered) -> bool:
        """True if this is `prefix` and possibly more."""
        size = len(prefix.text)
        return self.text.startswith(prefix.text) and prefix.literal_spans == tuple(
            span for span in self.literal_spans if span[0] < size
        )

    def after(self, start: int) -> Rendered:
        """The rest from `start` on, which is not within a literal span."""
        spans = ((begin - start, end - start) for begin, end in self.literal_spans if begin >= start)
        return Rendered(self.text[start:], tuple(spans))

    def __add__(self, suffix: Rendered) -> Rendered:
        size = len(self.text)
        shifted = tuple((start + size, end + size) for start, end in suffix.literal_spans)
        return Rendered(self.text + suffix.text, self.literal_spans + shifted)


def special_pattern(special_tokens: Iterable[str]) -> re.Pattern[str]:
    """Matches the text of any of the tokens, the longest one first."""
    longest_first = sorted(special_tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def literal(special: re.Pattern[str], text: str) -> Rendered:
    """A piece of content: every special token in its text is literal."""
    return Rendered(text, tuple(match.span() for match in special.finditer(text)))


class SpecialTokenEscaper:
    """Escapes the content of one conversation, and restores it in the text that the template made of it."""

    def __init__(self, special: re.Pattern[str], *contents: JSON) -> None:
        """`contents` is everything that the template will be given: no placeholder occurs in it."""
        self._special = special
        runs = re.findall(f"{_FILL}+", "\n".join(_strings(contents)))
        self._fill = _FILL * (1 + max(map(len, runs), default=0))
        self._originals: list[str] = []

    def escape(self, content: JSON) -> JSON:
        """The same JSON with a placeholder for every special token in its strings; keys are unchanged."""
        return _map_strings(content, lambda text: self._special.sub(self._placeholder, text))

    def restore(self, text: str) -> Rendered:
        """The rendered text with the original of each placeholder, as a literal span."""
        parts = re.split(f"{self._fill}([0-9]+){_STOP}", text)
        return Rendered.join(
            (self._originals[int(part)], True) if index % 2 else (part, False)
            for index, part in enumerate(parts)
        )

    def _placeholder(self, match: re.Match[str]) -> str:
        self._originals.append(match[0])
        return f"{self._fill}{len(self._originals) - 1}{_STOP}"


def _map_strings(value: JSON, change: Callable[[str], str]) -> JSON:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    if isinstance(value, Mapping):
        return {key: _map_strings(item, change) for key, item in value.items()}
    return value


def _strings(value: JSON) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
