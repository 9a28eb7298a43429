"""`skills.auto: suggest`: a chat that took corrections ends with a draft, which a person decides about."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hermes.skills import list_skills
from hermes.skills.drafts import drafts
from hermes.skills.trials import skills_in_use
from tests.cli.process import hermes
from tests.cli.terminal import hermes_terminal
from tests.fakes.provider import FakeProvider, Reply, text, tool_calls
from tests.web.site import open_site


def script() -> list[Reply]:
    return [
        tool_calls([("calculator", {"expression": "6 *"})]),
        tool_calls([("calculator", {"expression": "6 * 7"})]),
        text("It is 42."),
        text("Forty-two."),
    ]


def chat(home: Path, reply: str, shown: str) -> None:
    """A chat with one call that failed and one message more, and the person's answer at its end."""
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text("skills: {auto: suggest, corrections: 2}\n")
    with FakeProvider(script()) as provider:
        flags = ("--model", "m", "--base-url", provider.base_url, "--toolsets", "math")
        with hermes_terminal(home, *flags) as terminal:
            terminal.expect("tools: math")
            terminal.line("Multiply six by seven")
            terminal.expect("It is 42.")
            terminal.line("In words.")
            terminal.expect("Forty-two.")
            terminal.line("/quit")
            terminal.expect("This took 2 corrections. A skill from", 15)
            terminal.expect("Enter leaves it for later:")
            terminal.line(reply)
            terminal.expect(shown)
            assert terminal.wait() == 0


def test_accepted_it_is_a_skill_that_waits_for_a_trial(tmp_path: Path) -> None:
    chat(tmp_path, "a", "saved multiply-six-by-seven; a trial decides about it")
    skill = list_skills(tmp_path).find("multiply-six-by-seven")
    (row,) = json.loads(hermes(tmp_path, "trajectories", "list", "--json").stdout)
    assert skill.learned_from == row["id"] and drafts(tmp_path) == []
    assert skill.name not in [entry.name for entry in skills_in_use(tmp_path, {}).skills]


def test_refused_it_is_gone(tmp_path: Path) -> None:
    chat(tmp_path, "r", "refused")
    assert drafts(tmp_path) == [] and "user" not in {skill.origin for skill in list_skills(tmp_path).skills}


def test_edited_in_the_person_s_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "sensible-editor"
    editor.write_text('#!/bin/sh\nsleep 2\necho "Use the calculator." >> "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    chat(tmp_path / "home", "e", "saved multiply-six-by-seven")
    assert list_skills(tmp_path / "home").find("multiply-six-by-seven").body.endswith("Use the calculator.\n")


def test_left_for_later_the_web_page_asks(tmp_path: Path) -> None:
    chat(tmp_path, "", "")
    (draft,) = drafts(tmp_path)
    with open_site(tmp_path) as site:
        assert f"/skills/drafts/{draft.name}" in site.get("/skills").text
        page = site.get(f"/skills/drafts/{draft.name}").text
        assert f"/trajectories/{draft.trajectory_id}" in page and "Steps that worked" in page
        broken = site.post(f"/skills/drafts/{draft.name}", {"action": "accept", "text": "no skill"})
        assert broken.status == 400 and len(drafts(tmp_path)) == 1
        edited = draft.text.replace("Multiply six", "Multiply eight").replace("\n", "\r\n")
        accepted = site.post(f"/skills/drafts/{draft.name}", {"action": "accept", "text": edited})
        assert accepted.status == 303 and accepted.headers["location"] == f"/skills/{draft.name}"
        assert "Multiply eight" in list_skills(tmp_path).find(draft.name).body
        assert site.get(f"/skills/drafts/{draft.name}").status == 404


def test_without_the_setting_nothing_is_proposed(tmp_path: Path) -> None:
    with FakeProvider(script()) as provider:
        flags = ("--model", "m", "--base-url", provider.base_url, "--toolsets", "math")
        with hermes_terminal(tmp_path, *flags) as terminal:
            terminal.expect("tools: math")
            terminal.line("Multiply six by seven")
            terminal.expect("It is 42.")
            terminal.line("/quit")
            assert terminal.wait() == 0
    assert drafts(tmp_path) == []
