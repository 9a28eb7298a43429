"""What an environment meets here: a model that adds, a trajectory API, a trainer of the old kind."""

from __future__ import annotations

import http.client
import itertools
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hermes.compat import atropos
from hermes.envs.cli.run import run_file
from hermes.errors import HermesError
from tests.fakes.provider import FakeProvider, Reply, text
from tests.rollouts.conftest import Client

ROOT = Path(__file__).parents[2]
SUMS = Path(__file__).parent / "environments" / "sums.py"
GUESSING = Path(__file__).parent / "environments" / "guessing.py"


def adder(every: Callable[[int], Reply | None] = lambda count: None) -> FakeProvider:
    """Answers every second question about a sum rightly; `every` may answer the n-th request instead."""
    counter = itertools.count(1)

    def answer(request: dict[str, Any]) -> Reply:
        count = next(counter)
        if (instead := every(count)) is not None:
            return instead
        numbers = re.match(r"(\d+)\+(\d+)", request["messages"][-1]["content"])
        assert numbers, request
        return text(str(int(numbers[1]) + int(numbers[2])) if count % 2 else "no idea")

    return FakeProvider(answer)


@contextmanager
def drive(
    home: Path, mode: str, file: Path, *flags: str, cwd: Path, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """An environment as a process of its own, which does not outlive a test that fails."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.compat.drive", mode, str(file), *flags],
        env={**kept, "HERMES_HOME": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit code and what it wrote."""
    out, err = process.communicate()
    return process.returncode, out, err


class Running(threading.Thread):
    """An environment in a thread of this process, which is much cheaper; it gets no signals."""

    def __init__(self, mode: str, file: Path, *flags: str) -> None:
        super().__init__(daemon=True)
        self.mode, self.file, self.flags = mode, file, flags
        self.error: HermesError | None = None

    def run(self) -> None:
        atropos.install()
        try:
            run_file(self.file, self.mode, self.flags)
        except HermesError as error:
            self.error = error

    def ended(self) -> HermesError | None:
        """Starts it, and waits for its end; the error it ended with."""
        self.start()
        self.join()
        return self.error


def item_of(group: dict[str, Any]) -> int:
    """Which item of the sums environment a group is about."""
    found = re.search(r"item (\d+)", group["messages"][0][0]["content"])
    assert found, group
    return int(found[1])


class Trainer(threading.Thread):
    """Polls for batches as the original's contract has it, and goes on over failures."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.groups: list[dict[str, Any]] = []
        self.batches = 0
        self.again = 0
        """Batches that came once more, and said so by their lease: on their way when the API died."""
        self._leases: set[int] = set()
        self.stopping = threading.Event()
        self.most_batches: int | None = None

    def run(self) -> None:
        while not self.stopping.is_set():
            if self.most_batches is not None and self.batches >= self.most_batches:
                time.sleep(0.02)
                continue
            try:
                answer = self.client.get("/batch")
            except (OSError, http.client.HTTPException, AssertionError):
                time.sleep(0.02)
                continue
            if not answer["batch"]:
                time.sleep(0.01)
                continue
            if answer.get("lease_id") in self._leases:
                self.again += 1
                continue
            if "lease_id" in answer:  # the original's answers have none
                self._leases.add(answer["lease_id"])
            self.batches += 1
            self.groups += answer["batch"]

    def stop(self) -> None:
        self.stopping.set()
        self.join()
