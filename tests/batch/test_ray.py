"""Whole runs on real Ray clusters: one node of our own, two nodes of somebody else's, nodes killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hermes.config.paths import db_path
from hermes.store import Filter, Reader
from tests.batch.drive import command, rows, solve, start, write_tasks
from tests.batch.ray_nodes import TOKEN, children_of, cluster, keep_token, needs_ray, wait_for_segments
from tests.cli.process import failure, hermes
from tests.fakes.provider import FakeProvider, delayed


def on_ray(found: dict[str, Any]) -> list[str]:
    return ["--executor", "ray", "--ray-address", found["address"]]


@needs_ray
def test_a_cluster_of_our_own_runs_every_sample_and_leaves_nothing_behind(tmp_path: Path) -> None:
    write_tasks(tmp_path, 5)
    (tmp_path / "score.py").write_text(
        "import os, ray\n"
        "def score(ctx):\n"
        "    assert os.environ['RAY_AUTH_MODE'] == 'token'\n"
        "    assert ray.util.get_node_ip_address() == '127.0.0.1'\n"
        "    ctx.write_file('answer.txt', ctx.answer)\n"
        "    return 1.0 if ctx.expected in ctx.terminal('cat answer.txt')['output'] else 0.0\n"
    )
    flags = ("--executor", "ray", "--num-workers", "1", "--reward", f"{tmp_path / 'score.py'}:score")
    before = set(Path(tempfile.gettempdir()).glob("hermes-ray-*"))
    with FakeProvider(solve) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, *flags))
        assert len(provider.posts) == 10
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["finished"], report["rows"], report["failed"]) == (5, 5, {})
    assert [row["reward"] for row in rows(tmp_path)] == [1.0] * 5
    assert set(Path(tempfile.gettempdir()).glob("hermes-ray-*")) <= before


def test_a_flag_for_clusters_without_a_cluster_is_refused(tmp_path: Path) -> None:
    write_tasks(tmp_path, 1)
    with FakeProvider(solve) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, "--ray-insecure"))
    assert "--ray HOST:PORT" in failure(done, 2)[1]


@needs_ray
@pytest.mark.parametrize("address", ["auto", "ray://127.0.0.1:10001", "127.0.0.1", ":6379"])
def test_only_host_and_port_are_taken_as_an_address(tmp_path: Path, address: str) -> None:
    write_tasks(tmp_path, 1)
    with FakeProvider(solve) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, "--executor", "ray", "--ray-address", address))
    assert "is not HOST:PORT" in failure(done, 2)[0]


def test_without_ray_the_error_is_the_install_line(tmp_path: Path) -> None:
    write_tasks(tmp_path, 1)
    with FakeProvider(solve) as provider:
        without_ray = (
            "import sys; sys.modules['ray'] = None; from hermes.cli.main import main; sys.exit(main())"
        )
        done = subprocess.run(
            [sys.executable, "-c", without_ray, *command(tmp_path, provider, "--executor", "ray")],
            env={"HERMES_HOME": str(tmp_path), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 1
    assert "needs the package 'ray'" in done.stderr
    assert "pip install 'hermes-research[ray]'" in done.stderr


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("whole", [True, False])
def test_a_killed_node_loses_nothing_and_each_node_keeps_its_own_store(tmp_path: Path, whole: bool) -> None:
    """The whole node at once, or its raylet only, which its actor outlives for a while."""
    write_tasks(tmp_path, 60)
    keep_token(tmp_path, TOKEN)
    homes = (tmp_path / "first", tmp_path / "second")
    with FakeProvider(lambda body: delayed(0.3, solve(body))) as provider, cluster(*homes) as found:
        process = start(tmp_path, *command(tmp_path, provider, "--concurrency", "4", *on_ray(found)))
        wait_for_segments(tmp_path, 2)
        raylet = found["second_raylet"]
        for pid in (raylet, *(children_of(raylet) if whole else ())):
            os.kill(pid, signal.SIGKILL)
        out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    report = json.loads(out)
    assert (report["finished"], report["rows"], report["failed"]) == (60, 60, {})
    assert report["worker_deaths"] >= whole
    assert set(Counter((row["key"], row["sample"]) for row in rows(tmp_path)).values()) == {1}
    stored = []
    for home in homes:
        with Reader(db_path(home)) as reader:
            stored.append(reader.count(Filter(run_id="run", stop_reason="completed")))
    assert min(stored) > 0
    assert sum(stored) >= 60


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_driver_continues_and_a_poison_sample_is_given_up_alone(tmp_path: Path) -> None:
    write_tasks(tmp_path, 20)
    keep_token(tmp_path, TOKEN)
    (tmp_path / "poison.py").write_text(
        "import os\n"
        "def score(ctx):\n"
        "    if 'Compute 5 ' in ctx.row.prompts[0]: os.kill(os.getpid(), 9)\n"
        "    return 1.0\n"
    )
    flags = ("--concurrency", "4", "--reward", f"{tmp_path / 'poison.py'}:score")
    with (
        FakeProvider(lambda body: delayed(0.2, solve(body))) as provider,
        cluster(tmp_path / "first", tmp_path / "second") as found,
    ):
        process = start(tmp_path, *command(tmp_path, provider, *flags, *on_ray(found)))
        wait_for_segments(tmp_path, 1)
        process.kill()
        process.communicate()
        process = start(tmp_path, *command(tmp_path, provider, *flags, *on_ray(found)))
        out, err = process.communicate(timeout=200)
    assert process.returncode == 1, err
    assert json.loads(out)["failed"] == {"WorkerDied": 1}
    assert len({row["key"] for row in rows(tmp_path)}) == len(rows(tmp_path)) == 19
    (failed,) = rows(tmp_path, file="failed.jsonl")
    assert "WorkerDied: 3 times" in json.dumps(failed)


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_without_a_token_or_with_another_one_is_refused_and_nothing_is_paid(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    keep_token(tmp_path, "f" * 64)
    homes = (tmp_path / "first", tmp_path / "second")
    home = {"HOME": str(tmp_path)}
    with FakeProvider(solve) as provider:
        with cluster(*homes) as found:
            done = hermes(tmp_path, *command(tmp_path, provider, *on_ray(found)), env=home)
            assert "does not accept this machine's token" in failure(done, 2)[0]
        with cluster(*homes, token=None) as found:
            done = hermes(tmp_path, *command(tmp_path, provider, *on_ray(found)), env=home)
            assert "accepts every client" in failure(done, 2)[0]
            assert provider.posts == []
            insisted = command(tmp_path, provider, *on_ray(found), "--ray-insecure")
            done = hermes(tmp_path, *insisted, env=home)
            assert done.returncode == 0, done.stderr
    assert len(rows(tmp_path)) == 2
