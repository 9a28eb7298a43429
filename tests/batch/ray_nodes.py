"""Ray clusters of several nodes on this machine, for tests of what runs on one."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install '.[ray]'"
)
TOKEN = "0123456789abcdef" * 4
AUTH = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
"""Variables of a client of the cluster."""


@contextmanager
def cluster(*homes: Path, token: str | None = TOKEN, cores: int = 1) -> Iterator[dict[str, Any]]:
    """A node of so many cores for each home; yields what tests/batch/ray_cluster.py prints."""
    auth = {**AUTH, "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2]), **auth}
    # On a loaded machine a node takes longer to start than Ray waits by default.
    environ |= {"RAY_raylet_start_wait_time_s": "300", "RAY_agent_register_timeout_ms": "300000"}
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,  # sockets: short
        tempfile.TemporaryFile("w+") as complaints,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.batch.ray_cluster", f"{folder}/ray", str(cores), *map(str, homes)],
            env={**environ, "HOME": folder, "RAY_TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            told = process.stdout.readline()
            if not told:
                complaints.seek(0)
                pytest.fail(f"no cluster: {complaints.read()[-2000:]}")
            yield json.loads(told)
        finally:
            process.stdin.close()
            process.wait(timeout=60)


def children_of(pid: int) -> list[int]:
    """On a node, the raylet's: its agents and the actors."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kill_node(raylet: int) -> None:
    """With all that runs on it, as a machine that loses its power."""
    for pid in (raylet, *children_of(raylet)):
        os.kill(pid, signal.SIGKILL)


def keep_token(home: Path, token: str) -> None:
    """Where Ray looks for it; `start` makes this folder the HOME."""
    (home / ".ray").mkdir(exist_ok=True)
    (home / ".ray/auth_token").write_text(token)


def wait_for_segments(folder: Path, count: int) -> None:
    """Until that many workers have finished a sample."""
    journal = folder / "data/run/journal"
    wait_until(lambda: sum(path.stat().st_size > 0 for path in journal.glob("*.jsonl")) >= count)
