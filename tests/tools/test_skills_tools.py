"""The skills toolset, called the way a model calls it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hermes.core import JSON
from hermes.errors import ToolError
from tests.skills.conftest import skill_text
from tests.tools.bench import error, text
from tests.tools.services import open_service_bench


@dataclass
class Person:
    agrees: bool = True
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def approve(self, kind: str, action: str) -> None:
        self.asked.append((kind, action))
        if not self.agrees:
            raise ToolError("no", kind="refused")


async def test_skills_are_listed_by_category(tmp_path: Path) -> None:
    async with open_service_bench(tmp_path) as bench:
        everything = json.loads(await text(bench, "skills_list"))
        mlops = json.loads(await text(bench, "skills_list", category="mlops"))
        _, message = await error(bench, "skills_list", category="cooking")
    assert everything["categories"] == mlops["categories"] == ["hermes", "mlops", "research"]
    assert set(mlops["skills"]) == {"mlops"} and set(everything["skills"]) == {"hermes", "mlops", "research"}
    assert "vllm" in mlops["skills"]["mlops"]
    assert all(len(line) <= 80 for lines in everything["skills"].values() for line in lines.values())
    assert message == "there is no category 'cooking'; there are hermes, mlops, research."


async def test_a_skill_for_another_system_is_not_offered(tmp_path: Path) -> None:
    directory = tmp_path / "home" / "skills" / "registry"
    directory.mkdir(parents=True)
    (directory / "SKILL.md").write_text(skill_text("registry", extra="platforms: [windows]\n"))
    async with open_service_bench(tmp_path) as bench:
        listed = json.loads(await text(bench, "skills_list"))
        assert "registry" not in listed["skills"].get("user", {})


async def test_a_skill_and_its_files_are_read(tmp_path: Path) -> None:
    directory = tmp_path / "home" / "skills" / "kiln"
    directory.mkdir(parents=True)
    (directory / "SKILL.md").write_text(skill_text("kiln", body="Heat it."))
    (directory / "cones.md").write_text("cone 10")
    async with open_service_bench(tmp_path) as bench:
        skill = json.loads(await text(bench, "skill_view", name="kiln"))
        assert (skill["content"], skill["files"], skill["origin"]) == ("Heat it.\n", ["cones.md"], "user")
        assert await text(bench, "skill_view", name="kiln", file_path="cones.md") == "cone 10"
        _, unknown = await error(bench, "skill_view", name="kilm")
        assert unknown == "there is no skill 'kilm'. did you mean kiln?"
        _, outside = await error(bench, "skill_view", name="kiln", file_path="../../config.yaml")
        assert "outside the directory" in outside


async def test_a_person_agrees_to_the_exact_text_before_a_skill_is_saved(tmp_path: Path) -> None:
    person = Person()
    first, second = skill_text("kiln"), skill_text("kiln", body="Heat it slowly.")
    file = tmp_path / "home" / "skills" / "kiln" / "SKILL.md"
    async with open_service_bench(tmp_path, approver=person) as bench:
        await text(bench, "skill_manage", action="create", name="kiln", content=first)
        assert file.read_text() == first
        said = await text(bench, "skill_manage", action="edit", name="kiln", content=second)
        assert file.read_text() == second
        same = await text(bench, "skill_manage", action="edit", name="kiln", content=second)
        await text(bench, "skill_manage", action="delete", name="kiln")
    assert not file.parent.exists()
    # The whole new text can be read from the diff, with the mark of what changed.
    diff = person.asked[1][1].removeprefix("edit the skill 'kiln':\n")
    kept = [line[1:] for line in diff.splitlines()[1:] if not line.startswith("-")]
    assert kept == second.splitlines() and "-Do it." in diff
    assert person.asked == [
        ("skill", f"create the skill 'kiln':\n{first}"),
        ("skill", f"edit the skill 'kiln':\n{diff}"),
        ("skill", "delete the skill 'kiln'"),
    ]
    assert said.startswith("saved the skill 'kiln':\n") and "-Do it.\n+Heat it slowly." in said
    assert same == "the skill 'kiln' has this content already."


async def test_a_refusal_changes_nothing(tmp_path: Path) -> None:
    async with open_service_bench(tmp_path, approver=Person(agrees=False)) as bench:
        content = skill_text("kiln")
        kind, _ = await error(bench, "skill_manage", action="create", name="kiln", content=content)
    assert kind == "refused"
    assert not (tmp_path / "home" / "skills").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"action": "create", "name": "kiln"}, "needs content"),
        ({"action": "create", "name": "kiln", "content": "no front matter"}, "does not start with"),
        ({"action": "create", "name": "../kiln", "content": skill_text("kiln")}, "is 'kiln', but"),
        (
            {"action": "create", "name": "kiln", "content": skill_text("kiln", body="x" * 300_000)},
            "larger than",
        ),
        (
            {"action": "edit", "name": "arxiv", "content": skill_text("arxiv")},
            "bundled skills cannot be changed",
        ),
        ({"action": "delete", "name": "arxiv"}, "bundled skills cannot be changed"),
        ({"action": "rename", "name": "arxiv"}, "action"),
    ],
)
async def test_nobody_is_asked_about_what_cannot_be_done(
    tmp_path: Path, arguments: dict[str, JSON], reason: str
) -> None:
    person = Person()
    async with open_service_bench(tmp_path, approver=person) as bench:
        _, message = await error(bench, "skill_manage", **arguments)
    assert reason in message
    assert person.asked == []


async def test_creating_what_exists_is_an_error(tmp_path: Path) -> None:
    async with open_service_bench(tmp_path) as bench:
        content = skill_text("kiln")
        await text(bench, "skill_manage", action="create", name="kiln", content=content)
        _, message = await error(bench, "skill_manage", action="create", name="kiln", content=content)
    assert "exists already; use the action 'edit'" in message
