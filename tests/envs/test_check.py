"""`hermes env check`, on the template and on what can be wrong with an environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.envs.cli.check import CheckFinding, CheckReport, CheckState, check_class
from hermes.envs.cli.run import load_class
from hermes.envs.cli.template import write_template

REWARD = "return float(written"


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    return write_template("sums", tmp_path)


def check(path: Path, *settings: str) -> CheckReport:
    return check_class(lambda: load_class(path), settings)


def failures(report: CheckReport) -> list[CheckFinding]:
    return [finding for finding in report.findings if finding.state is CheckState.FAILED]


def test_the_template_passes_and_leaves_nothing_in_the_store(sums: Path) -> None:
    report = check(sums, "--env.seed", "3")
    assert report.passed, failures(report)
    assert [finding.name for finding in report.findings][:4] == ["imports", "sets up", "prompts", "runs"]
    assert not (sums.parent / "home" / "hermes.db").exists()


@pytest.mark.parametrize(
    ("old", "new", "what", "words"),
    [
        ("import random", "import no_such_package", "imports", "no_such_package"),
        ("import random", "import random\nraise RuntimeError('at import')", "imports", "at import"),
        (REWARD, "return 1.0 or float(written", "rewards vary", "rewards seen: 1"),
        (REWARD, "return float('Reward' in str(result) or written", "only claims", "earned 1"),
        (REWARD, "return 0.5 * float(written", "gold earns 1.0", "earned 0.5"),
        (REWARD, "raise KeyError('lost') or float(written", "runs", "KeyError: 'lost'"),
        (REWARD, "return float('nan') or float(written", "runs", "nan"),
        (REWARD, "return str(written", "runs", "not a finite number"),
        (REWARD, "return -1.0 + float(written", "runs", "outside of 0 … 1"),
        ("chance = random", "raise OSError('no data'); chance = random", "sets up", "no data"),
        ("self._next += 1", "return None", "sets up", "returned none"),
        ('return "Add up', 'return "" and "Add up', "prompts", "different"),
        ('return "Add up', 'return item["no such key"] + "Add up', "prompts", "KeyError: 'no such key'"),
        ("total = str(sum(", "total = item['lost'] or str(sum(", "gold earns 1.0", "KeyError: 'lost'"),
        (
            "everything = ",
            "raise KeyError('lost'); everything = ",
            "exploits earn no more",
            "KeyError: 'lost'",
        ),
        ('return {"numbers.txt"', 'return 1 / 0 and {"numbers.txt"', "runs", "ZeroDivisionError"),
    ],
)
def test_what_is_wrong_is_found(sums: Path, old: str, new: str, what: str, words: str) -> None:
    changed = sums.read_text().replace(old, new, 1)
    assert changed != sums.read_text()
    sums.write_text(changed)
    found = failures(check(sums))
    assert any(what in finding.name and words in finding.detail for finding in found), found


def test_what_an_environment_does_not_offer_is_skipped_and_said(sums: Path) -> None:
    text = sums.read_text().replace("def gold(", "def gold_(").replace("def exploits(", "def exploits_(")
    sums.write_text(text)
    report = check(sums)
    assert report.passed
    skipped = [finding.name for finding in report.findings if finding.state is CheckState.SKIPPED]
    assert skipped == ["gold earns 1.0", "exploits earn no more than doing nothing", "rewards vary"]


@pytest.mark.parametrize("gold", ["def gold_(", "def gold(self, item):\n        return []\n\n    def gold_("])
def test_where_nothing_solves_a_task_equal_rewards_are_not_held_against_it(sums: Path, gold: str) -> None:
    sums.write_text(sums.read_text().replace("def gold(", gold))
    report = check(sums)
    assert report.passed, failures(report)
    skipped = [finding.name for finding in report.findings if finding.state is CheckState.SKIPPED]
    assert skipped == ["gold earns 1.0", "rewards vary"]


def test_settings_that_do_not_exist_are_refused(sums: Path) -> None:
    (found,) = failures(check(sums, "--env.sed", "3"))
    assert "sed" in found.detail


def test_an_environment_without_an_agent_is_loaded_and_set_up(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text(
        "from hermes.envs.base import BaseEnv\n"
        "class Plain(BaseEnv):\n"
        "    async def setup(self): pass\n"
        "    async def get_next_item(self): return 1\n"
        "    async def evaluate(self, *args, **kwargs): pass\n"
    )
    report = check(path)
    assert report.passed
    assert [(finding.name, finding.state.value) for finding in report.findings] == [
        ("imports", "ok"),
        ("sets up", "ok"),
        ("runs", "skipped"),
    ]
