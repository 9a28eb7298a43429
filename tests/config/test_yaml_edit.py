"""Changes to config.yaml that leave everything else as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.config import yaml_file
from hermes.config.yaml_edit import with_value, without
from hermes.errors import ConfigError

WHOLE = """\
# Settings of the lab.
model: openrouter/some/model   # the cheap one

sandbox:            # where commands run
  # docker is too slow here
  backend: bubblewrap
  memory_mb: 4096   # plenty

# which tools
toolsets:
- file   # always
- web

limits: {max_turns: 10, max_tokens: 5000}  # short
system_prompt: |
  Be brief.

  # not a comment

# the end
"""


def changed(path: str, value: Any, text: str = WHOLE) -> list[str]:
    """Lines that are new, as +line, and lines that are gone, as -line."""
    after = with_value(text, tuple(path.split(".")), value, "config.yaml")
    return differences(text, after)


def differences(before: str, after: str) -> list[str]:
    import difflib

    lines = difflib.ndiff(before.split("\n"), after.split("\n"))
    return [line[0] + line[2:] for line in lines if line[0] in "+-"]


def test_a_scalar_is_replaced_where_it_stands() -> None:
    assert changed("model", "vllm/x") == [
        "-model: openrouter/some/model   # the cheap one",
        "+model: vllm/x   # the cheap one",
    ]
    assert changed("sandbox.memory_mb", 64) == [
        "-  memory_mb: 4096   # plenty",
        "+  memory_mb: 64   # plenty",
    ]


def test_a_new_key_joins_its_section_before_the_comments_of_the_next() -> None:
    after = with_value(WHOLE, ("sandbox", "network"), True, "config.yaml")
    assert "  memory_mb: 4096   # plenty\n  network: true\n\n# which tools\n" in after
    assert differences(WHOLE, after) == ["+  network: true"]


def test_a_new_section_goes_to_the_end_of_the_settings() -> None:
    assert changed("web.max_bytes", 5) == ["+web:", "+  max_bytes: 5"]
    assert with_value("", ("web", "max_bytes"), 5, "c") == "web:\n  max_bytes: 5\n"
    assert with_value("# only a comment", ("model",), "a/b", "c") == "# only a comment\nmodel: a/b\n"
    assert with_value("---\n", ("model",), "a/b", "c") == "---\nmodel: a/b\n"


def test_a_block_list_is_replaced_and_the_comments_around_it_stay() -> None:
    assert sorted(changed("toolsets", ["terminal", "a b", "on", "1"])) == [
        '+toolsets: [terminal, "a b", on, "1"]',
        "-- file   # always",
        "-- web",
        "-toolsets:",
    ]


def test_a_section_in_braces_becomes_a_block() -> None:
    assert changed("limits.max_turns", 3) == [
        "-limits: {max_turns: 10, max_tokens: 5000}  # short",
        "+limits:  # short",
        "+  max_turns: 3",
        "+  max_tokens: 5000",
    ]
    assert "limits:  # short\n  max_tokens: 5000\n" in without(WHOLE, ("limits", "max_turns"), "c")


def test_a_block_of_text_is_replaced_whole() -> None:
    after = with_value(WHOLE, ("system_prompt",), "One: two\nthree # four", "c")
    assert after.endswith('system_prompt: "One: two\\nthree # four"\n\n# the end\n')


def test_a_section_that_holds_only_comments_is_filled() -> None:
    text = "sandbox:   # mine\n  # backend: docker\nmodel: a/b\n"
    assert with_value(text, ("sandbox", "backend"), "local", "c") == (
        "sandbox:   # mine\n  backend: local\n  # backend: docker\nmodel: a/b\n"
    )


def test_a_comment_after_a_block_of_text_survives_the_removal_of_what_is_between() -> None:
    text = "a: |\n  one\nb: 1   # gone\n\n# stays\nc: 2\n"
    assert without(text, ("b",), "c") == "a: |\n  one\n\n# stays\nc: 2\n"


def test_the_files_indentation_and_quotes_are_kept() -> None:
    text = "a:\n    b: 'x'\n    c: \"y\"\nd:\n  - 1\n  - 2\n"
    assert differences(text, with_value(text, ("a", "e"), 1, "c")) == ["+    e: 1"]


def test_a_mapping_is_written_as_a_block() -> None:
    assert changed("providers.lab", {"base_url": "http://h:1/v1", "key_env": "LAB_KEY"}) == [
        "+providers:",
        "+  lab:",
        "+    base_url: http://h:1/v1",
        "+    key_env: LAB_KEY",
    ]


def test_removing_a_key_takes_only_its_own_lines() -> None:
    assert differences(WHOLE, without(WHOLE, ("sandbox", "memory_mb"), "c")) == [
        "-  memory_mb: 4096   # plenty"
    ]
    gone = differences(WHOLE, without(WHOLE, ("toolsets",), "c"))
    assert gone == ["-toolsets:", "-- file   # always", "-- web"]
    gone = differences(WHOLE, without(WHOLE, ("system_prompt",), "c"))
    assert gone[0] == "-system_prompt: |" and "-# the end" not in gone


def test_the_last_key_of_a_section_takes_the_section_with_it() -> None:
    text = "a:\n  b:\n    c: 1\n# next\nd: 2\n"
    assert without(text, ("a", "b", "c"), "c") == "# next\nd: 2\n"
    assert without("a: {b: 1}\n", ("a", "b"), "c") == ""


def test_removing_what_is_not_there_changes_nothing() -> None:
    assert without(WHOLE, ("sandbox", "network"), "c") == WHOLE
    assert without(WHOLE, ("model", "x"), "c") == WHOLE


@pytest.mark.parametrize(
    "text", ["a: &x {b: 1}\nc: *x\n", "base: &x {b: 1}\na:\n  <<: *x\n", "? a\n: b: 1\n", "{a: {b: 1}}\n"]
)
def test_an_unusual_file_is_changed_rightly_or_not_at_all(text: str) -> None:
    for path in (("a", "b"), ("c", "b"), ("c",)):
        before = yaml_file.parse(text, "c").data
        try:
            after = yaml_file.parse(with_value(text, path, 7, "c"), "c").data
        except ConfigError as error:
            assert "hermes config edit" in error.hint
            continue
        inner = after
        for part in path:
            inner = inner[part]
        assert inner == 7
        assert {key: value for key, value in after.items() if key != path[0]} == {
            key: value for key, value in before.items() if key != path[0]
        }


NAMES = st.sampled_from(["a", "b", "c", "d-e", "x/y.z", "on", "1"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=12),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(NAMES, SCALARS, max_size=2))


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=3), VALUES), min_size=1, max_size=6))
def test_any_run_of_changes_means_what_it_says_and_keeps_every_comment(
    changes: list[tuple[list[str], Any]],
) -> None:
    text = "# first\na: 1\n# second\nb:\n  # third\n  c: 2\n# fourth\n"
    for path, value in changes:
        text = with_value(text, tuple(path), value, "c")
        inner: Any = yaml_file.parse(text, "c").data
        for part in path:
            inner = inner[part]
        assert inner == value
    for path, _ in changes:
        text = without(text, tuple(path), "c")
    for comment in ("# first", "# second", "# fourth"):
        assert comment in text
