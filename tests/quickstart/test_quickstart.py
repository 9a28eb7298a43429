"""The quickstart as a person starts it: whole, and interrupted. Every stage is real."""

from __future__ import annotations

import json
import math
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
    told = json.loads(done.stdout)
    assert list(told["policies"]) == ["base", "after SFT", "after GRPO"]
    for measured in told["policies"].values():
        assert measured["greedy"]["n"] == measured["sampled"]["n"] == 4
        assert measured["greedy"]["method"] == "wilson"
    assert told["generated"] == 8 and 0 < told["right"] <= 8
    assert len(told["losses"]) == 2 and told["losses"][1] < told["losses"][0]
    assert [point["step"] for point in told["curve"]] == [1, 2]
    assert all(math.isfinite(point["reward"]) for point in told["curve"])
    spent = {stage["name"]: stage["tokens"] for stage in told["stages"]}
    assert spent["generate"]["sampled"] > 0 and spent["SFT"]["trained"] > 0 and spent["GRPO"]["sampled"] > 0
    folder = Path(told["folder"])
    assert {"report.html", "reward.svg", "report.json", "sft.jsonl"} <= {
        path.name for path in folder.iterdir()
    }
    rows = [json.loads(line) for line in (folder / "sft.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == told["right"]
    assert all("12 * 7" not in json.dumps(row) for row in rows)  # the examples are not data
    listed = json.loads(hermes(home, "trajectories", "list", "--run", told["run_name"], "--json").stdout)
    assert len(listed) == 8
    sent = (folder / "logs" / "env-0.log").read_text("utf-8")
    assert "; 4 sent" in sent, "no more groups than the trainer's two steps take"
    assert remaining(folder) == []


NEXT = """
set -eu
hermes() { "$PYTHON" -m hermes "$@"; }
hermes quickstart --fast --output "$OUT" > "$OUT/said"
sed -n '/^Next:/,$p' "$OUT/said" | sed -n 's/^  \\(hermes .*[^ ]\\)  *#.*/\\1/p' > "$OUT/next"
while read -r command <&3; do
    echo "+ $command"
    case $command in
        *"engine serve"*) eval "$command" > "$OUT/engine.log" 2>&1 &
            until hermes engine adapters > /dev/null 2>&1; do kill -0 $!; done ;;
        *) eval "$command" ;;
    esac
done 3< "$OUT/next"
kill $!
"""
"""The quickstart, and then every command that it proposes, as it is written there."""


@pytest.mark.timeout(1200)
def test_without_a_network_it_runs_and_what_it_proposes_next_works(home: Path, tmp_path: Path) -> None:
    alone = ["bwrap", "--dev-bind", "/", "/", "--unshare-net", "--unshare-pid", "--die-with-parent"]
    environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    done = subprocess.run(
        [*alone, "bash", "-c", NEXT],
        env={**environ, "HERMES_HOME": str(home), "OUT": str(tmp_path), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=1100,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    proposed = [line for line in done.stdout.splitlines() if line.startswith("+ hermes")]
    assert len(proposed) == 5, done.stdout
    assert "calculator" in done.stdout.split("+ hermes env list")[1]
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
