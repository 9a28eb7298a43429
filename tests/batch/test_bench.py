"""`hermes bench` from the command line to its report, against a real endpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.cli.process import failure, hermes
from tests.fakes.provider import FakeProvider, Reply, status, text, tool_calls

WRONG = {"small": ("What is 3 + 3?", "What is 4 + 4?"), "<b>large</b>": ("What is 4 + 4?",)}


def answer(request: dict[str, Any]) -> Reply:
    """The large model computes first; each is wrong about some questions."""
    model, messages = request["model"], request["messages"]
    question = next(each["content"] for each in messages if each["role"] == "user")
    number = int(question.split()[2])
    if model != "small" and messages[-1]["role"] == "user":
        return tool_calls(
            [("calculator", {"expression": f"{number} + {number}"})], reasoning="<script>x</script>"
        )
    return text("no idea" if question in WRONG[model] else f"Answer: {2 * number}.")


@dataclass
class Bench:
    folder: Path
    provider: FakeProvider

    def __call__(self, *arguments: str, tasks: str = "tasks.jsonl") -> CompletedProcess[str]:
        return hermes(
            self.folder / "home",
            *("bench", "--dataset-file", str(self.folder / tasks), "--models", "small,<b>large</b>"),
            *("--output-dir", str(self.folder / "data"), "--base-url", self.provider.base_url),
            *("--toolsets", "math", "--num-workers", "1", *arguments),
        )


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("bench")
    rows = [{"id": f"sum-{n}", "prompt": f"What is {n} + {n}?", "expected": 2 * n} for n in range(2, 5)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    free = [{key: row[key] for key in ("id", "prompt")} for row in rows]
    (folder / "free.jsonl").write_text("".join(json.dumps(row) + "\n" for row in free))
    with FakeProvider(answer) as provider:
        yield Bench(folder, provider)


@pytest.fixture(scope="module")
def report(bench: Bench) -> dict[str, Any]:
    done = bench("--json", "--diff")
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def test_models_are_scored_by_exact_match_of_the_expected_answer(report: dict[str, Any]) -> None:
    small, large = report["scores"]
    assert report["scoring"] == "exact match of the answer"
    assert (small["model"], small["score"], large["score"]) == (
        "small",
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
    )
    assert small["interval"]["method"] == "wilson"
    assert (small["mean_turns"], large["mean_turns"], small["outcomes"]) == (1.0, 2.0, {"completed": 3})
    assert small["tokens"] == 45 and small["latency_p50_ms"] > 0


def test_wins_and_losses_are_counted_task_by_task(report: dict[str, Any]) -> None:
    (pair,) = report["pairs"]
    assert (pair["wins"], pair["losses"], pair["ties"], pair["p_value"]) == (0, 1, 2, 1.0)
    assert report["tasks"][1] == {"key": "sum-3", "scores": {"small": 0.0, "<b>large</b>": 1.0}}


def test_the_first_difference_of_two_trajectories_is_found(report: dict[str, Any]) -> None:
    (divergence,) = report["divergences"]
    assert (divergence["key"], divergence["difference"]["shared"]) == ("sum-3", 1)
    assert divergence["difference"]["left"][0]["content"] == "no idea"
    assert divergence["difference"]["right"][0]["tool_calls"][0]["name"] == "calculator"
    assert (divergence["left"]["reward"], divergence["right"]["reward"]) == (0.0, 1.0)


def test_the_same_command_asks_nothing_again_and_prints_a_table(bench: Bench, report: dict[str, Any]) -> None:
    before = len(bench.provider.posts)
    done = bench("--diff")
    assert done.returncode == 0, done.stderr
    assert len(bench.provider.posts) == before
    head, small, large, _, pair, _, task, left, right = done.stdout.splitlines()
    assert head.split()[:3] == ["model", "pass", "rate"]
    assert "33.3%" in small and "66.7%" in large
    assert pair.startswith("small against <b>large</b>: 0 won, 1 lost, 2 tied; difference -33.3 points")
    assert task == "task sum-3: after 1 equal message"
    assert "assistant: no idea" in left and "calculator(" in right


def test_a_reward_function_of_ones_own_replaces_exact_match(bench: Bench) -> None:
    path = bench.folder / "grade.py"
    path.write_text("def short(ctx):\n    return 1 / len(ctx.answer)\n")
    done = bench(
        "--json", "--run-name", "own", "--reward", f"{path}:short", "--models", "small", "--max-samples", "2"
    )
    report = json.loads(done.stdout)
    assert (report["scoring"], report["binary"]) == ("grade.py:short", False)
    assert report["scores"][0]["score"] == pytest.approx((1 / 10 + 1 / 7) / 2)  # "Answer: 4.", "no idea"


def test_without_expected_answers_models_are_compared_without_scores(bench: Bench) -> None:
    done = bench("--diff", tasks="free.jsonl")
    assert done.returncode == 0, done.stderr
    assert "pass rate" not in done.stdout and "against" not in done.stdout
    assert "task sum-3: after 1 equal message" in done.stdout


def test_a_model_named_twice_is_refused_before_anything_runs(bench: Bench) -> None:
    before = len(bench.provider.posts)
    error, fix = failure(bench("--models", "a,b,a"), 2)
    assert error == "--models names a twice"
    assert "provider/name" in fix
    assert len(bench.provider.posts) == before


def test_an_unknown_flag_is_named(bench: Bench) -> None:
    done = bench("--no-such-flag")
    assert done.returncode == 2
    assert "No such option '--no-such-flag'" in done.stderr


def test_a_model_whose_key_is_refused_leaves_the_table_of_the_others(tmp_path: Path) -> None:
    def reply(request: dict[str, Any]) -> Reply:
        return status(401) if request["model"] == "refused" else text("The answer is 6.")

    (tmp_path / "tasks.jsonl").write_text('{"prompt": "What is 3 + 3?", "expected": 6}\n')
    with FakeProvider(reply) as provider:
        done = hermes(
            tmp_path / "home",
            *("bench", "--dataset-file", str(tmp_path / "tasks.jsonl"), "--models", "good,refused"),
            *("--output-dir", str(tmp_path / "data"), "--base-url", provider.base_url),
            *("--toolsets", "math", "--num-workers", "1"),
        )
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"good .*100", done.stdout), done.stdout
    assert "refused" in done.stdout and "401" in done.stdout + done.stderr
