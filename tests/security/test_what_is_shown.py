"""What a person is asked about is shown whole, and what is shown determines the bytes."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hermes.safety.exact import block, exact, foreign_characters, restore

NASTY = st.sampled_from(
    [
        *("\x1b", "\x1b]0;", "\x07", "\x1b[2K", "\x9b", "\r", "\b", "\x7f", "\0", "\v", "\f", "\x85"),
        *("\u200b", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u034f", "\u180e", "\u115f", "\u3164", "\uffa0"),
        *("\u202e", "\u202a", "\u2066", "\u2069", "\u200f", "\u061c", "\u05d0", "\u0627"),
        *("\u0301", "\u20dd", "\ufe0f", "\U000e0100", "\U000e0041", "\u2028", "\u2029", "\u00a0", "\u2003"),
        *("\u0430", "\u037e", "\uff1b", "\u2024", "\uff0f", "\ud800", "\ue000", "\U0010ffff", "\u2800"),
        *(" ", "  ", " " * 60, "\n", "\n" * 9, "\t", "<", "<U+", "<U+0020>", "<U+0020*45>", "U+", ">", "*3"),
        *("ls", "rm -rf", "é", "日本", "\\e", "\\x1b", "^["),
    ]
)


@given(st.lists(NASTY | st.text(max_size=5), max_size=12).map("".join))
@example("<U+<U+003C>")
@example("<\u200bU+0041>")
def test_what_is_shown_determines_the_text(text: str) -> None:
    assert restore(exact(text)) == text


@given(st.lists(NASTY | st.text(max_size=5), max_size=12).map("".join))
def test_nothing_invisible_combining_or_reordering_is_left(text: str) -> None:
    for char in exact(text):
        assert char in "\n " or unicodedata.category(char)[0] in "LNPS", hex(ord(char))
        assert unicodedata.bidirectional(char) not in ("R", "AL", "AN", "RLO", "LRO")
    assert not any(line.endswith(" ") for line in exact(text).split("\n"))


@given(st.lists(NASTY | st.text(max_size=5), max_size=12).map("".join), st.integers(12, 100))
def test_a_block_is_the_whole_text_behind_bars(text: str, width: int) -> None:
    lines = block(text, width)
    assert all(line[:2] in ("| ", "+ ") for line in lines)
    joined = "".join(("\n" if line[0] == "|" else "") + line[2:] for line in lines)
    assert restore(joined[1:]) == text


@pytest.mark.parametrize(
    "command, shown",
    [
        ("ls \x1b]; touch X; echo \x07", "ls <U+001B>]; touch X; echo <U+0007>"),
        ("ls\x1b[2K\rrm x", "ls<U+001B>[2K<U+000D>rm x"),
        ("echo a\u202eb\u2066c", "echo a<U+202E>b<U+2066>c"),
        ("curl g\u0456thub.com", "curl g<U+0456>thub.com"),
        ("cat a\u200b.txt ", "cat a<U+200B>.txt<U+0020>"),
        ("a" + " " * 500 + "; rm x", "a<U+0020*500>; rm x"),
        ("a" + "\n" * 500 + "rm x", "a\n<U+000A*498>\nrm x"),
        ("echo '<U+200B>'", "echo '<U+003C>U+200B>'"),
        ("grep 'a\\.b' \\x1b", "grep 'a\\.b' \\x1b"),
        ("echo naïve 日本語", "echo naïve 日本語"),
    ],
)
def test_control_sequences_are_shown_with_their_contents(command: str, shown: str) -> None:
    assert exact(command) == shown


def test_characters_that_may_look_like_ascii_are_named() -> None:
    assert foreign_characters("ls -la <U+0041>") == ""
    assert "U+0440 CYRILLIC SMALL LETTER ER" in foreign_characters("\u0440\u0430")
    assert "27 CYRILLIC" in foreign_characters("".join(map(chr, range(0x430, 0x44B))))
