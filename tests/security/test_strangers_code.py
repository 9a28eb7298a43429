"""Environment files and reward functions of strangers that misbehave while they are imported.

A command that only looks at such a file says one sentence that names it, and leaves nothing running. A
command that is there to run it says at least that the file ended it.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from hermes.batch.reward import check_reward
from hermes.config.load import load
from hermes.core import Message
from hermes.envs.cli.check import CheckReport, CheckState, check_file
from hermes.envs.cli.template import write_template
from hermes.errors import UsageError
from hermes.rl.config.resolve import EnvSelection, resolve
from hermes.sandbox import child_call
from hermes.store import Writer
from hermes.web.runs.fields import read_fields
from tests import records

OURS = """
from hermes.envs.agent.env import HermesAgentBaseEnv

class Env(HermesAgentBaseEnv):
    name = "stranger"
    async def get_next_item(self):
        return {"id": "1"}
    def format_prompt(self, item):
        return "say a"
    async def compute_reward(self, item, result, ctx):
        return 0.5
    def gold(self, item):
        return ()
"""
ATROPOS = """
from atroposlib.envs.base import BaseEnv

class Env(BaseEnv):
    name = "stranger"
    async def setup(self):
        pass
    async def get_next_item(self):
        return {"id": "1"}
    async def collect_trajectory(self, item):
        return None, []
    async def evaluate(self):
        pass
"""
STYLES = {"ours": OURS, "Atropos": ATROPOS}


class Misdeed(NamedTuple):
    code: str
    words: str
    """A pattern of the sentence; empty: the file is used as if nothing had been."""


MISDEEDS = {
    "ends the process": Misdeed("import os; os._exit(3)", "ended its process .*imported, with exit code 3"),
    "ends it well": Misdeed("import os; os._exit(0)", "ended its process .*imported, with exit code 0"),
    "crashes": Misdeed(
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended its process .*SIGSEGV"
    ),
    "SystemExit": Misdeed("raise SystemExit(4)", r":1 ends the process when it is imported: SystemExit: 4"),
    "sys.exit": Misdeed("import sys; sys.exit('usage: me')", r":1 ends the process .*usage: me"),
    "an exception of its own": Misdeed(
        "class Out(BaseException): pass\nraise Out('of here')", r":2 ends the process .*Out: of here"
    ),
    "GeneratorExit": Misdeed("raise GeneratorExit", ":1 ends the process"),
    "sleeps": Misdeed("import time; time.sleep(10_000)", "still being imported after"),
    "loops": Misdeed("while True: pass", "still being imported after"),
    "waits for input": Misdeed("input()", "EOFError"),
    "eats memory": Misdeed("a = [bytes(1 << 20) for _ in range(1 << 20)]", "MemoryError"),
    "recurses": Misdeed("def f(): return f()\nf()", "RecursionError"),
    "text of bytes that are none": Misdeed("raise ValueError('\\ud800\\x1b[2J')", "ValueError"),
    "prints rubbish": Misdeed("print('{\"passed\": 1}' * 1000)", ""),
    "closes its output": Misdeed("import os, sys; sys.stdout.close(); os.close(1)", ""),
    "closes every descriptor": Misdeed("import os; os.closerange(0, 256)", "Bad file descriptor"),
    "starts a thread that stays": Misdeed(
        "import threading, time; threading.Thread(target=time.sleep, args=(10_000,)).start()", ""
    ),
    "starts processes that stay": Misdeed(
        "import subprocess; subprocess.Popen(['setsid', 'sleep', '97531'])\n"
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(10_000)",
        "",
    ),
    "forges what is reported": Misdeed("import sys; sys.argv[:] = []; print('returned')", ""),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(child_call, "_memory_bytes", lambda: 2 << 30)
    return tmp_path / "home"


@pytest.fixture
def stranger(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file; what never ends is waited for shortly."""
    misdeed, style = request.param
    if "still" in MISDEEDS[misdeed].words:
        monkeypatch.setattr(child_call, "LOAD_LIMIT_S", 6.0)
    path = tmp_path / "stranger_env.py"
    path.write_text(f"{MISDEEDS[misdeed].code}\n{STYLES[style]}")
    return path


def check(path: Path) -> CheckReport:
    return check_file(path, "hermes.cli.env:check_in_child", (), lambda text: None, red_team=False)


def strangers_processes(path: Path) -> list[str]:
    """Processes, wherever they hang in the tree, that were started with the file's name or by it."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it ended in the meantime
            continue
    return [line for line in lines if str(path) in line or "sleep 97531" in line]


@pytest.mark.parametrize(
    ("stranger", "words"),
    [
        pytest.param((name, style), misdeed.words, id=f"{name}-{style}")
        for name, misdeed in MISDEEDS.items()
        for style in STYLES
    ],
    indirect=["stranger"],
)
def test_a_check_says_one_sentence_and_leaves_nothing_behind(stranger: Path, words: str) -> None:
    report = check(stranger)
    first = report.findings[0]
    assert first.name == "imports"
    if words:
        assert first.state is CheckState.FAILED
        assert re.search(words, first.detail), first.detail
        assert str(stranger) in first.detail
        assert "Traceback" not in first.detail
    else:
        assert first.state is CheckState.OK, first.detail
        assert "goes on" not in [finding.name for finding in report.findings], report.findings
    assert strangers_processes(stranger) == []


@pytest.mark.parametrize(
    ("method", "name"),
    [("format_prompt", "sets up"), ("compute_reward", "prompts"), ("get_next_item", "imports")],
)
def test_findings_so_far_are_kept_when_a_later_step_ends_the_process(
    method: str, name: str, tmp_path: Path
) -> None:
    path = write_template("late", tmp_path)
    text, count = re.subn(
        rf"(def {method}\(.*\) -> .*:\n)", r"\1        import os; os._exit(5)\n", path.read_text()
    )
    assert count == 1
    path.write_text(text)
    report = check(path)
    assert [finding.name for finding in report.findings][-2:] == [name, "goes on"]
    assert (
        f"{path.name} ended its process after it was imported, with exit code 5" in report.findings[-1].detail
    )


INSPECTED = ["ends the process", "SystemExit", "sleeps", "eats memory"]


@pytest.mark.parametrize(
    ("stranger", "words"),
    [pytest.param((name, "ours"), MISDEEDS[name].words, id=name) for name in INSPECTED],
    indirect=["stranger"],
)
def test_the_settings_of_a_run_read_a_file_in_a_child_first(stranger: Path, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        resolve(load(), EnvSelection("stranger", str(stranger)))
    assert str(stranger) in caught.value.message


@pytest.mark.parametrize("name", [*INSPECTED, "closes its output", "starts processes that stay"])
def test_a_form_of_the_web_app_reads_a_file_in_a_child(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = MISDEEDS[name].words
    if "still" in words:
        monkeypatch.setattr(child_call, "LOAD_LIMIT_S", 6.0)
    path = home / "environments" / "stranger_env.py"
    path.parent.mkdir(parents=True)
    path.write_text(f"{MISDEEDS[name].code}\n{OURS}")
    if words:
        with pytest.raises(UsageError, match=words) as caught:
            read_fields(home, "stranger")
        assert str(path) in caught.value.message
    else:
        assert "env.group_size" in [field.name for field in read_fields(home, "stranger")]
    assert strangers_processes(path) == []


@pytest.mark.parametrize(
    "name", [name for name in MISDEEDS if name not in ("loops", "forges what is reported")]
)
def test_a_reward_function_is_looked_at_in_a_child(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "still" in MISDEEDS[name].words:
        monkeypatch.setattr(child_call, "LOAD_LIMIT_S", 4.0)
    path = tmp_path / "reward.py"
    path.write_text(f"{MISDEEDS[name].code}\ndef score(ctx):\n    return 1.0\n")
    if MISDEEDS[name].words:
        with pytest.raises(UsageError, match=MISDEEDS[name].words) as caught:
            check_reward(f"{path}:score")
        assert str(path) in caught.value.message
    else:
        check_reward(f"{path}:score")
    assert strangers_processes(path) == []


RUNNING = {
    "ends the process": (3, "error: the process ended while {path} was imported"),
    "crashes": (-11, "error: the process ended while {path} was imported"),
    "SystemExit": (2, "{path}:1 ends the process when it is imported: SystemExit: 4"),
}


@pytest.mark.parametrize("name", RUNNING)
@pytest.mark.parametrize(
    "arguments", [("env", "serve", "{path}"), ("trajectories", "score", "--reward", "{path}:f")]
)
def test_a_command_that_runs_the_file_says_that_the_file_ended_it(
    name: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "stranger_env.py"
    path.write_text(f"{MISDEEDS[name].code}\n{OURS}\ndef f(ctx):\n    return 1.0\n")
    words = [word.format(path=path) for word in arguments]
    done = hermes(*words)
    code, sentence = RUNNING[name]
    assert done.returncode == code, done.stderr
    assert sentence.format(path=path) in done.stderr
    assert "Traceback" not in done.stderr


def test_scoring_says_that_a_function_ended_the_process(home: Path, tmp_path: Path) -> None:
    with Writer(home / "hermes.db") as writer:
        records.record(writer, [Message.user("hello"), Message.assistant("hi")])
    path = tmp_path / "reward.py"
    path.write_text("import os\ndef f(ctx):\n    os._exit(7)\n")
    done = hermes("trajectories", "score", "--reward", f"{path}:f")
    assert done.returncode == 7
    assert f"error: the process ended while {path}:f scored" in done.stderr
    done = hermes("rate", "auto", "--reward", f"{path}:f")
    assert done.returncode == 7
    assert f"error: the process ended while {path}:f rated" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_check_that_is_ended_takes_what_it_started_along(number: signal.Signals, tmp_path: Path) -> None:
    path, begun = tmp_path / "stranger_env.py", tmp_path / "begun"
    path.write_text(f"open({str(begun)!r}, 'w').close()\nimport time; time.sleep(10_000)\n{OURS}")
    command = [sys.executable, "-P", "-m", "hermes", "env", "check", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    while strangers_processes(path):  # the test's own limit of time ends it
        time.sleep(0.05)


@pytest.mark.parametrize("command", ["batch", "bench"])
def test_no_model_is_asked_before_a_function_could_be_loaded(command: str, tmp_path: Path) -> None:
    path, tasks = tmp_path / "reward.py", tmp_path / "tasks.jsonl"
    path.write_text("import os\nos._exit(7)\n")
    tasks.write_text('{"prompt": "a"}\n')
    words = [
        "--dataset-file",
        str(tasks),
        "--run-name",
        "r",
        "--output-dir",
        str(tmp_path),
        "--model",
        "openai/m",
    ]
    done = hermes(command, *words, "--reward", f"{path}:f")
    assert done.returncode == 2
    assert f"{path} ended its process while it was imported, with exit code 7" in done.stderr


def hermes(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "hermes", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_what_a_file_prints_is_not_in_the_json_of_a_check(tmp_path: Path) -> None:
    path = tmp_path / "stranger_env.py"
    path.write_text(f"print('rubbish')\nimport os; os.write(1, b'more rubbish')\n{OURS}")
    done = hermes("env", "check", "--json", str(path))
    assert json.loads(done.stdout)["findings"][0]["state"] == "ok"
    assert "rubbish" in done.stderr and "more rubbish" in done.stderr
