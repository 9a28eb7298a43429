"""`hermes env check harbor`: solutions score 1, nothing scores 0, nobody steals; and `hermes env clean`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes.config.settings import SandboxSettings
from hermes.envs.builtin.harbor import HarborConfig, HarborEnv
from hermes.envs.harbor.check import check_tasks
from hermes.envs.harbor.dataset import read_tasks
from hermes.envs.harbor.place import PlaceOptions
from hermes.envs.harbor.places import open_places
from hermes.envs.servers.config import APIServerConfig
from hermes.sandbox.open import unusable_reason
from tests.cli.process import hermes
from tests.envs.harbor.folders import TOML, alone_with_the_engine, write_task
from tests.envs.harbor.scale import check_with_a_kill, write_tasks

pytestmark = pytest.mark.skipif(
    unusable_reason("bubblewrap") is not None, reason=f"bubblewrap: {unusable_reason('bubblewrap')}"
)
PLACE = ("--env.place", "bubblewrap")
GIVES = "echo %s > /logs/verifier/reward.txt"


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks"
    write_task(folder / "good")
    write_task(folder / "easy", test=GIVES % 1)
    write_task(folder / "hard", test=GIVES % 0)
    write_task(folder / "silent", test="echo why not")
    write_task(folder / "unsolved", solution=None)
    write_task(folder / "gpu", toml="[environment]\ngpus = 1")
    write_task(folder / "alpine", dockerfile="FROM alpine")
    write_task(folder / "broken", dockerfile="FROM debian\nRUN echo because; false")
    write_task(folder / "endless", toml=TOML.replace("60", "1"), test="sleep 1000")
    return folder


def check(home: Path, folder: Path, *options: str) -> dict[str, Any]:
    done = hermes(home, "env", "check", "harbor", str(folder), "--json", *PLACE, *options, timeout_s=300)
    report: dict[str, Any] = json.loads(done.stdout)
    problems = [*report["bad"], *(row for row in report["tasks"] if not row["sound"])]
    assert done.returncode == (1 if problems else 0)
    return report


def test_a_report_names_what_is_wrong_with_each_task(home: Path, tasks: Path) -> None:
    listed = {row["task"]: row for row in check(home, tasks)["tasks"]}
    assert not listed["alpine"]["place"] and listed["good"]["place"] == "bubblewrap"
    report = check(home, tasks, "--solutions", "--red-team")
    assert [bad["name"] for bad in report["bad"]] == ["gpu"]
    rows = {row["task"]: row for row in report["tasks"]}
    good = rows.pop("good")
    assert (good["solution"], good["nothing"], good["problem"]) == (1, 0, "") and good["cheats"] > 10
    for name, part in {
        "easy": "does nothing earns 1",
        "hard": "solution earns 0",
        "silent": "why not",
        "unsolved": "no reference solution",
        "alpine": "alpine is not at hand",
        "broken": "because",
        "endless": "did not end within 1 s",
    }.items():
        assert part in rows.pop(name)["problem"], name
    assert not rows


def test_a_check_goes_on_where_it_was(home: Path, tasks: Path) -> None:
    folder = write_task(tasks.parent / "one/t")
    first = check(home, folder, "--solutions")["tasks"][0]
    kept = home / "harbor/verdicts.jsonl"
    lines = kept.read_text().splitlines()
    assert check(home, folder, "--solutions")["tasks"][0] == first
    assert kept.read_text().splitlines() == lines
    check(home, folder, "--solutions", "--again")
    assert len(kept.read_text().splitlines()) == len(lines) + 1
    (folder / "tests/more").write_text("x")  # another task now
    check(home, folder, "--solutions")
    assert len(kept.read_text().splitlines()) == len(lines) + 2


async def test_training_leaves_out_what_failed(
    home: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(home))
    check(home, tasks, "--solutions")
    assert await keys(tasks) == {"good"}
    assert await keys(tasks, unsound=True) >= {"good", "easy", "hard", "silent", "unsolved"}


async def keys(folder: Path, **settings: Any) -> set[str]:
    server = APIServerConfig(base_url="http://127.0.0.1:9/v1", server_type="openai", health_check=False)
    env = HarborEnv(
        HarborConfig(dataset_path=str(folder), place="bubblewrap", use_wandb=False, **settings), [server]
    )
    await env.setup()
    names = {(await env.get_next_item()).key for _ in range(30)}
    await env.close()
    return names


def test_clean_removes_what_was_built(home: Path, tmp_path: Path) -> None:
    check(home, write_task(tmp_path / "t"), "--solutions")
    assert any((home / "harbor/roots").iterdir())
    with alone_with_the_engine():
        removed = json.loads(hermes(home, "env", "clean", "--json").stdout)
    assert removed["roots"] == 1 and not [path for path in (home / "harbor/roots").iterdir() if path.is_dir()]
    assert not any((home / "harbor/trials").iterdir())
    check(home, tmp_path / "t", "--solutions", "--again")


async def test_what_was_built_is_not_kept_where_the_disk_is_short(tmp_path: Path, home: Path) -> None:
    for name in ("a", "b"):
        write_task(tmp_path / "tasks" / name)
    tasks = read_tasks(tmp_path / "tasks").tasks
    places = open_places(home, SandboxSettings(), PlaceOptions(), "bubblewrap")
    for least_free_bytes, kept in ((0, 1), (1 << 60, 0)):
        verdicts = await check_tasks(
            tasks, places, home, solutions=True, again=True, least_free_bytes=least_free_bytes
        )
        assert all(verdict.sound for verdict in verdicts), verdicts
        assert len([path for path in (home / "harbor/roots").iterdir() if path.is_dir()]) == kept


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_hundred_tasks_are_checked_and_a_kill_leaves_nothing(tmp_path: Path, home: Path) -> None:
    write_tasks(tmp_path / "tasks", 500, "debian:12")
    check_with_a_kill(home, tmp_path / "tasks", 500, "bubblewrap")
