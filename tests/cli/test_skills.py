"""`hermes skills`, as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.process import failure, hermes
from tests.cli.terminal import hermes_terminal
from tests.skills.conftest import skill_text


def source(tmp_path: Path, text: str) -> Path:
    directory = tmp_path / "kiln"
    directory.mkdir()
    (directory / "SKILL.md").write_text(text)
    return directory


def test_browse_and_search_list_skills_as_text_and_as_data(tmp_path: Path) -> None:
    listed = json.loads(hermes(tmp_path, "skills", "browse", "--json").stdout)
    assert {"name": "vllm", "category": "mlops", "origin": "bundled"}.items() <= {
        key: value for skill in listed if skill["name"] == "vllm" for key, value in skill.items()
    }.items()
    text = hermes(tmp_path, "skills", "browse", "--category", "research").stdout
    assert "research/arxiv\n" in text and "mlops/" not in text
    found = json.loads(hermes(tmp_path, "skills", "search", "gguf", "--json").stdout)
    assert found[0]["name"] == "gguf"


def test_view_prints_the_skill_and_its_files(tmp_path: Path) -> None:
    directory = source(tmp_path, skill_text("kiln", body="Heat it."))
    (directory / "table.md").write_text("1300 C")
    assert hermes(tmp_path / "home", "skills", "install", str(directory), "--yes").returncode == 0
    text = hermes(tmp_path / "home", "skills", "view", "kiln").stdout
    assert "Heat it." in text and "files: table.md" in text
    assert hermes(tmp_path / "home", "skills", "view", "kiln", "--file", "table.md").stdout == "1300 C\n"
    data = json.loads(hermes(tmp_path / "home", "skills", "view", "kiln", "--json").stdout)
    assert (data["origin"], data["files"], data["content"]) == ("user", ["table.md"], "Heat it.\n")


def test_install_shows_the_contents_and_asks_first(tmp_path: Path) -> None:
    directory = source(tmp_path, skill_text("kiln", body="Heat it.\x1b[8m Hidden."))
    home = tmp_path / "home"
    home.mkdir()
    for reply, installed in (("n", False), ("", False), ("y", True)):
        with hermes_terminal(home, "skills", "install", str(directory)) as terminal:
            terminal.expect(r"Heat it.<U\+001B>\[8m Hidden")
            terminal.expect("SKILL.md")
            terminal.expect(r"Install it\? \[y/N\]: ")
            terminal.line(reply)
            assert (terminal.wait() == 0) is installed
        assert (home / "skills/kiln").exists() is installed


def test_an_answer_from_a_pipe_is_nobody_s(tmp_path: Path) -> None:
    directory = source(tmp_path, skill_text("kiln"))
    refused = hermes(tmp_path / "home", "skills", "install", str(directory), stdin="y\n")
    assert refused.returncode == 2 and "nobody can be asked" in refused.stderr
    assert not (tmp_path / "home/skills").exists()


def test_install_prints_one_json_object(tmp_path: Path) -> None:
    done = hermes(tmp_path / "home", "skills", "install", "official/mlops/vllm", "--yes", "--json")
    assert json.loads(done.stdout)["directory"] == str(tmp_path / "home/skills/mlops/vllm")


def test_check_exits_with_1_when_an_installed_file_was_changed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    hermes(home, "skills", "install", str(source(tmp_path, skill_text("kiln"))), "--yes")
    unchanged = hermes(home, "skills", "check", "kiln")
    assert unchanged.returncode == 0 and unchanged.stdout.split() == ["skill", "result", "kiln", "ok"]
    (home / "skills" / "kiln" / "SKILL.md").write_text(skill_text("kiln", body="Changed."))
    changed = hermes(home, "skills", "check", "kiln", "--json")
    assert changed.returncode == 1
    assert json.loads(changed.stdout)[0]["problems"][0]["problem"] == "SKILL.md was changed"


def test_a_broken_skill_is_named_and_the_others_are_still_listed(tmp_path: Path) -> None:
    directory = tmp_path / "skills" / "bad"
    directory.mkdir(parents=True)
    (directory / "SKILL.md").write_text("---\nname: bad\n---\nBody")
    done = hermes(tmp_path, "skills", "browse")
    assert "mlops/vllm" in done.stdout
    assert done.stderr == f"left out: {directory}/SKILL.md: description: is missing\n"


def test_terminal_sequences_in_a_skill_are_not_printed(tmp_path: Path) -> None:
    body = "red \x1b[31mtext\x1b]0;title\x07 \u202eback"
    directory = source(tmp_path, skill_text("kiln", body=body))
    shown = hermes(tmp_path / "home", "skills", "install", str(directory), "--yes").stdout
    shown += hermes(tmp_path / "home", "skills", "view", "kiln").stdout
    assert "red text" in shown and "red <U+001B>[31mtext<U+001B>]0;title<U+0007> <U+202E>back" in shown
    assert not {char for char in shown if not char.isprintable()} - {"\n"}


def test_bad_input_is_two_lines_and_an_exit_code(tmp_path: Path) -> None:
    assert failure(hermes(tmp_path, "skills", "view", "axolot"), 2)[1] == "did you mean axolotl?"
    assert "neither a bundled skill nor" in failure(hermes(tmp_path, "skills", "install", "nope"), 2)[0]
    near = failure(hermes(tmp_path, "skills", "install", "official/mlops/axolot"), 2)
    assert near[1] == "did you mean axolotl?"
    assert "no skill 'nope'" in failure(hermes(tmp_path, "skills", "check", "nope"), 2)[0]
    missing = failure(hermes(tmp_path, "skills", "view", "vllm", "--file", "../trl/SKILL.md"), 2)
    assert "outside the directory" in missing[0]
