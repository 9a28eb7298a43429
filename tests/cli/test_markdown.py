"""Markdown of an answer at a terminal: marks become styles, whatever pieces it arrives in."""

from __future__ import annotations

import re

import click
import pytest

from hermes.cli.chat.screen import MarkdownStream, style_line

ANSWER = "# Result\n\n- **391** is `17 * 23`\n> quoted\n```python\n# no heading\n```\nplain\n"
_CURSOR = re.compile(r"\x1b\[\d*[AKJG]|\r")


def test_marks_become_styles() -> None:
    assert style_line("## Result", in_code=False) == click.style("Result", bold=True)
    assert style_line("  - one", in_code=False) == "  • one"
    assert style_line("a **b** `c`", in_code=False) == (
        f"a {click.style('b', bold=True)} {click.style('c', fg='cyan')}"
    )
    assert style_line("# no heading", in_code=True) == click.style("# no heading", fg="cyan")
    assert style_line("2 * 3 * 4", in_code=False) == "2 * 3 * 4"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_pieces_do_not_matter(size: int) -> None:
    written: list[str] = []
    stream = MarkdownStream(written.append)
    for start in range(0, len(ANSWER), size):
        stream.feed(ANSWER[start : start + size])
    stream.end()
    text = "".join(written)
    for line in (click.style("Result", bold=True), click.style("391", bold=True), "│ quoted", "• "):
        assert line in text
    assert click.style("no heading", bold=True) not in text
    assert _CURSOR.search(text), "a styled line takes the place of the plain one"


def test_a_long_line_is_broken_between_words_and_code_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    written: list[str] = []
    stream = MarkdownStream(written.append)
    words = " ".join(f"**word{number}**" for number in range(12))
    code = "print('a line of code is as long as it is written')"
    stream.feed(f"- {words}\n```\n{code}\n```\n")
    stream.end()
    last = "".join(written).split("\x1b[J")[1].partition("```")[0]
    lines = click.unstyle(last).rstrip().split("\n")
    assert len(lines) > 1 and all(len(line) <= 40 for line in lines)
    assert [line[:2] for line in lines] == ["• ", *["  "] * (len(lines) - 1)]
    assert " ".join(lines).split() == ["•", *(f"word{number}" for number in range(12))]
    assert click.style(code, fg="cyan") in "".join(written)
