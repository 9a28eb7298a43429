"""An answer counts only if it was typed after the question was on the screen; at a real terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal, hermes_terminal
from tests.fakes.provider import FakeProvider, text, tool_calls
from tests.skills.conftest import skill_text
from tests.waiting import wait_until

QUESTION = r"Allow\? \[y\]es once, \[a\]lways, \[N\]o:"
ANSWERED = "Understood."


def _chat(provider: FakeProvider) -> tuple[str, ...]:
    return ("--model", "m", "--base-url", provider.base_url, "--toolsets", "terminal", "--sandbox", "local")


def _removal(victim: Path) -> FakeProvider:
    return FakeProvider([tool_calls([("terminal", {"command": f"rm -r {victim}"})]), text(ANSWERED)])


@pytest.mark.parametrize("typed", ["y\r", "a\r", "yes\ry\ry\r", "\x1b[200~y\r\x1b[201~y\r"])
def test_what_is_typed_before_the_question_approves_nothing(tmp_path: Path, typed: str) -> None:
    """In one write with the message, and again while the model answers."""
    victim = tmp_path / "precious"
    victim.mkdir()
    with _removal(victim) as provider, hermes_terminal(tmp_path, *_chat(provider)) as terminal:
        terminal.expect(r"leaves\)\s+>")
        terminal.type(f"Tidy up.\r{typed}")
        wait_until(lambda: provider.requests)
        terminal.type(typed)
        terminal.expect(QUESTION)
        assert victim.exists()
        terminal.line("n")
        terminal.expect(ANSWERED)
        assert victim.exists()


def test_pasted_text_behind_an_answer_voids_it_and_a_typed_answer_counts(tmp_path: Path) -> None:
    victim = tmp_path / "precious"
    victim.mkdir()
    with _removal(victim) as provider, hermes_terminal(tmp_path, *_chat(provider)) as terminal:
        terminal.expect(r"leaves\)\s+>")
        terminal.line("Tidy up.")
        terminal.expect(QUESTION)
        terminal.type("y\rand the rest of what was pasted\r")
        terminal.expect("please answer again")
        assert victim.exists()
        terminal.expect(QUESTION)
        terminal.line("y")
        terminal.expect(ANSWERED)
        assert not victim.exists()


def test_a_bracketed_paste_with_a_line_break_is_no_answer(tmp_path: Path) -> None:
    victim = tmp_path / "precious"
    victim.mkdir()
    with _removal(victim) as provider, hermes_terminal(tmp_path, *_chat(provider)) as terminal:
        terminal.expect(r"leaves\)\s+>")
        terminal.line("Tidy up.")
        terminal.expect(QUESTION)
        terminal.type("\x1b[200~y\r\x1b[201~")
        terminal.type("\r")
        terminal.expect(ANSWERED)
        assert victim.exists()


def test_the_question_shows_the_command_exactly(tmp_path: Path) -> None:
    command = "ls\x1b]; touch spoofed; echo \x07\u202e\u200b # " + "x" * 700 + " end"
    script = [tool_calls([("terminal", {"command": command})]), text(ANSWERED)]
    with FakeProvider(script) as provider, hermes_terminal(tmp_path, *_chat(provider)) as terminal:
        terminal.expect(r"leaves\)\s+>")
        terminal.line("List the files.")
        shown = _unwrapped(terminal, "wants to run:")
        assert "ls<U+001B>]; touch spoofed; echo <U+0007><U+202E><U+200B> # " + "x" * 700 + " end" in shown
        terminal.line("n")
        terminal.expect(ANSWERED)
    assert not (tmp_path / "spoofed").exists()


def _unwrapped(terminal: Terminal, title: str) -> str:
    terminal.expect(re.escape(title))
    return terminal.expect(QUESTION).replace("\n+ ", "")


def test_a_skill_is_not_installed_by_what_was_typed_before_the_question(tmp_path: Path) -> None:
    source = tmp_path / "kiln"
    source.mkdir()
    (source / "SKILL.md").write_text(skill_text("kiln"))
    with hermes_terminal(tmp_path, "skills", "install", str(source)) as terminal:
        terminal.type("y\ny\n")
        terminal.expect(r"Install it\? \[y/N\]: ")
        terminal.type("y\npasted\n")
        terminal.expect("please answer again")
        terminal.expect(r"Install it\? \[y/N\]: ")
        terminal.type("n\n")
        assert terminal.wait() == 1
    assert not (tmp_path / "skills").exists()
