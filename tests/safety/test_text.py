"""Hostile text cannot drive a terminal."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from hermes.safety.text import clip, printable, visible


def test_colours_titles_and_cursor_movements_are_removed() -> None:
    assert printable("\x1b[31mred\x1b[0m \x1b[2J\x1b[1;1Hhome") == "red home"
    assert printable("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\") == "alink"
    assert printable("\x1bP1$r0m\x1b\\b\x1b_x\x1b\\c\x9b31md\x9d0;t\x9ce") == "bcde"
    assert printable("\x1b(0\x1bcz") == "z"


def test_what_is_left_of_a_broken_sequence_is_shown_not_obeyed() -> None:
    assert printable("\x1b]0;never ends") == "\\e]0;never ends"
    assert printable("\x1b\x1b[0m[31mjoined") == "\\e[31mjoined"


def test_a_carriage_return_cannot_overwrite_a_line() -> None:
    assert printable("safe\rrm -rf /") == "safe\\rrm -rf /"
    assert printable("a\r\nb\tc\n") == "a\nb\tc\n"


def test_direction_overrides_and_invisible_text_become_visible() -> None:
    assert printable("a\u202eb\u2066c\u200f") == "a\\u202eb\\u2066c\\u200f"
    assert printable("x\U000e0041\u2028y\ud800") == "x\\U000e0041\\u2028y\\ud800"


def test_ordinary_text_of_any_language_is_unchanged() -> None:
    for text in ("plain", "naïve – “quotes”", "日本語", "עברית", "👩‍👩‍👧", "tab\tand\nnewline", ""):
        assert printable(text) == text


@given(st.text())
def test_no_control_character_survives_and_it_can_be_encoded(text: str) -> None:
    shown = printable(text)
    shown.encode("utf-8")
    assert not [char for char in shown if unicodedata.category(char) == "Cc" and char not in "\n\t"]
    assert printable(shown) == shown


@given(st.text(max_size=400), st.integers(min_value=0, max_value=300))
def test_a_clipped_text_fits_and_keeps_its_ends(text: str, limit: int) -> None:
    clipped = clip(text, limit)
    assert len(clipped) <= limit
    if len(text) <= limit:
        assert clipped == text
    elif limit >= 50:
        assert clipped[0] == text[0]
        assert clipped[-1] == text[-1]


def test_the_note_counts_what_is_missing() -> None:
    text = "".join(chr(ord("a") + i % 26) for i in range(1000))
    head, note, tail = clip(text, 100).replace(" … ", "\0").split("\0")
    assert note == f"[{1000 - len(head) - len(tail)} characters left out]"
    assert text.startswith(head)
    assert text.endswith(tail)


def test_what_a_model_is_about_to_do_keeps_what_a_sequence_contains() -> None:
    assert visible("ls \x1b]; rm x\x07 \x9b2K\u202e") == "ls \\e]; rm x\\x07 \\x9b2K\\u202e"
