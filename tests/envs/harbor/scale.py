"""Many generated tasks, whose check is killed at a random moment: it goes on, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.envs.harbor.folders import write_task

DATA_BYTES = 1 << 20


def write_tasks(folder: Path, count: int, base: str) -> None:
    """Each has an image of its own: its data is unlike that of the others, and does not compress."""
    draw = random.Random(0)
    for number in range(count):
        task = write_task(
            folder / f"t{number:03}",
            dockerfile=f"FROM {base}\nWORKDIR /app\nCOPY data /app/data\nRUN echo {number} > /app/number\n",
            instruction="Write the number in number to answer.txt.",
            test=f'if [ "$(cat /app/answer.txt)" = {number} ]; then r=1; else r=0; fi\n'
            "echo $r > /logs/verifier/reward.txt",
            solution="cp /app/number /app/answer.txt",
        )
        (task / "environment/data").write_bytes(draw.randbytes(DATA_BYTES))


class DiskWatch:
    """The most that was used of a disk beyond what was used before, while the block ran."""

    def __enter__(self) -> DiskWatch:
        self._before_bytes = shutil.disk_usage("/").used
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.5):
            used_bytes = shutil.disk_usage("/").used - self._before_bytes
            self.peak_bytes = max(self.peak_bytes, used_bytes)


def check_with_a_kill(home: Path, folder: Path, count: int, place: str) -> None:
    """Checks the tasks, is killed once, checks the rest, cleans up."""
    seed = random.randrange(1 << 32)
    kept = random.Random(seed).randrange(count // 10, count * 9 // 10)
    print(f"seed {seed}: killed after {kept} verdicts of {count}")
    command = [sys.executable, "-m", "hermes", "env", "check", "harbor", str(folder), "--solutions", "--json"]
    command += ["--env.place", place, "--workers", "4"]
    environ = {**os.environ, "HERMES_HOME": str(home)}
    verdicts = home / "harbor/verdicts.jsonl"
    start_s = time.monotonic()
    with DiskWatch() as watch:
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and lines(verdicts) < kept:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was killed before its end"
        before = lines(verdicts)
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout)["tasks"]
    assert len(rows) == count and all((row["solution"], row["nothing"]) == (1, 0) for row in rows)
    assert lines(verdicts) == count, "no task that had its verdict was checked again"
    assert before >= kept
    print(f"{time.monotonic() - start_s:.0f} s, {watch.peak_bytes >> 20} MB of disk at the most")
    assert not list((home / "harbor/trials").iterdir())
    subprocess.run([sys.executable, "-m", "hermes", "env", "clean"], env=environ, check=True)
    assert not [path for path in (home / "harbor").rglob("*") if "data" in path.name]
    assert processes_of(home) == []


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def processes_of(home: Path) -> list[str]:
    """Command lines that name a path below this folder."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:  # it has ended
            continue
        if str(home) in text:
            commands.append(text)
    return commands
