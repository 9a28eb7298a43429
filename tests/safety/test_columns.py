"""Tables and texts that fit a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hermes.safety.output.columns import aligned_lines, wrapped

WORD = st.text("abcdefghij/", min_size=1, max_size=30)
CELL = st.lists(WORD, max_size=12).map(" ".join)


@given(st.integers(2, 5).flatmap(lambda n: st.lists(st.tuples(*[CELL] * n), min_size=1, max_size=6)))
def test_a_table_fits_80_columns_and_keeps_every_character(rows: list[tuple[str, ...]]) -> None:
    lines = list(aligned_lines(rows, 80))
    assert all(len(line) <= 80 for line in lines)
    written = sorted("".join(lines).replace(" ", ""))
    assert written == sorted("".join(cell for row in rows for cell in row).replace(" ", ""))


def test_a_table_that_fits_has_one_line_a_row() -> None:
    rows = [("name", "meaning"), ("a", "one"), ("long name", "two")]
    assert list(aligned_lines(rows, 80)) == ["name       meaning", "a          one", "long name  two"]
    assert list(aligned_lines([("a", "word " * 40)], 10**6)) == [("a  " + "word " * 40).rstrip()]


def test_a_long_line_is_wrapped_beneath_its_text() -> None:
    assert wrapped("ok       disk   much is free at this place", 34).split("\n") == [
        "ok       disk   much is free at",
        "                this place",
    ]
    assert wrapped("short", 30) == "short"
    assert wrapped("    one two three", 12).split("\n") == ["    one two", "    three"]


def test_a_name_is_broken_at_its_parts() -> None:
    heading = ("step", "train/learning_rate", "reward_part/success")
    lines = list(aligned_lines([heading, ("1", "0.0004", "0")], 34))
    assert lines[:2] == ["step  train/         reward_part/", "      learning_rate  success"]
    assert "".join(wrapped("a" * 30, 20).split("\n")) == "a" * 30
