"""Makes text from models, tools and the web safe to display.

`printable` promises that its result cannot move the cursor, change the terminal's state, reorder the
displayed text or fail to encode: newline and tab are the only control characters left. It does not judge the
content. It drops terminal sequences with what they contain, so it is not for what a person decides about:
that is `safety.exact`.

`inert_json` is for a model that is shown the text of others as data. Many servers turn the text of a control
token (`<|im_end|>`, `</s>`, `[INST]`) into the token itself, wherever it stands, so that a graded answer
could end its own message and begin one of the system. `inert_json` spells no such token. It does not keep a
model from believing what the text says.
"""

from __future__ import annotations

import json
import re

from hermes.core import JSON

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]+[0-~]"  # character sets
    r"|\x1b[0-Z\\^_`a-~]"  # two-character escapes
)
_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but newline and tab, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, embeddings, overrides and isolates of direction
    "\u2028\u2029"  # line breaks that only some programs see
    "\ud800-\udfff"  # cannot be encoded
    "\ufff9-\ufffb\U000e0000-\U000e007f"  # interlinear annotation and tags: invisible text
    "]"
)
_SHORT = {"\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v", "\x1b": "\\e"}


def printable(text: str) -> str:
    """The text without terminal sequences; every other unsafe character becomes a visible escape."""
    if text.isprintable():
        return text
    return _UNSAFE.sub(_escape, _SEQUENCE.sub("", text.replace("\r\n", "\n")))


def visible(text: str) -> str:
    """The text with every unsafe character as a visible escape: for what a model is about to do, of which a
    terminal sequence and what it contains are a part."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def clip(text: str, max_chars: int) -> str:
    """At most `max_chars` characters: the text, or head and tail around the number of omitted ones."""
    if len(text) <= max_chars:
        return text
    room = max_chars - len(_left_out(len(text)))
    if room < 2:  # too short for the note
        return text[: max(max_chars - 1, 0)] + "…"[:max_chars]
    head, tail = room - room // 2, room // 2
    return text[:head] + _left_out(len(text) - room) + text[-tail:]


def _left_out(chars: int) -> str:
    return f" … [{chars} characters left out] … "


_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_CONTROL_START = re.compile(r"[<\ud800-\udfff\u2581\uff5c]|\[(?=/?[A-Za-z_]{2,40}\])")
"""Characters in or before control tokens, and halves of surrogate pairs, which cannot be sent."""


def inert_json(data: JSON) -> str:
    """JSON that parses to this data, without the text of a control token."""
    return _STRING.sub(_spell, json.dumps(data, ensure_ascii=False))


def _spell(string: re.Match[str]) -> str:
    return _CONTROL_START.sub(lambda match: f"\\u{ord(match[0]):04x}", string[0])
