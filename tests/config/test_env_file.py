"""The .env file: reading, in-place changes, and refusal of what is torn."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.config import env_file
from hermes.errors import ConfigError

WHOLE = """\
# keys
export OPENROUTER_API_KEY='sk-or $HOME #1'   # the paid one

PLAIN=abc#def
SPACED = value with words  # note
EMPTY=
NOTHING= # only a comment
DOUBLE="two\\nlines \\"quoted\\" \\$5"
"""


def test_quotes_comments_and_the_export_prefix_are_understood() -> None:
    assert env_file.parse(WHOLE, ".env") == {
        "OPENROUTER_API_KEY": "sk-or $HOME #1",
        "PLAIN": "abc#def",
        "SPACED": "value with words",
        "EMPTY": "",
        "NOTHING": "",
        "DOUBLE": 'two\nlines "quoted" $5',
    }


def test_lines_that_end_in_carriage_return_are_understood_and_kept() -> None:
    text = "A=1\r\nB='two'\r\n"
    assert env_file.parse(text, ".env") == {"A": "1", "B": "two"}
    assert env_file.with_value(text, "A", "3", ".env") == "A=3\r\nB='two'\r\n"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("OPENROUTER_API_KEY", "export OPENROUTER_API_KEY='new value'   # the paid one"),
        ("PLAIN", "PLAIN='new value'"),
        ("SPACED", "SPACED = 'new value'  # note"),
        ("EMPTY", "EMPTY='new value'"),
        ("NOTHING", "NOTHING= 'new value' # only a comment"),
        ("DOUBLE", "DOUBLE='new value'"),
    ],
)
def test_a_change_touches_only_the_value_on_its_line(name: str, line: str) -> None:
    changed = env_file.with_value(WHOLE, name, "new value", ".env")
    assert env_file.parse(changed, ".env") == {**env_file.parse(WHOLE, ".env"), name: "new value"}
    pairs = zip(WHOLE.split("\n"), changed.split("\n"), strict=True)
    assert [after for before, after in pairs if before != after] == [line]


def test_a_new_name_goes_to_the_end_and_removing_it_gives_the_old_text_back() -> None:
    longer = env_file.with_value(WHOLE, "NEW", "1", ".env")
    assert longer == WHOLE + "NEW=1\n"
    assert env_file.without(longer, "NEW", ".env") == WHOLE


def test_a_missing_last_newline_does_not_join_two_lines() -> None:
    assert env_file.parse(env_file.with_value("A=1", "B", "2", ".env"), ".env") == {"A": "1", "B": "2"}


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))))
def test_any_value_comes_back_as_it_was_written(value: str) -> None:
    text = env_file.with_value("# head\nKEY=old # note\nOTHER=1\n", "KEY", value, ".env")
    assert env_file.parse(text, ".env") == {"KEY": value, "OTHER": "1"}
    assert text.startswith("# head\nKEY=")
    assert text.endswith(" # note\nOTHER=1\n")


@pytest.mark.parametrize("value", ["plain", "with space", "it's", '$HOME `id` \\ "', "a#b # c", "tab\there"])
def test_a_shell_reads_what_was_written(value: str, tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text(env_file.with_value("", "KEY", value, ".env"))
    script = f'. {path}; printf %s "$KEY"'
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout == value


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("A=1\nOPENROUTER_API", ".env:2: expected NAME=VALUE"),
        ("A='sk-secret", ".env:1: the value of A has no closing quote"),
        ('A="sk-secret\\"', ".env:1: the value of A has no closing quote"),
        ("A='x' y", ".env:1: unexpected text after the value of A"),
        ("A=1\n\n1B=2\n", ".env:3: expected NAME=VALUE"),
        ("A=1\nA=2\n", ".env:2: A is already set on line 1"),
        ("A=\0\n", ".env:1: expected NAME=VALUE"),
    ],
)
def test_a_torn_or_malformed_line_is_named_and_never_quoted(text: str, complaint: str) -> None:
    for use in (
        lambda: env_file.parse(text, ".env"),
        lambda: env_file.with_value(text, "B", "x", ".env"),
        lambda: env_file.without(text, "B", ".env"),
    ):
        with pytest.raises(ConfigError) as caught:
            use()
        assert caught.value.message == complaint
        assert caught.value.hint
        assert "secret" not in caught.value.message


def test_values_and_names_that_no_environment_can_hold_are_refused() -> None:
    with pytest.raises(ConfigError, match="NUL"):
        env_file.with_value("", "A", "x\0y", ".env")
    with pytest.raises(ConfigError, match="not a variable name"):
        env_file.with_value("", "A B", "x", ".env")
