"""One SKILL.md: what is read from it, and how each mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.skills import Skill, SkillError, SkillOrigin
from hermes.skills.skill import PinnedPackage, parse_skill, read_skill

FULL = """---
name: data-cleaning
description: >
  Clean a table.
  Use for CSV files.
version: 1.2
license: MIT
author: somebody
platforms: [linux, macos]
prerequisites:
  env_vars: [TABLE_TOKEN]
  commands: [csvtool, awk]
metadata:
  other: {x: 1}
  hermes:
    tags: [csv, tables]
    related_skills: [plotting]
    summary: clean tables
    area: data
    aliases: [csv-cleaning]
    packages: [{name: pandas, version: 3.1}]
    programs: {csvtool: pandas}
    other_flags: [--no-deps]
    verified: 2026-11-17
---

# Cleaning

First look.
"""


def parse(text: str) -> Skill:
    return parse_skill(text, file="SKILL.md", directory=Path("x"), category="data", origin=SkillOrigin.USER)


def front(**fields: str) -> str:
    known = {"name": "good-name", "description": "Says something."} | fields
    lines = [f"{key}: {value}" for key, value in known.items() if value]
    return "\n".join(["---", *lines, "---", "", "Body."])


def test_every_field_is_read_and_unknown_ones_are_left_alone() -> None:
    skill = parse(FULL)
    assert skill == Skill(
        name="data-cleaning",
        description="Clean a table. Use for CSV files.",
        category="data",
        origin=SkillOrigin.USER,
        directory=Path("x"),
        body="# Cleaning\n\nFirst look.\n",
        version="1.2",
        license="MIT",
        platforms=("linux", "macos"),
        env_vars=("TABLE_TOKEN",),
        commands=("csvtool", "awk"),
        tags=("csv", "tables"),
        related=("plotting",),
        summary="clean tables",
        area="data",
        aliases=("csv-cleaning",),
        packages=(PinnedPackage("pandas", "3.1"),),
        programs={"csvtool": "pandas"},
        other_flags=("--no-deps",),
        verified="2026-11-17",
    )


def test_a_rule_of_dashes_in_the_body_does_not_end_it() -> None:
    assert parse(front() + "\n\n---\n\nMore.").body == "Body.\n\n---\n\nMore.\n"


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        ("# No front matter", "", "does not start with"),
        ("---\nname: x\n", "", "not closed"),
        ("---\n- a\n- b\n---\nBody", "", "must be a mapping"),
        (
            "---\nname: x\nname: y\n---\nBody",
            "",
            'line 3: front matter is not valid YAML (found duplicate key "name"',
        ),
        ("---\nname: [x\n---\nBody", "", "line 3: front matter is not valid YAML"),
        ("---\nname: !!python/object:os.system x\n---\nBody", "", "not valid YAML"),
        ("---\nname: a\x07b\n---\nBody", "", "not valid YAML"),
        (front(name=""), "name", "is missing"),
        (front(description=""), "description", "is missing"),
        (front(name="17"), "name", "must be text, not int"),
        (front(name="Has Spaces"), "name", "not a skill name"),
        (front(name="../up"), "name", "not a skill name"),
        (front(name="a" * 65), "name", "65 characters; at most 64"),
        (front(description="d" * 1025), "description", "1025 characters; at most 1024"),
        (front(version="[1]"), "version", "must be text"),
        (front(version="true"), "version", "must be text"),
        (front(platforms="[linux, beos]"), "platforms", "'beos' is not one of linux, macos, windows"),
        (front(platforms="linux"), "platforms", "must be a list of texts"),
        (front(prerequisites="{commands: [1]}"), "prerequisites.commands", "must be a list of texts"),
        (front(metadata="{hermes: [a]}"), "metadata.hermes", "must be a mapping"),
        (
            front(metadata="{hermes: {area: cooking}}"),
            "metadata.hermes.area",
            "'cooking' is not one of training",
        ),
        (front(metadata="{hermes: {verified: soon}}"), "metadata.hermes.verified", "is not a day like"),
        (front(metadata=f"{{hermes: {{summary: {'s' * 81}}}}}"), "metadata.hermes.summary", "at most 80"),
        (front(metadata="{hermes: {packages: kiln}}"), "metadata.hermes.packages", "must be a list"),
        (
            front(metadata="{hermes: {packages: [{name: kiln}]}}"),
            "metadata.hermes.packages[0].version",
            "is missing",
        ),
        (front().replace("Body.", " "), "", "no text after the front matter"),
    ],
)
def test_a_mistake_is_named_with_file_field_and_reason(text: str, field: str, reason: str) -> None:
    with pytest.raises(SkillError) as caught:
        parse(text)
    assert caught.value.field == field
    assert reason in caught.value.reason
    assert caught.value.message.startswith("SKILL.md: ")


def test_the_directory_must_bear_the_skills_name(tmp_path: Path) -> None:
    directory = tmp_path / "other-name"
    directory.mkdir()
    (directory / "SKILL.md").write_text(front())
    with pytest.raises(SkillError, match="is 'good-name', but the directory is 'other-name'"):
        read_skill(directory, category="", origin=SkillOrigin.USER)


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"---\nname: \xff\n---\n", "not UTF-8"), (b"x" * 256_001, "larger than 256000 bytes")],
)
def test_a_file_that_is_no_text_or_too_large_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "SKILL.md").write_bytes(data)
    with pytest.raises(SkillError, match=reason):
        read_skill(tmp_path, category="", origin=SkillOrigin.USER)
