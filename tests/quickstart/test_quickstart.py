"""The quickstart as a person starts it: whole, and interrupted. Every stage is real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.process import PASSED_ON, failure, hermes

pytestmark = pytest.mark.slow


@pytest.fixture
def home(bundled_home: Path, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(bundled_home / "models")
    return home


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("replicas", ["1", "2"])
def test_every_stage_runs_and_the_weights_change(home: Path, tmp_path: Path, replicas: str) -> None:
    options = ("--fast", "--engine-replicas", replicas, "--output", str(tmp_path), "--json")
    done = hermes(home, "quickstart", *options, timeout_s=1100)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert list(outcome["evaluations"]) == ["base model", "after the warm start", "after learning"]
    for measured in outcome["evaluations"].values():
        assert measured["n"] == 4 and measured["method"] == "wilson"
    assert outcome["generated"] == 8 and 0 < outcome["right"] <= 8
    assert [point["step"] for point in outcome["curve"]] == [1, 2]
    assert all(point["reward"]["n"] == 8 for point in outcome["curve"])
    assert [stage["name"] for stage in outcome["stages"]] == ["start", "generate", "SFT", "RL"]
    folder, run = Path(outcome["folder"]), outcome["run_name"]
    assert {"reward.svg", "report.json", "sft.jsonl"} <= {path.name for path in folder.iterdir()}
    rows = [json.loads(line) for line in (folder / "sft.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == outcome["right"]
    assert all("12 * 7" not in json.dumps(row) for row in rows)  # the examples are not data
    assert "step  2/2" in done.stderr and f"/runs/{run}" in done.stderr

    listed = json.loads(hermes(home, "trajectories", "list", "--run", run, "--limit", "100", "--json").stdout)
    assert len(listed) == 8 + 2 * 8, "the batch and two steps of eight; evaluations are runs of their own"
    untrained = json.loads(hermes(home, "trajectories", "list", "--run", f"{run}-base", "--json").stdout)
    assert [row["model"] for row in untrained] == ["hermes/smollm2"] * 4
    (described,) = json.loads(hermes(home, "rl", "status", "--all", "--json").stdout)["runs"]
    assert (described["run_id"], described["status"]) == (run, "completed")
    results = json.loads(hermes(home, "rl", "results", run, "--json").stdout)
    assert [row["step"] for row in results["evaluations"]] == [0, 2]
    assert "probe/gap" in results["final_metrics"], "the proof of training"
    (policy,) = json.loads(hermes(home, "policy", "list", "--json").stdout)["policies"]
    assert (policy["run_id"], policy["method"]) == (run, "grpo")
    assert remaining(folder) == [] and remaining(home) == []


@pytest.mark.timeout(1200)
def test_without_a_network_it_runs_and_its_policy_answers(home: Path, tmp_path: Path) -> None:
    """With the first of the two commands that it proposes, as it is written there."""
    script = """
set -eu
hermes() { "$PYTHON" -m hermes "$@"; }
hermes quickstart --fast --output "$OUT" > "$OUT/report"
talk=$(sed -n '/^Next:/,$p' "$OUT/report" | sed -n '2p')
echo "+$talk"
eval "$talk"
"""
    alone = ["bwrap", "--dev-bind", "/", "/", "--unshare-net", "--unshare-pid", "--die-with-parent"]
    environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    done = subprocess.run(
        [*alone, "bash", "-c", script],
        env={**environ, "HERMES_HOME": str(home), "OUT": str(tmp_path), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=1100,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "+  hermes --model policy:" in done.stdout
    kept = hermes(home, "trajectories", "show", "last", "--json").stdout
    assert "384 * 29" in kept and "policy" in kept, "the policy was asked, and that is kept"


def at_work(home: Path, output: Path) -> subprocess.Popen[str]:
    """A quickstart whose engine is up and answers for the base model."""
    environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, "-m", "hermes", "quickstart", "--fast", "--output", str(output)],
        env={**environ, "HERMES_HOME": str(home), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("2. "):
            break
    time.sleep(1)
    return process


@pytest.mark.timeout(300)
def test_ctrl_c_leaves_no_process_behind(home: Path, tmp_path: Path) -> None:
    process = at_work(home, tmp_path / "out")
    assert remaining(tmp_path / "out")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "Traceback" not in error, error
    assert remaining(tmp_path / "out") == []


@pytest.mark.timeout(300)
def test_an_engine_that_dies_is_named_with_its_log(home: Path, tmp_path: Path) -> None:
    process = at_work(home, tmp_path / "out")
    (engine,) = remaining(tmp_path / "out")
    os.kill(engine, signal.SIGKILL)
    _, error = process.communicate(timeout=240)
    assert process.returncode == 1
    assert error.startswith("error: engine was killed (signal 9). Its last lines:\n"), error
    assert "engine.log" in error.splitlines()[-1]


def test_a_gpu_that_is_not_there_is_said_at_once(home: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = hermes(home, "quickstart", "--device", "cuda", "--output", str(tmp_path / "out"))
    assert "no CUDA device" in failure(done, 2)[0]
    assert not (tmp_path / "out").exists()


def remaining(folder: Path) -> list[int]:
    """Servers that were started for this folder and still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "serve" in words and any(str(folder) in word for word in words):
            found.append(int(path.parent.name))
    return found
