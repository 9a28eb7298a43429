"""A stranger's environment in process and evaluate mode: files, carrying on after a kill, and bad input."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes.envs.modes.process import journal_path
from tests.compat.world import GUESSING, SUMS, Running, adder, drive, end, item_of
from tests.envs.token_source import TokenServer, said
from tests.fakes.provider import FakeProvider, delayed, status, text
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def home(bundled_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(bundled_home))
    monkeypatch.chdir(tmp_path)


def groups_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_process_writes_groups_and_a_page_where_it_always_did(tmp_path: Path) -> None:
    with adder() as model:
        error = Running("process", SUMS, f"--openai.base_url={model.base_url}").ended()
    assert error is None
    groups = groups_in(tmp_path / "data" / "sums.jsonl")
    assert sorted(map(item_of, groups)) == [1, 2, 3, 4], "total_steps of config_init"
    for group in groups:
        assert len(group["tokens"]) == 2 and set(group["scores"]) <= {1.0, -1.0}
        for tokens, mask in zip(group["tokens"], group["masks"], strict=True):
            assert len(tokens) == len(mask) and -100 in mask and mask[-1] != -100
    page = (tmp_path / "data" / "sums.html").read_text()
    assert page.count("<summary>Group ") == 4
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["sums.html", "sums.jsonl"]


def test_a_second_run_writes_a_second_file(tmp_path: Path) -> None:
    with adder() as model:
        for _ in range(2):
            assert Running("process", SUMS, f"--openai.base_url={model.base_url}").ended() is None
    assert len(groups_in(tmp_path / "data" / "sums.jsonl")) == 4
    assert len(groups_in(tmp_path / "data" / "sums_1.jsonl")) == 4


def test_groups_are_made_at_the_same_time() -> None:
    with FakeProvider(lambda request: delayed(0.2, text("no idea"))) as model:
        assert Running("process", SUMS, f"--openai.base_url={model.base_url}").ended() is None
        assert model.max_in_flight >= 4


@pytest.mark.slow
def test_a_killed_process_run_carries_on_without_a_gap_or_a_double(
    bundled_home: Path, tmp_path: Path
) -> None:
    out = tmp_path / "groups.jsonl"
    with adder(lambda count: None) as model:
        flags = [
            f"--openai.base_url={model.base_url}",
            f"--env.data_path_to_save_groups={out}",
            "--env.total_steps=400",
            "--env.max_num_workers=4",
        ]
        with drive(bundled_home, "process", SUMS, *flags, cwd=tmp_path) as running:
            wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") >= 20)
            running.kill()
            end(running)
        before = out.read_bytes()
        with out.open("ab") as torn:
            torn.write(b'{"tokens": [[1, 2')
        assert journal_path(out).exists()
        assert Running("process", SUMS, *flags).ended() is None
    items = [item_of(group) for group in groups_in(out)]
    assert sorted(items) == list(range(1, 401))
    first = before.split(b"\n")[:10]
    assert out.read_bytes().split(b"\n")[:10] == first, "what was written before the kill stays"
    assert not journal_path(out).exists()


def test_an_unfinished_run_with_other_settings_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "groups.jsonl"
    with adder() as model:
        flags = [f"--openai.base_url={model.base_url}", f"--env.data_path_to_save_groups={out}"]
        out.write_text("not ours\n")
        journal_path(out).write_text('{"settings": "another run"}\n')
        assert Running("process", SUMS, *flags).ended() is None
    assert out.read_text() == "not ours\n"
    assert len(groups_in(tmp_path / "groups_1.jsonl")) == 4


def test_exact_tokens_are_written_too(tmp_path: Path) -> None:
    with TokenServer(lambda ids, params: said([500, 2])) as model:
        error = Running("process", GUESSING, f"--openai.base_url={model.base_url}").ended()
    assert error is None
    groups = groups_in(tmp_path / "data" / "groups.jsonl")
    assert len(groups) == 3
    for mask in (mask for group in groups for mask in group["masks"]):
        assert [token for token in mask if token != -100] == [500, 2, 500, 2]


def test_a_server_without_tokens_cannot_be_passed_off_as_exact() -> None:
    with adder() as model:
        flags = (f"--openai.base_url={model.base_url}", "--openai.server_type=openai")
        error = Running("process", GUESSING, *flags).ended()
    assert error is not None and "nothing it answers can be trained on" in error.message


def test_a_model_that_fails_now_and_then_costs_no_group(tmp_path: Path) -> None:
    with adder(lambda count: status(500) if count % 5 == 0 else None) as model:
        error = Running("process", SUMS, f"--openai.base_url={model.base_url}").ended()
    assert error is None
    assert sorted(map(item_of, groups_in(tmp_path / "data" / "sums.jsonl"))) == [1, 2, 3, 4]


def test_a_model_that_refuses_the_key_ends_the_run_at_once() -> None:
    with FakeProvider([], api_key="right") as model:
        error = Running("process", SUMS, f"--openai.base_url={model.base_url}").ended()
        assert len([request for request in model.requests if request.json]) <= 8
    assert error is not None and "401" in error.message


@pytest.fixture
def variant(tmp_path: Path) -> Callable[[str, str], Path]:
    """The sums environment with one thing changed."""

    def change(old: str, new: str) -> Path:
        source = SUMS.read_text()
        assert old in source
        path = tmp_path / f"variant_{abs(hash(new))}.py"
        path.write_text(source.replace(old, new))
        return path

    return change


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        ("float('nan')", "bad score"),
        ("'very good'", "bad score"),
        ("1 / 0", "ZeroDivisionError"),
        ("None", "bad score"),
    ],
)
def test_a_reward_that_is_no_number_is_never_written_as_one(
    variant: Callable[[str, str], Path], tmp_path: Path, score: str, reason: str
) -> None:
    right = '1.0 if choice.message.content == str(item["a"] + item["b"]) else -1.0'
    file = (
        variant(right, score)
        .read_text()
        .replace(
            'for score in scores["scores"]:\n            self.percent_correct_buffer.append(max(score, 0))',
            "pass",
        )
    )
    path = tmp_path / "bad_reward.py"
    path.write_text(file)
    with adder() as model:
        error = Running("process", path, f"--openai.base_url={model.base_url}").ended()
    assert error is not None and error.exit_code == 1
    assert "16 groups in a row" in error.message and reason in error.message
    assert list((tmp_path / "data").iterdir()) == [], "nor is an empty file left"


@pytest.mark.parametrize("nothing", ["return None, []", "return {**scores, 'tokens': []}, []"])
def test_an_environment_that_gives_nothing_for_many_items_goes_on_to_those_it_can_use(
    variant: Callable[[str, str], Path], tmp_path: Path, nothing: str
) -> None:
    """Twenty in a row: an environment filters answers, and a weak policy gives none that pass."""
    source = variant("        self.iter += 1\n", "        self.iter += 1\n").read_text()
    end = "return scores, []"
    assert end in source
    file = tmp_path / "picky.py"
    file.write_text(source.replace(end, f"if self.iter <= 20:\n            {nothing}\n        {end}"))
    with adder() as model:
        flags = (f"--openai.base_url={model.base_url}", "--env.max_num_workers=1", "--env.total_steps=2")
        assert Running("process", file, *flags).ended() is None
    assert len(groups_in(tmp_path / "data" / "sums.jsonl")) == 2


def test_items_that_run_out_end_the_run_with_what_there_is(
    variant: Callable[[str, str], Path], tmp_path: Path
) -> None:
    file = variant(
        "        self.iter += 1\n",
        "        self.iter += 1\n        if self.iter > 2:\n            return None\n",
    )
    with adder() as model:
        assert Running("process", file, f"--openai.base_url={model.base_url}").ended() is None
    assert len(groups_in(tmp_path / "data" / "sums.jsonl")) == 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_package_anywhere\n", "No module named 'no_such_package_anywhere'"),
        (
            "x = 1\nraise RuntimeError('data not found')\n",
            "broken.py:2 cannot be imported: RuntimeError: data not found",
        ),
        ("def broken(:\n", "broken.py:1 cannot be imported: SyntaxError"),
        ("from atroposlib.envs.base import NothingOfTheKind\n", "cannot import name 'NothingOfTheKind'"),
        ("x = 1\n", "defines no environment"),
    ],
)
def test_a_file_that_is_no_environment_is_said_to_be_none(tmp_path: Path, source: str, message: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(source)
    error = Running("process", file).ended()
    assert error is not None and error.exit_code == 2
    assert message in error.message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    error = Running("process", tmp_path / "nothing.py").ended()
    assert error is not None and "there is no file" in error.message


def test_data_that_is_missing_ends_the_run_with_its_own_words(variant: Callable[[str, str], Path]) -> None:
    file = variant("        self.iter = 0\n", "        self.iter = 0\n        open('/no/such/data.json')\n")
    with adder() as model:
        error = Running("process", file, f"--openai.base_url={model.base_url}").ended()
    assert error is not None and error.exit_code == 1
    assert "setup failed" in error.message and "/no/such/data.json" in error.message


def test_evaluate_writes_metrics_samples_and_settings_and_prints_a_table(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with adder() as model:
        flags = (f"--openai.base_url={model.base_url}", f"--env.data_dir_to_save_evals={tmp_path / 'evals'}")
        assert Running("evaluate", SUMS, *flags).ended() is None
    written = json.loads((tmp_path / "evals" / "metrics.json").read_text())
    assert written["config_general"]["model_name"] == "policy"
    assert isinstance(written["config_general"]["total_evaluation_time_seconds"], str)
    assert (
        written["results"]["atropos|sums_eval|0"]
        == written["results"]["all"]
        == {"eval/percent_correct": 0.5}
    )
    interval = written["confidence_intervals"]["score"]
    assert interval["method"] == "wilson" and interval["low"] < 0.5 < interval["high"]
    samples = groups_in(tmp_path / "evals" / "samples.jsonl")
    assert [sample["score"] for sample in samples] == [1, 0, 1, 0]
    settings = (tmp_path / "evals" / "evaluate_config.yaml").read_text()
    assert "group_size: 2" in settings and "api_key" not in settings
    printed = capfd.readouterr().out
    assert re.search(r"\| eval/percent_correct +\| 0\.5000", printed)


def test_an_evaluation_that_fails_says_why_and_does_not_succeed(variant: Callable[[str, str], Path]) -> None:
    file = variant(
        "        start = time.time()\n", "        raise KeyError('gold')\n        start = time.time()\n"
    )
    with adder() as model:
        error = Running("evaluate", file, f"--openai.base_url={model.base_url}").ended()
    assert error is not None and error.exit_code == 1 and "KeyError: 'gold'" in error.message


def test_files_that_import_their_neighbours_or_their_project_s_top_are_found(tmp_path: Path) -> None:
    project = tmp_path / "project"
    folder = project / "environments" / "near"
    folder.mkdir(parents=True)
    (project / "environments" / "shared.py").write_text("LARGEST = 3\n")
    (folder / "rules.py").write_text("SMALLEST = 1\n")
    source = "from environments.shared import LARGEST\nfrom .rules import SMALLEST\n" + SUMS.read_text()
    (folder / "near.py").write_text(source)
    with adder() as model:
        assert Running("process", folder / "near.py", f"--openai.base_url={model.base_url}").ended() is None
    assert len(groups_in(tmp_path / "data" / "sums.jsonl")) == 4


def test_a_failing_get_next_item_and_a_close_that_is_not_async_are_both_borne(
    variant: Callable[[str, str], Path],
) -> None:
    file = variant(
        "    async def get_next_item(self) -> Item:\n",
        "    def close(self):\n        self.closed = True\n\n"
        "    async def get_next_item(self) -> Item:\n        1 // 0\n",
    )
    with adder() as model:
        error = Running("process", file, f"--openai.base_url={model.base_url}").ended()
    assert error is not None and "get_next_item failed: ZeroDivisionError" in error.message
