"""At a terminal of 80 columns: no line is wider, tall output is paged, colour follows NO_COLOR and TERM."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.rl.run import ProcessStatus, RlRun, RunState, RunStatus
from hermes.rl.run_config import RunConfig
from hermes.training.start_weights import checkpoint_folder
from tests.cli.process import PASSED_ON

COMMANDS = (
    *("trajectories list", "env list", "tools", "config show", "doctor", "skills search axolotl"),
    *("rl plan --model Qwen/Qwen3-8B --gpus 1", "rl config --env calculator", "--help", "models"),
    *("rl status", "rl results", "rl doctor", "rl status --all", "policy list", "batch -h"),
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OTHER = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b\][^\x07]*\x07")
ROOT = Path(__file__).parents[2]


def shown(tmp_path: Path, lines: tuple[str, ...], **environ: str) -> str:
    """What a terminal of 80 columns gets from the commands, one after the other."""
    script = "; ".join(f"{sys.executable} -m hermes {line}" for line in lines)
    pid, descriptor = pty.fork()
    if pid == 0:
        passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        home = {"HERMES_HOME": str(tmp_path), "PAGER": "cat", "TERM": "xterm", "LANG": "C.UTF-8"}
        command = ["sh", "-c", f"stty cols 80 rows 40; {script}"]
        os.chdir(tmp_path)
        os.execvpe("sh", command, {**passed, **home, **environ})
    text = b""
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # Linux: the other side is closed
            break
        if not part:
            break
        text += part
    os.close(descriptor)
    os.waitpid(pid, 0)
    return text.decode("utf-8", "replace")


@pytest.fixture(scope="module")
def sample_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with three recorded trajectories."""
    tmp_path = tmp_path_factory.mktemp("home")
    sample = ROOT / "scripts/docs/sample.jsonl"
    environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    subprocess.run(
        [sys.executable, "-m", "hermes", "import", str(sample)],
        env={**environ, "HERMES_HOME": str(tmp_path)},
        capture_output=True,
        check=True,
    )
    add_failed_run(tmp_path)
    return tmp_path


def add_failed_run(home: Path) -> None:
    """A run whose reason, log and checkpoint's path are longer than a terminal is wide."""
    run, message = RlRun(home, "long-lines"), "no signal: " + "the scores within each group were equal, " * 4
    run.folder.mkdir(parents=True)
    RunConfig.parse({"env": {}, "run": {"model": "hermes/smollm2", "device": "cpu"}}, "test").write(
        run.folder
    )
    (run.folder / "metrics.jsonl").write_text('{"step": 1, "health/group_signal": 0.0, "reward/mean": 0}\n')
    path = "tinker://01M7MDFZ9APPMNPP480SQX0Q0R:train:0/sampler_weights/step-1"
    (run.folder / "training.json").write_text(json.dumps({"kept": [[1, path, path]]}))
    checkpoint_folder(run.folder / "engine", path).mkdir(parents=True)
    run.log_path("trainer").parent.mkdir(parents=True)
    run.log_path("trainer").write_text(f"(step 1 … 10 s)\nerror: {message}\n")
    reason = f"trainer exited (1): {message}"
    processes = {"trainer": ProcessStatus(exit_code=1, starts=1)}
    status = RunStatus(RunState.FAILED, reason, started_at_ms=1, ended_at_ms=2, processes=processes)
    run.write_status(status)


@pytest.mark.timeout(300)
def test_no_command_is_wider_than_80_columns(sample_home: Path) -> None:
    text = shown(sample_home, COMMANDS)
    lines = [line.rpartition("\r")[2] for line in _COLOUR.sub("", _OTHER.sub("", text)).split("\r\n")]
    assert len(lines) > 150, text[-2000:]
    assert [line for line in lines if len(line) > 80] == []
    assert text.count("  | error: no signal") == 1 and "(step 1 … 10 s)" not in text, "waiting is no news"


def test_output_taller_than_the_terminal_goes_through_the_pager(sample_home: Path) -> None:
    tall, short = ("trajectories show last",), ("policy list",)
    assert "paged>" in shown(sample_home, tall, PAGER="sed s/^/paged>/", LINES="8")
    assert "paged>" not in shown(sample_home, short, PAGER="sed s/^/paged>/")


def test_colour_follows_the_terminal_and_no_color(sample_home: Path) -> None:
    coloured = ("trajectories show last",)
    assert _COLOUR.search(shown(sample_home, coloured))
    assert not _COLOUR.search(shown(sample_home, coloured, NO_COLOR="1"))
    assert "\x1b" not in shown(sample_home, coloured, TERM="dumb")
