"""Known secrets do not survive, in whatever form a program may have written them."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus, unquote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hermes.safety.redact import Redactor

Encode = Callable[[str], str]


def _utf8(text: str) -> bytes:
    return text.encode("utf-8")


def _lower_hex(quoted: str) -> str:
    out = list(quoted)
    for i, char in enumerate(quoted):
        if char == "%":
            out[i + 1 : i + 3] = quoted[i + 1 : i + 3].lower()
    return "".join(out)


ENCODINGS: dict[str, Encode] = {
    "raw": lambda s: s,
    "json": lambda s: json.dumps(s),
    "json unicode": lambda s: json.dumps(s, ensure_ascii=False),
    "json escaped slash": lambda s: json.dumps(s).replace("/", "\\/"),
    "json all escaped": lambda s: (
        "".join(f"\\u{ord(c):04X}" for c in s if ord(c) < 0x10000) if s.isascii() else s
    ),
    "json in json": lambda s: json.dumps(json.dumps({"k": s})),
    "json three deep": lambda s: json.dumps(json.dumps(json.dumps([s]))),
    "quote": lambda s: quote(s, safe=""),
    "quote keeping slashes": lambda s: quote(s),
    "quote lower": lambda s: _lower_hex(quote(s, safe="")),
    "quote plus": lambda s: quote_plus(s),
    "quote twice": lambda s: quote(quote(s, safe=""), safe=""),
    "quote every byte": lambda s: "".join(f"%{byte:02X}" for byte in _utf8(s)),
    "base64": lambda s: base64.b64encode(_utf8(s)).decode(),
    "base64 urlsafe": lambda s: base64.urlsafe_b64encode(_utf8(s)).decode(),
    "base64 unpadded": lambda s: base64.urlsafe_b64encode(_utf8(s)).decode().rstrip("="),
    "base64 after one byte": lambda s: base64.b64encode(b"x" + _utf8(s) + b"y").decode(),
    "base64 after two bytes": lambda s: base64.b64encode(b"xy" + _utf8(s) + b"z").decode(),
    "base64 urlsafe after one": lambda s: base64.urlsafe_b64encode(b"\xff" + _utf8(s) + b"\xff").decode(),
    "base64 in lines": lambda s: base64.encodebytes(b"a" * 50 + _utf8(s) + b"b" * 60).decode(),
    "base64 in lines in json": lambda s: json.dumps(base64.encodebytes(b"a" * 49 + _utf8(s)).decode()),
    "base64 in a url": lambda s: quote(base64.b64encode(_utf8(s)).decode(), safe=""),
    "base64 in json, slashes escaped": lambda s: base64.b64encode(_utf8(s)).decode().replace("/", "\\/"),
    "hex": lambda s: _utf8(s).hex(),
    "hex upper": lambda s: _utf8(s).hex().upper(),
}

# No markup characters that would make the marker itself part of a secret.
secret_text = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs",), exclude_characters="\r"), min_size=8, max_size=60
).filter(lambda s: len(set(s)) > 3 and "REDACT" not in s)
plain_text = st.text(st.characters(codec="utf-8"), max_size=40)


@pytest.mark.parametrize("name", ENCODINGS)
@given(secret=secret_text, before=plain_text, after=plain_text)
@example(secret="Infinity", before="", after="")  # the text is a JSON document that has no string
@example(secret="-Infinity", before="[1,", after="]")
@example(secret="12345678.5", before="", after="")
def test_a_secret_is_found_in_every_encoding(name: str, secret: str, before: str, after: str) -> None:
    written = ENCODINGS[name](secret)
    redactor = Redactor({"THE_KEY": secret})
    clean = redactor.text(f"{before} {written} {after}")
    assert "[REDACTED:THE_KEY]" in clean
    assert redactor.text(clean) == clean
    assert not _survives(secret, clean.replace("[REDACTED:THE_KEY]", "\n"), before + " " + after)


def _survives(secret: str, text: str, surroundings: str) -> bool:
    """True if the secret, or most of it, can be read out of the text in some way."""
    readings = [text, unquote_plus(text), text.replace("\\/", "/")]
    for word in text.split():
        trimmed = word.strip('"').replace("-", "+").replace("_", "/")
        for start in range(4):
            chunk = trimmed[start:]
            chunk = chunk[: len(chunk) // 4 * 4]
            try:
                readings.append(base64.b64decode(chunk, validate=True).decode("utf-8", "replace"))
            except (binascii.Error, ValueError):
                continue
        for start in range(2):
            try:
                readings.append(
                    bytes.fromhex(word[start : start + (len(word) - start) // 2 * 2]).decode(
                        "utf-8", "replace"
                    )
                )
            except ValueError:
                continue
    return any(secret in reading for reading in readings if secret not in surroundings)


@given(st.text(), st.dictionaries(st.sampled_from(["A", "B", "C"]), secret_text, max_size=3))
def test_text_without_a_secret_is_unchanged(text: str, secrets: dict[str, str]) -> None:
    redactor = Redactor(secrets)
    if not redactor.contains_secret(text):
        assert redactor.text(text) == text
        assert redactor.counts(text) == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, secret_text, st.booleans())
def test_json_stays_json(value: object, secret: str, ascii_only: bool) -> None:
    document = json.dumps({"value": value, "leak": f"x{secret}y", "n": [secret]}, ensure_ascii=ascii_only)
    clean = Redactor({"KEY": secret}).text(document)
    parsed = json.loads(clean)
    assert parsed["leak"] == "x[REDACTED:KEY]y"
    assert parsed["n"] == ["[REDACTED:KEY]"]


M = "[REDACTED:KEY]"


@pytest.mark.parametrize(
    "secret, value, clean",
    [
        ("nabcdefgh", {"k": "line\nabcdefgh"}, {"k": "line\nabcdefgh"}),  # the n of an escape is no secret
        ("00e9abcdef", {"k": "éabcdef00e9abcdef"}, {"k": f"éabcdef{M}"}),
        ('abcd","efgh', ["abcd", "efgh"], ["abcd", "efgh"]),
        ("1234567890", {"number": 1234567890, "text": "1234567890"}, {"number": M, "text": M}),
        ("true, false", [True, False, "true, false"], [True, False, M]),
        ('"quoted" secret', {"k": 'a "quoted" secret'}, {"k": f"a {M}"}),
        ("back\\slash\\es", {"back\\slash\\es": 1}, {M: 1}),
    ],
)
def test_json_stays_json_where_punctuation_looks_like_a_secret(
    secret: str, value: object, clean: object
) -> None:
    redactor = Redactor({"KEY": secret})
    for ascii_only in (True, False):
        redacted = redactor.text(json.dumps(value, ensure_ascii=ascii_only))
        assert json.loads(redacted) == clean
        assert redactor.text(redacted) == redacted


def test_of_overlapping_secrets_the_longer_goes() -> None:
    redactor = Redactor({"SHORT": "abcdefgh", "LONG": "abcdefghijkl", "SHIFTED": "efghijklmnop"})
    assert redactor.text("abcdefghijkl") == "[REDACTED:LONG]"
    assert redactor.text("abcdefghXX") == "[REDACTED:SHORT]XX"
    assert "efghijklmnop" not in redactor.text("abcdefghijklmnop")


def test_a_marker_is_never_redacted_again() -> None:
    redactor = Redactor({"REDACTED": "REDACTED:REDACTED", "KEY": "hunter2hunter2"})
    once = redactor.text("a hunter2hunter2 b REDACTED:REDACTED")
    assert once == "a [REDACTED:KEY] b [REDACTED:REDACTED]"
    assert redactor.text(once) == once


def test_counts_are_by_name_and_the_text_is_left_alone() -> None:
    redactor = Redactor({"A": "alpha-secret", "B": "beta--secret"})
    text = f"alpha-secret {b'alpha-secret'.hex()} beta--secret none"
    assert redactor.counts(text) == {"A": 2, "B": 1}
    assert redactor.contains_secret(text)
    assert not redactor.contains_secret("nothing here")


def test_a_key_file_with_lines_is_found_as_one() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END KEY-----"
    redactor = Redactor({"PEM": key})
    for form in (
        key,
        key.replace("\n", "\r\n"),
        json.dumps(key),
        quote(key),
        base64.encodebytes(key.encode()).decode(),
    ):
        assert redactor.counts(form) == {"PEM": 1}
        assert "MIIEvQIBADANBg" not in redactor.text(form)


def test_lone_surrogates_do_no_harm() -> None:
    redactor = Redactor({"KEY": "hunter2hunter2"})
    assert redactor.text("\ud800 hunter2hunter2 \udfff") == "\ud800 [REDACTED:KEY] \udfff"


def test_names_are_made_fit_for_any_text() -> None:
    assert Redactor({'a"b\nc': "hunter2hunter2"}).text("hunter2hunter2") == "[REDACTED:a_b_c]"


def test_without_secrets_nothing_happens() -> None:
    assert Redactor({}).text("anything") == "anything"
    assert Redactor({"EMPTY": ""}).text("anything") == "anything"
