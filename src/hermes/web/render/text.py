"""Text that models, tools and the web wrote, as HTML that cannot do anything.

`plain_html` and `ansi_html` escape everything; the only tags in their result are ours: spans for colours of a
terminal, for characters that would be invisible or reorder the line, for redacted secrets, and marks for
words that were searched. No attribute holds text of a trajectory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)([0-?]*)[ -/]*([@-~])"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]+[0-~]"
    r"|\x1b[0-Z\\^_`a-~]"
)
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2028\u2029\u2060-\u2069\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_REDACTED = re.compile(r"\[REDACTED:([A-Za-z0-9_.-]{1,80})\]")
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_MARK = re.compile(r"[^\W_]+", re.UNICODE)


class FoldedText(NamedTuple):
    """The part of a text that is shown at first."""

    text: str
    hidden_lines: int
    hidden_chars: int

    @property
    def folded(self) -> bool:
        return self.hidden_chars > 0


class _Style(NamedTuple):
    colour: str = ""
    bold: bool = False
    dim: bool = False

    def classes(self) -> str:
        names = [f"ansi-{self.colour}"] if self.colour else []
        names += ["ansi-bold"] if self.bold else []
        names += ["ansi-dim"] if self.dim else []
        return " ".join(names)


def fold(text: str, max_lines: int = 20, max_chars: int = 4000) -> FoldedText:
    """The first lines of a text, within both limits."""
    if len(text) <= max_chars and text.count("\n") < max_lines:
        return FoldedText(text, 0, 0)
    head = text[:max_chars]
    lines = head.split("\n")
    if len(lines) > max_lines:
        head = "\n".join(lines[:max_lines])
    return FoldedText(head, text.count("\n", len(head)), len(text) - len(head))


def plain_html(text: str, words: Sequence[str] = ()) -> Markup:
    """Escaped, with invisible characters made visible, redactions as chips and searched words marked."""
    pieces: list[str] = []
    position = 0
    for match in _REDACTED.finditer(text):
        pieces.append(_marked(text[position : match.start()], words))
        pieces.append(f'<span class="redacted" title="redacted">{escape(match[1])}</span>')
        position = match.end()
    pieces.append(_marked(text[position:], words))
    return Markup("".join(pieces))


def ansi_html(text: str, words: Sequence[str] = ()) -> Markup:
    """Like `plain_html`, with the colours that a terminal would show; other sequences are dropped."""
    if "\x1b" not in text and "\x9b" not in text:
        return plain_html(text, words)
    pieces: list[str] = []
    style = _Style()
    position = 0
    for match in _SEQUENCE.finditer(text):
        pieces.append(_styled(text[position : match.start()], style, words))
        position = match.end()
        if match[2] == "m":
            style = _next_style(style, match[1])
    pieces.append(_styled(text[position:], style, words))
    return Markup("".join(pieces))


def search_words(query: str) -> tuple[str, ...]:
    """The words of a search, as they are marked in a text."""
    return tuple(dict.fromkeys(word.lower() for word in _MARK.findall(query)))[:20]


def _styled(text: str, style: _Style, words: Sequence[str]) -> str:
    if not text:
        return ""
    classes = style.classes()
    inner = str(plain_html(text, words))
    return f'<span class="{classes}">{inner}</span>' if classes else inner


def _next_style(style: _Style, parameters: str) -> _Style:
    codes = [int(code) if code.isdigit() and len(code) < 4 else 0 for code in re.split("[;:]", parameters)]
    index = 0
    while index < len(codes):
        code = codes[index]
        if code in (38, 48):  # a colour by number: skipped with its arguments
            index += 3 if codes[index + 1 : index + 2] == [5] else 5
            continue
        if code == 0:
            style = _Style()
        elif code == 1:
            style = style._replace(bold=True)
        elif code == 2:
            style = style._replace(dim=True)
        elif code == 22:
            style = style._replace(bold=False, dim=False)
        elif code == 39:
            style = style._replace(colour="")
        elif 30 <= code <= 37:
            style = style._replace(colour=_COLOURS[code - 30])
        elif 90 <= code <= 97:
            style = style._replace(colour=_COLOURS[code - 90])
        index += 1
    return style


def _marked(text: str, words: Sequence[str]) -> str:
    if not words:
        return _visible(text)
    pattern = re.compile("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)), re.I)
    pieces: list[str] = []
    position = 0
    for match in pattern.finditer(text):
        pieces.append(_visible(text[position : match.start()]))
        pieces.append(f"<mark>{_visible(match[0])}</mark>")
        position = match.end()
    pieces.append(_visible(text[position:]))
    return "".join(pieces)


def _visible(text: str) -> str:
    escaped = str(escape(text.replace("\r\n", "\n")))
    return _UNSEEN.sub(_code_point, escaped)


def _code_point(match: re.Match[str]) -> str:
    return f'<span class="unseen">U+{ord(match[0]):04X}</span>'
