"""Listing, finding and searching skills, and reading their files."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from hermes.errors import UsageError
from hermes.skills import SkillError, SkillOrigin, list_skills, read_skill_file, skill_files
from tests.skills.conftest import WriteSkill, skill_text


def test_every_bundled_skill_is_well_formed_and_short(tmp_path: Path) -> None:
    catalogue = list_skills(tmp_path)
    assert catalogue.broken == ()
    assert len(catalogue.skills) >= 8
    assert set(catalogue.categories) >= {"mlops", "research", "hermes"}
    for skill in catalogue.skills:
        text = (skill.directory / "SKILL.md").read_text("utf-8")
        assert len(text.splitlines()) <= 500, skill.name
        assert text.isprintable() or not {c for c in text if not c.isprintable()} - {"\n"}, skill.name


def test_bundled_skills_refer_only_to_skills_that_exist(tmp_path: Path) -> None:
    skills = list_skills(tmp_path).skills
    names = {skill.name for skill in skills}
    assert {related for skill in skills for related in skill.related} <= names


def test_a_users_skill_shadows_the_bundled_one(home: Path, write_skill: WriteSkill) -> None:
    write_skill("arxiv", category="mine", description="My own way.")
    found = list_skills(home).find("arxiv")
    assert (found.origin, found.category, found.description) == (SkillOrigin.USER, "mine", "My own way.")


def test_a_broken_skill_is_reported_and_hides_no_other(home: Path, write_skill: WriteSkill) -> None:
    write_skill("fine")
    write_skill("arxiv", text="no front matter")
    catalogue = list_skills(home)
    assert "fine" in [skill.name for skill in catalogue.skills]
    assert [entry.name for entry in catalogue.broken] == ["arxiv"]
    with pytest.raises(SkillError, match="does not start with"):
        catalogue.find("arxiv")


def test_hidden_directories_and_plain_files_are_not_skills(home: Path, write_skill: WriteSkill) -> None:
    write_skill("staged", category=".quarantine")
    (home / "skills" / "note.txt").write_text("x")
    assert all(skill.origin is SkillOrigin.BUNDLED for skill in list_skills(home).skills)


@pytest.mark.parametrize("name", ["vllm", "mlops/vllm", "official/mlops/vllm"])
def test_a_skill_is_found_by_name_or_category_and_name(tmp_path: Path, name: str) -> None:
    assert list_skills(tmp_path).find(name).name == "vllm"


def test_an_alias_finds_its_skill_and_a_name_wins_over_an_alias(home: Path, write_skill: WriteSkill) -> None:
    hermes = "metadata:\n  hermes:\n    area: training\n    aliases: [kiln, firing]\n"
    write_skill("porcelain", category="pots", extra=hermes)
    write_skill("kiln")
    catalogue = list_skills(home)
    for name in ("firing", "pots/firing", "official/pots/training/firing", "pots/training/porcelain"):
        assert catalogue.find(name).name == "porcelain"
    assert catalogue.find("kiln").name == "kiln" and catalogue.find("pots/kiln").name == "porcelain"
    assert catalogue.search("firing")[0].name == "porcelain"
    with pytest.raises(UsageError) as caught:
        catalogue.find("cloud/firing")
    assert caught.value.hint.startswith("did you mean porcelain")


def test_no_name_or_alias_of_the_library_is_used_twice(tmp_path: Path) -> None:
    skills = list_skills(tmp_path).skills
    names = Counter(name for skill in skills for name in (skill.name, *skill.aliases))
    assert {name: count for name, count in names.items() if count > 1} == {}


def test_an_unknown_name_is_an_error_with_the_nearest_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        list_skills(tmp_path).find("axolot")
    assert "axolotl" in caught.value.hint


def test_search_prefers_skills_that_match_more_words_and_better_places(
    home: Path, write_skill: WriteSkill
) -> None:
    write_skill("zebra-stripes", description="Painting.", body="Nothing else.")
    write_skill("painting", description="About zebra animals.", body="Text.")
    write_skill("other", description="Something.", body="A zebra is mentioned here.")
    found = [skill.name for skill in list_skills(home).search("Zebra")]
    assert found == ["zebra-stripes", "painting", "other"]
    assert list_skills(home).search("zebra painting")[0].name == "painting"
    assert list_skills(home).search("quux") == ()


def test_files_beside_the_skill_are_listed_and_read(home: Path, write_skill: WriteSkill) -> None:
    directory = write_skill("with-files")
    (directory / "references").mkdir()
    (directory / "references" / "table.md").write_text("| a |")
    skill = list_skills(home).find("with-files")
    assert skill_files(skill) == ["references/table.md"]
    assert read_skill_file(skill, "references/table.md") == "| a |"
    assert read_skill_file(skill, "SKILL.md") == skill_text("with-files")


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "references/../../secret",
        "{home}/secret",
        "link",
        "linked/secret",
        "..",
        "",
        "a\0b",
        "x" * 5000,
    ],
)
def test_nothing_outside_the_skill_can_be_read(home: Path, write_skill: WriteSkill, path: str) -> None:
    directory = write_skill("guarded")
    secret = directory.parent / "secret"
    secret.write_text("canary")
    (home / "secret").write_text("canary")
    (directory / "references").mkdir()
    (directory / "link").symlink_to(secret)
    (directory / "linked").symlink_to(directory.parent)
    with pytest.raises((SkillError, UsageError)):
        read_skill_file(list_skills(home).find("guarded"), path.format(home=home))


def test_a_missing_file_is_an_error_that_lists_what_there_is(home: Path, write_skill: WriteSkill) -> None:
    (write_skill("guarded") / "notes.md").write_text("x")
    with pytest.raises(UsageError) as caught:
        read_skill_file(list_skills(home).find("guarded"), "nots.md")
    assert caught.value.hint == "It has: SKILL.md, notes.md"


def test_a_file_that_is_no_text_or_too_large_or_a_pipe_is_refused(
    home: Path, write_skill: WriteSkill
) -> None:
    directory = write_skill("guarded")
    (directory / "image.png").write_bytes(b"\x89PNG\xff\xfe")
    (directory / "large.txt").write_bytes(b"x" * 1_000_001)
    os.mkfifo(directory / "pipe")
    skill = list_skills(home).find("guarded")
    for name, reason in (
        ("image.png", "not text"),
        ("large.txt", "larger than"),
        ("pipe", "not a regular file"),
    ):
        with pytest.raises(SkillError, match=reason):
            read_skill_file(skill, name)
