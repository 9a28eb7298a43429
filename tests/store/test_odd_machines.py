"""Stores whose log was cut, whose clock went back, or whose folder cannot be written any more."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.core import Message
from hermes.errors import HermesError
from hermes.store import Reader, Writer
from hermes.store.upkeep import maintain
from tests import records
from tests.cli.process import hermes

_WRITES = """
import os, signal, sys
from pathlib import Path
from hermes.core import Message
from hermes.store import Writer
from tests import records
writer = Writer(Path(sys.argv[1]))
for number in range(30):
    records.record(writer, [Message.user(f"task {number} " + "word " * 300), Message.assistant("done")])
    print(number, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_log_that_was_cut_costs_its_last_transactions_and_no_other(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _WRITES, str(whole / "hermes.db")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    log = (whole / "hermes.db-wal").read_bytes()
    assert len(log) > 100_000, "nothing has been moved into the database yet"
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    counts = []
    for draw in sorted([rng.randrange(len(log)) for _ in range(8)]):
        folder = tmp_path / str(draw)
        shutil.copytree(whole, folder)
        (folder / "hermes.db-wal").write_bytes(log[:draw])
        try:
            with Reader(folder / "hermes.db") as reader:
                texts = [trajectory.messages[0].content for trajectory in reader.trajectories()]
        except HermesError as error:
            assert not counts or counts[-1] == 0, "a longer log has more"
            assert "\n" not in error.message
            continue
        assert {text.partition(" word")[0] for text in texts} == {f"task {n}" for n in range(len(texts))}
        counts.append(len(texts))
        with Writer(folder / "hermes.db") as writer:
            records.record(writer, [Message.user("more"), Message.assistant("done")])
        assert maintain.check(folder / "hermes.db").problems == ()
    assert counts == sorted(counts)


_EARLIER = """
import runpy, sys, time
now, now_ns, year_s = time.time, time.time_ns, 365 * 86_400
time.time = lambda: now() - year_s
time.time_ns = lambda: now_ns() - year_s * 10**9
sys.argv[0] = "hermes"
runpy.run_module("hermes", run_name="__main__", alter_sys=True)
"""


def test_a_clock_that_was_set_back_a_year_loses_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    rows = [
        {"messages": [{"role": "user", "content": n}, {"role": "assistant", "content": "x"}]} for n in "abcd"
    ]
    for number, row in enumerate(rows):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(row) + "\n")
    assert hermes(home, "import", str(tmp_path / "0.jsonl")).returncode == 0
    environ = {"PATH": os.environ["PATH"], "HERMES_HOME": str(home)}
    for number in (1, 2):
        words = ["import", str(tmp_path / f"{number}.jsonl")]
        subprocess.run([sys.executable, "-c", _EARLIER, *words], env=environ, capture_output=True, check=True)
    assert hermes(home, "import", str(tmp_path / "3.jsonl")).returncode == 0
    listed = json.loads(hermes(home, "trajectories", "list", "--json").stdout)
    assert len(listed) == 4
    for row in listed:
        assert hermes(home, "rate", row["id"], "good").returncode == 0
    assert hermes(home, "store", "check").returncode == 0


_READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root can mount")
def test_a_home_that_cannot_be_written_is_said_by_every_command(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with Writer(home / "hermes.db") as writer:
        records.record(writer, [Message.user("hello"), Message.assistant("hi")])
    (tmp_path / "0.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["unshare", "-m", "sh", "-c", _READ_ONLY, "sh", str(home)]
        return subprocess.run(
            [*command, sys.executable, "-m", "hermes", *words],
            env={"PATH": os.environ["PATH"], "HERMES_HOME": str(home)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    if run("--version").returncode:
        pytest.skip("mounts are not allowed here")
    for words in (["trajectories", "list"], ["import", "0.jsonl"], ["config", "set", "model", "a/b"]):
        done = run(*words)
        assert done.returncode != 0 and "Traceback" not in done.stderr, (words, done.stderr)
        assert str(home) in done.stderr and "fix: " in done.stderr, words
