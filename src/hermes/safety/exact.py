"""Shows a text to a person who decides about it: whole, and so that what is shown determines the text.

`exact` is injective; `restore` is its inverse. A character is shown as itself only if it is visible and
neither combines with its neighbours nor reorders them; every other one becomes `<U+XXXX>`, and so does the
`<` of a literal `<U+`. Spaces at the end of a line, and runs of spaces or empty lines that would push text
off the screen, become one escape with their number. Nothing is left out.

A letter of another script in an otherwise Latin word is escaped, and `foreign_characters` names the others:
some look like ASCII ones. Two whole words of different scripts that look alike differ only in that list.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0\U0001d159")
"""Letters and symbols without a glyph."""
_VISIBLE = ("L", "N", "P", "S")
_RIGHT_TO_LEFT = ("R", "AL", "AN")
_PIECE = re.compile(
    r"(?P<escape><(?=U\+)| +(?=\n|\Z)| {40,})|\n(?P<empty_lines>\n{4,})\n|(?P<word>\w+)|.", re.DOTALL
)
_ESCAPE = re.compile(r"<U\+([0-9A-F]{4,6})(?:\*(\d+))?>")
_MAX_NAMED = 12


def exact(text: str) -> str:
    """The text with everything invisible or ambiguous escaped."""
    return "".join(map(_show, _PIECE.finditer(text)))


def restore(escaped: str) -> str:
    """The text that `exact` shows like this."""

    def characters(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) * int(match[2] or 1)

    return _ESCAPE.sub(characters, escaped)


def foreign_characters(text: str) -> str:
    """Names the characters outside ASCII that `exact` shows as themselves; empty if there are none."""
    counts = Counter(char for char in _ESCAPE.sub("", exact(text)) if not char.isascii())
    if not counts:
        return ""
    if len(counts) <= _MAX_NAMED:
        names = [
            f"{char} is U+{ord(char):04X} {unicodedata.name(char, 'without a name')}"
            for char in sorted(counts)
        ]
        return f"not ASCII: {'; '.join(names)}"
    scripts = Counter({_script(char): 0 for char in counts})
    for char, count in counts.items():
        scripts[_script(char)] += count
    figures = ", ".join(f"{count} {script}" for script, count in scripts.most_common())
    return f"not ASCII: {counts.total()} characters ({figures})"


def block(text: str, width: int) -> list[str]:
    """The exact text as lines of at most `width` columns for a terminal.

    A line of the text begins with '| ', and what follows a line break made here with '+ ': no line of the
    text can pass for the question that follows.
    """
    room = max(width - 2, 10)
    lines: list[str] = []
    for line in exact(text).split("\n"):
        bar, row, columns = "| ", "", 0
        for char in line:
            size = 2 if unicodedata.east_asian_width(char) in "WF" else 1
            if columns + size > room:
                lines.append(bar + row)
                bar, row, columns = "+ ", "", 0
            row, columns = row + char, columns + size
        lines.append(bar + row)
    return lines


def _show(piece: re.Match[str]) -> str:
    text = piece[0]
    match piece.lastgroup:
        case "escape":
            return _escape(text)
        case "empty_lines":
            return f"\n{_escape(piece['empty_lines'])}\n"
        case "word":
            latin = any(char.isascii() and char.isalpha() for char in text)
            return "".join(char if _is_plain(char, latin) else _escape(char) for char in text)
        case _:
            return text if text == "\n" or _is_plain(text, in_latin_word=False) else _escape(text)


def _is_plain(char: str, in_latin_word: bool) -> bool:
    if char.isascii():
        return char.isprintable()
    if not unicodedata.category(char).startswith(_VISIBLE) or char in _BLANK:
        return False
    if unicodedata.bidirectional(char) in _RIGHT_TO_LEFT:
        return False
    if unicodedata.normalize("NFKC", char) != char:  # it looks like another one, often an ASCII one
        return False
    return not (in_latin_word and _script(char) != "LATIN")


def _script(char: str) -> str:
    return unicodedata.name(char, "UNNAMED").partition(" ")[0]


def _escape(run: str) -> str:
    number = f"*{len(run)}" if len(run) > 1 else ""
    return f"<U+{ord(run[0]):04X}{number}>"
