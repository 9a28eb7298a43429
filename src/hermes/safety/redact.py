"""Replaces known secrets by their names before text is stored.

A secret is found verbatim and as a program may have encoded it: JSON-escaped (short escapes, `\\uXXXX`,
`\\/`, at any depth of nesting), escaped by a language or shell (`\\x41`, `\\101`), as HTML (`&#65;`),
URL-encoded (also twice), base64 and base32 (standard or URL-safe, at any offset in the encoded text, also
broken into lines) and hexadecimal (also with spaces, colons, commas, `0x` or `\\x` between the bytes). Line
breaks and terminal sequences inside it do not hide it. All forms of all secrets are one RE2 expression, so
the time is linear in the text. Unknown secrets are not found, nor are ones that were compressed, encrypted,
reversed, printed with other text between their parts (a hex dump over several rows) or encoded in another
way.

Serialised JSON stays valid JSON.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple, Protocol

from hermes.core import JSON

_MAX_MEM_BYTES = 1 << 30
"""Limit of RE2's tables, far above their size: if it were reached, RE2 would fall back to slow matching."""
_SHORT_ESCAPES = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_NAMED_ENTITIES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "(?:apos|#0*39)"}
_HEX_GAP = r"(?:[ :;,._\n-]{0,3}(?:\\+[nr])?(?:0[xX]|\\+[xX])?)"
_GAP = r"(?:(?:\\+[rn]|[\r\n\\])+[ \t]*|(?:(?:\x1b|\\+u001b)\[[0-9;]*[mK])+)?"
"""Text that may stand between two characters of a secret: a line break or colours, as it is or in JSON."""
_BASE32_BREAK = r"(?:\n|\\+n)?"
_BASE32_ANY = "[A-Za-z2-7]"
_BASE64_BREAK = r"(?:[\r\n]|\\+[rn])*"
_BASE64_CHARS = {"+": r"(?:[+-]|%2[bB]|\\+u002[bB])", "/": r"(?:\\*/|_|%2[fF]|\\+u002[fF])"}
_BASE64_ANY = f"(?:[A-Za-z0-9]|{_BASE64_CHARS['+']}|{_BASE64_CHARS['/']})"
_BASE64_PADDING = r"(?:=|%3[dD]|\\+u003[dD])*"

MARKER = "[REDACTED:"
"""How a replacement begins."""


class Redactor:
    """Replaces each known secret by `[REDACTED:NAME]`. Immutable, safe to share between threads."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """Maps names to values. The caller must leave out values shorter than 8 characters."""
        pairs = [(name, value) for name, value in secrets.items() if value]
        # If two secrets start at the same position, the longer one must match.
        pairs.sort(key=lambda pair: len(pair[1]), reverse=True)
        self._names = [re.sub(r"[^A-Za-z0-9_.-]", "_", name) for name, _ in pairs]
        self._values = [value for _, value in pairs]

    @property
    def has_secrets(self) -> bool:
        return bool(self._values)

    def text(self, text: str) -> str:
        """The text without the secrets. Idempotent."""
        redacted = self._replace(text)
        if redacted != text and _is_json(text) and not _is_json(redacted):
            # A match crossed JSON's punctuation: redact inside the values instead.
            values = json.loads(
                text, parse_int=_NumberText, parse_float=_NumberText, parse_constant=_NumberText
            )
            return json.dumps(self._json(values), ensure_ascii=False, separators=(",", ":"))
        return redacted

    def may_change(self, text: str) -> bool:
        """False only if nothing in the text, nor in any part of it, is a secret or the mark of one."""
        return (
            self.has_secrets
            and next(iter(self._pattern.finditer(text.encode("utf-8", "surrogatepass"))), None) is not None
        )

    def contains_secret(self, text: str) -> bool:
        return next(self._hits(text.encode("utf-8", "surrogatepass")), None) is not None

    def counts(self, text: str) -> dict[str, int]:
        """Occurrences of each secret, by name; only those that occur."""
        return dict(Counter(hit.name for hit in self._hits(text.encode("utf-8", "surrogatepass"))))

    def _replace(self, text: str) -> str:
        if not self._values:
            return text
        data = text.encode("utf-8", "surrogatepass")
        pieces: list[bytes] = []
        end = 0
        for hit in self._hits(data):
            pieces += (data[end : hit.start], f"[REDACTED:{hit.name}]".encode())
            end = hit.end
        if not pieces:
            return text
        return b"".join((*pieces, data[end:])).decode("utf-8", "surrogatepass")

    def _json(self, value: JSON) -> JSON:
        if isinstance(value, dict):
            return {self._replace(key): self._json(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._json(item) for item in value]
        if isinstance(value, _NumberText):
            redacted = self._replace(value)
            return json.loads(value) if redacted == value else redacted
        return self._replace(value) if isinstance(value, str) else value

    def _hits(self, data: bytes) -> Iterator[_Hit]:
        if not self._values:
            return
        for match in self._pattern.finditer(data):
            index = next(i for i, group in enumerate(match.groups()) if group is not None)
            if index:  # 0 is a marker that an earlier pass left
                yield _Hit(self._names[index - 1], match.start(), match.end())

    @cached_property
    def _pattern(self) -> _Pattern:
        import re2  # type: ignore[import-untyped]

        marker = "|".join(re.escape(f"[REDACTED:{name}]") for name in self._names)
        groups = [marker, *(_all_forms(value) for value in self._values)]
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1  # bytes, so that lone surrogates are accepted
        options.max_mem = _MAX_MEM_BYTES
        options.log_errors = False
        expression = "|".join(f"({group})" for group in groups)
        pattern: _Pattern = re2.compile(expression.encode("latin-1"), options)
        return pattern


class _NumberText(str):
    """A number of a JSON text as it is written there, `Infinity` and `NaN` included."""


class _Pattern(Protocol):
    """The part of RE2's interface used here; the package has no type hints of its own."""

    def finditer(self, text: bytes) -> Iterator[re.Match[bytes]]: ...


class _Hit(NamedTuple):
    name: str
    start: int
    """In bytes."""
    end: int


def _all_forms(value: str) -> str:
    """An expression for the secret in every encoding, over the Latin-1 reading of its UTF-8 bytes."""
    data = value.encode("utf-8", "surrogatepass")
    plain = _GAP.join(_char_form(char) for char in value)
    spaced_hex = _HEX_GAP.join(_hex_form(bytes([byte])) for byte in data)
    aligned = (_base64_form(data, before) for before in range(3))
    base32 = (_base32_form(data, before) for before in range(5))
    return "|".join((plain, spaced_hex, *aligned, *base32))


def _char_form(char: str) -> str:
    """One character as itself, escaped in JSON or encoded for a URL; neighbours may differ in form."""
    data = char.encode("utf-8", "surrogatepass")
    units = char.encode("utf-16-be", "surrogatepass")
    forms = [_literal(data), "".join(f"%(?:25)*{_hex_form(bytes([byte]))}" for byte in data)]
    forms.append("".join(rf"\\+u{_hex_form(units[i : i + 2])}" for i in range(0, len(units), 2)))
    forms.append("".join(rf"\\+(?:[xX]{_hex_form(bytes([byte]))}|0?{byte:03o})" for byte in data))
    forms.append(rf"&#(?:0*{ord(char)}|[xX]0*(?i:{ord(char):x}));?")
    if char in _NAMED_ENTITIES:
        forms.append(f"&{_NAMED_ENTITIES[char]};?")
    if char in _SHORT_ESCAPES:
        forms.append(rf"\\+{_SHORT_ESCAPES[char]}")
    if char in '"/':
        forms.append(rf"\\+{char}")
    elif char == "\\":
        forms.append(r"\\+")
    elif char == "\n":
        forms += [r"\r\n", r"\\+r\\+n"]
    elif char == " ":
        forms.append(r"\+")
    return f"(?:{'|'.join(forms)})"


def _hex_form(data: bytes) -> str:
    return f"(?i:{data.hex()})"


def _base64_form(data: bytes, before: int) -> str:
    """The secret inside a base64 text, `before` bytes after a multiple of three.

    Characters that also encode bits of a neighbour can be anything; they are redacted too.
    """
    text = base64.b64encode(bytes(before) + data).decode("ascii")
    start, shared_start = -(-before * 8 // 6), before * 8 % 6 != 0
    end, shared_end = (before + len(data)) * 8 // 6, (before + len(data)) * 8 % 6 != 0
    chars = [_BASE64_CHARS.get(char, char) for char in text[start:end]]
    if shared_start:
        chars[0] = f"{_BASE64_ANY}?{_BASE64_BREAK}{chars[0]}"
    if shared_end:
        chars.append(f"{_BASE64_ANY}?{_BASE64_PADDING}")
    return _BASE64_BREAK.join(chars)


def _base32_form(data: bytes, before: int) -> str:
    """The same in base32, `before` bytes after a multiple of five; in upper or lower case."""
    text = base64.b32encode(bytes(before) + data).decode("ascii")
    start, shared_start = -(-before * 8 // 5), before * 8 % 5 != 0
    end, shared_end = (before + len(data)) * 8 // 5, (before + len(data)) * 8 % 5 != 0
    chars = list(text[start:end])
    if shared_start:
        chars[0] = f"{_BASE32_ANY}?{_BASE32_BREAK}{chars[0]}"
    if shared_end:
        chars.append(f"{_BASE32_ANY}?=*")
    return f"(?i:{_BASE32_BREAK.join(chars)})"


def _literal(data: bytes) -> str:
    return "".join(chr(byte) if byte < 0x80 and chr(byte).isalnum() else f"\\x{byte:02x}" for byte in data)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
