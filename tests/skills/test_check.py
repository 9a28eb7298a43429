"""The check of skills: what is named must exist, and what cannot be looked up is never ok."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.skills import list_skills
from skills_check.execute import run_skill
from skills_check.registry import newest_version, same_version
from skills_check.report import CheckVerdict, SkillReport
from skills_check.shell_block import HermesCommands
from skills_check.skill_check import Packages, check_skill
from tests.skills.conftest import WriteSkill
from tests.skills.registry import Registry, serve_registry, wheel

PINNED = "metadata:\n  hermes:\n    packages: [{name: kiln, version: '1.0'}]\n"
LINES_ABOVE = 10
"""Front matter and the first paragraph, in front of the part that has a mistake."""
KILN = {
    "kiln/__init__.py": "from kiln.fire import Fire, burn\nfrom .shapes import *\n",
    "kiln/fire.py": """
from dataclasses import dataclass
from pydantic import BaseModel
import argparse

@dataclass
class Glaze:
    colour: str = "blue"
    cone: int = 10

class Firing(BaseModel):
    glaze: Glaze | None = None
    hours: int = 8
    extra_args: dict | None = None

class Fire:
    def __init__(self, heat, *, slow=False):
        self.heat = heat
    def raise_heat(self, by=1):
        return self
    def _private(self): ...

class Hot(Fire):
    def __init__(self, colour, **kwargs):
        super().__init__(**kwargs)

def burn(wood, *, air=1.0):
    return wood

def loose(**kwargs): ...

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cone-number", type=int)
    parser.add_argument("--quiet", action="store_true")
""",
    "kiln/shapes.py": "class Bowl:\n    size: int = 1\n",
    "kiln/lazy.py": "def __getattr__(name):\n    raise AttributeError(name)\n",
}
HERMES = HermesCommands(
    lambda words: None if words[:1] == ["batch"] else f"no {words[:1]}", frozenset({"--json"})
)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serve_registry() as server:
        server.files["kiln-1.0-py3-none-any.whl"] = wheel(KILN, {"kiln": "kiln.fire:main"})
        yield server


def examine(home: Path, url: str, name: str = "porcelain") -> SkillReport:
    return check_skill(list_skills(home).find(name), HERMES, Packages(home / "cache", url, {}))


def problems(report: SkillReport) -> list[str]:
    return [str(problem) for problem in report.problems]


def block(language: str, *lines: str) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def test_what_exists_is_ok_and_is_counted(home: Path, write_skill: WriteSkill, registry: Registry) -> None:
    body = "\n\n".join(
        [
            block(
                "python",
                "import os",
                "from kiln import Fire, Bowl, burn",
                "fire = Fire(3, slow=True)",
                "fire.raise_heat(by=2).raise_heat()",
                "burn('oak', air=0.5)",
                "from kiln.fire import Hot, loose",
                "Hot('red', slow=True)",
                "loose(anything=1)",
            ),
            block("bash", "kiln --cone-number 6 --quiet=1 && pip install --no-deps kiln", "hermes batch"),
            block("yaml schema=kiln.fire.Firing", "hours: 3", "glaze: {cone: 6}", "extra_args: {any: 1}"),
            "Set `--cone-number`; see `kiln.fire.Fire`, and `--json` of Hermes.",
            "<!-- check: keys=kiln.fire.Firing -->\n| key | what |\n|---|---|\n| `hours` | time |",
        ]
    )
    write_skill("porcelain", extra=PINNED, body=body)
    report = examine(home, registry.url)
    assert problems(report) == [] and report.state is CheckVerdict.OK
    assert report.lookups >= 15 and report.sources == {"kiln 1.0": "kiln-1.0-py3-none-any.whl"}


@pytest.mark.parametrize(
    ("body", "line", "problem"),
    [
        (block("python", "import kiln.clay"), 2, "kiln.clay does not exist"),
        (block("python", "from kiln import Fier"), 2, "kiln has no name 'Fier' (nearest: Fire)"),
        (block("python", "import kiln", "kiln.fire.melt()"), 3, "kiln.fire has no name 'melt'"),
        (block("python", "import kiln", "kiln.burn('x', aire=1)"), 3, "no argument 'aire' (nearest: air)"),
        (block("python", "from kiln import Fire", "Fire(1, fast=1)"), 3, "Fire() has no argument 'fast'"),
        (
            block("python", "from kiln import Fire", "f = Fire(1)", "f.cool()"),
            4,
            "Fire has no attribute 'cool'",
        ),
        (
            block("python", "from kiln import Fire", "f = Fire(1)", "f.raise_heat(to=1)"),
            4,
            "has no argument 'to'",
        ),
        (block("python", "from kiln.fire import Hot", "Hot('x', hasty=1)"), 3, "no argument 'hasty'"),
        (block("python", "def broken(:"), 2, "is not valid Python"),
        (block("bash", "kiln --cone-numbr 3"), 2, "has no option --cone-numbr (nearest: --cone-number)"),
        (block("bash", "python -m kiln.fire \\", "  --loud"), 2, "python -m kiln.fire has no option --loud"),
        (block("bash", "python -m kiln.gone"), 2, "there is no module kiln.gone"),
        (block("bash", "echo 'x"), 2, "is not valid shell"),
        (block("bash", "hermes bach"), 2, "no ['bach']"),
        (
            block("yaml schema=kiln.fire.Firing", "hours: 1", "houres: 2"),
            3,
            "no field 'houres' (nearest: hours)",
        ),
        (block("yaml schema=kiln.fire.Firing", "glaze:", "  cones: 2"), 3, "no field 'glaze.cones'"),
        (block("yaml schema=kiln.fire.Gone", "a: 1"), 2, "the schema kiln.fire.Gone does not exist"),
        (block("json", "{'a': 1}"), 2, "is not valid JSON"),
        (block("yaml", "a: [1"), 3, "is not valid YAML"),
        (block("python skip", "x = 1"), 2, "a skipped block needs reason="),
        (block("python rum", "x = 1"), 2, "the attribute 'rum' of the block does not exist"),
        ("Use `--cone-nummer`.", 1, "no pinned package has --cone-nummer (nearest: --cone-number)"),
        ("See `kiln.fire.Fyre`.", 1, "kiln.fire.Fyre does not exist"),
        (
            "<!-- check: keys=kiln.fire.Firing -->\n| `huors` | x |",
            2,
            "has no field 'huors' (nearest: hours)",
        ),
        ("```python\nx = 1", 1, "a fenced block is not closed"),
    ],
)
def test_what_does_not_exist_fails_with_file_and_line(
    home: Path, write_skill: WriteSkill, registry: Registry, body: str, line: int, problem: str
) -> None:
    write_skill("porcelain", extra=PINNED, body=f"Text.\n\n{body}")
    report = examine(home, registry.url)
    assert report.state is CheckVerdict.FAILED
    first = problems(report)[0]
    assert first.startswith(f"SKILL.md:{LINES_ABOVE + line}: ") and problem in first


def test_names_of_a_module_that_fills_itself_are_left_open(
    home: Path, write_skill: WriteSkill, registry: Registry
) -> None:
    body = block("python", "import torch", "from kiln import Fire", "from kiln.lazy import anything")
    write_skill("porcelain", extra=PINNED, body=body)
    report = examine(home, registry.url)
    assert report.state is CheckVerdict.OK
    assert report.notes == [
        "left open by the source: kiln.lazy.anything",
        "not pinned, not looked into: torch",
    ]


def test_scripts_templates_and_references_are_checked_too(
    home: Path, write_skill: WriteSkill, registry: Registry
) -> None:
    directory = write_skill("porcelain", extra=PINNED)
    for path, text in {
        "scripts/fire.py": "import kiln\nkiln.gone()\n",
        "templates/firing.yaml": "# check: schema=kiln.fire.Firing\nhourz: 1\n",
        "references/more.md": block("python", "from kiln import Gone"),
    }.items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_text(text)
    texts = problems(examine(home, registry.url))
    assert [text.partition(": ")[0] for text in texts] == [
        "references/more.md:2",
        "scripts/fire.py:2",
        "templates/firing.yaml:2",
    ]


def test_a_registry_that_cannot_be_reached_is_not_ok_but_the_cache_is_used(
    home: Path, write_skill: WriteSkill, registry: Registry
) -> None:
    write_skill("porcelain", extra=PINNED, body=block("python", "import kiln"))
    offline = examine(home, "http://127.0.0.1:9/simple")
    assert offline.state is CheckVerdict.NOT_CHECKED
    assert offline.result == "not checked: kiln 1.0: 127.0.0.1 cannot be reached (ConnectError)"
    assert examine(home, registry.url).state is CheckVerdict.OK
    assert examine(home, "http://127.0.0.1:9/simple").state is CheckVerdict.OK


@pytest.mark.parametrize(
    ("pin", "problem"),
    [
        ("{name: kiln, version: '2.0'}", "the registry has no kiln 2.0. Its newest version is 1.0"),
        ("{name: klin, version: '1.0'}", "the registry has no package 'klin'"),
        ("{name: bad, version: '1.0'}", "bad-1.0-py3-none-any.whl cannot be read"),
    ],
)
def test_a_pin_that_cannot_be_had_fails(
    home: Path, write_skill: WriteSkill, registry: Registry, pin: str, problem: str
) -> None:
    registry.files["bad-1.0-py3-none-any.whl"] = b"not an archive"
    write_skill("porcelain", extra=PINNED.replace("{name: kiln, version: '1.0'}", pin))
    report = examine(home, registry.url)
    assert report.state is CheckVerdict.FAILED and problem in problems(report)[0]


def test_a_file_with_another_hash_is_refused(home: Path, write_skill: WriteSkill, registry: Registry) -> None:
    registry.wrong_hash = True
    write_skill("porcelain", extra=PINNED)
    assert "does not have the hash" in problems(examine(home, registry.url))[0]
    assert not list((home / "cache").rglob("*.whl"))


def test_html_registries_and_versions(registry: Registry, home: Path, write_skill: WriteSkill) -> None:
    registry.as_json = False
    write_skill("porcelain", extra=PINNED, body=block("python", "import kiln"))
    assert examine(home, registry.url).state is CheckVerdict.OK
    from skills_check.registry import list_files

    registry.files |= {"kiln-1.10-py3-none-any.whl": b"", "kiln-1.9.tar.gz": b"", "kiln-2.0rc1.tar.gz": b""}
    assert newest_version(list_files("kiln", registry.url)) == "1.10"
    assert same_version("1.0", "1.0.0") and not same_version("1.0", "1.0rc1")


def test_a_skill_whose_blocks_are_all_skipped_or_name_nothing_is_not_ok(
    home: Path, write_skill: WriteSkill, registry: Registry
) -> None:
    write_skill("porcelain", extra=PINNED, body=block('bash skip reason="needs a kiln"', "kiln --gone"))
    report = examine(home, registry.url)
    assert report.result == "not checked: all its blocks are skipped"
    assert report.notes == ["SKILL.md:10: not checked: needs a kiln"]
    write_skill("empty", extra=PINNED)
    assert examine(home, registry.url, "empty").state is CheckVerdict.NOT_CHECKED


def test_runnable_blocks_run_and_a_failure_is_a_problem(home: Path, write_skill: WriteSkill) -> None:
    body = "\n\n".join(
        [
            block("python run", "x = 2"),
            block("python run continues", "assert x == 2"),
            block("python run", "raise SystemExit('burnt')"),
            block("bash run", "test ! -e ~/secrets && ls"),
        ]
    )
    directory = write_skill("porcelain", body=body)
    (directory / "scripts").mkdir()
    (directory / "scripts" / "bad.py").write_text("import no_such_module_of_ours\n")
    report = check_skill(list_skills(home).find("porcelain"), HERMES, Packages(home / "cache", "", {}))
    run_skill(report, home / "cache")
    assert report.runs == 5
    assert [text.partition(": ")[0] for text in problems(report)] == ["scripts/bad.py", "SKILL.md:15"]
    assert "burnt" in problems(report)[1]


def test_a_block_runs_with_the_packages_it_names_and_one_that_cannot_be_installed_is_not_ok(
    home: Path, write_skill: WriteSkill, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", registry.url)
    registry.files["clay-1.0.tar.gz"] = b"it would have to be built"
    both = PINNED.replace("]", ", {name: clay, version: '1.0'}]")
    used = block("python run=kiln", "import click, kiln", "assert kiln.burn(2) == 2")
    missing = block("python run=clay", "import clay")
    write_skill("porcelain", extra=both, body=f"{used}\n\n{missing}")
    report = SkillReport(list_skills(home).find("porcelain"))
    run_skill(report, home / "cache")
    assert problems(report) == [] and report.runs == 1
    assert report.state is CheckVerdict.NOT_CHECKED
    assert "SKILL.md:15 cannot be run: pip cannot install clay==1.0 (No matching" in report.unchecked[0]
    write_skill("bowl", extra=PINNED, body=block("python run=klin", "import kiln"))
    bowl = SkillReport(list_skills(home).find("bowl"))
    run_skill(bowl, home / "cache")
    assert "run= names klin, which the skill does not pin" in bowl.result


def test_blocks_of_a_skill_do_not_get_the_keys_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    from skills_check.execute import _run

    monkeypatch.setenv("LAB_API_KEY", "sk-lab-0123456789abcdef")
    monkeypatch.setenv("PLAIN_SETTING", "kept")
    script = 'test -z "${LAB_API_KEY:-}" && test "$PLAIN_SETTING" = kept'
    assert _run(["bash", "-euo", "pipefail"], Path(sys.executable), script) is None
