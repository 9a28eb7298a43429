"""A Ray cluster of three nodes with an engine that trains, environments and a batch on it at once."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.batch.drive import command, rows, solve, start, write_tasks
from tests.batch.ray_nodes import AUTH, TOKEN, cluster, keep_token, kill_node, needs_ray, wait_for_segments
from tests.engine.http.engine_process import launch
from tests.fakes.provider import FakeProvider, delayed
from tests.rl.parts import Parts
from tests.training.books import check_served, check_weights, trained_leases
from tests.training.world import ask, metrics
from tests.waiting import wait_until

STEPS, SAMPLES = 16, 90


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_a_killed_node_takes_engine_environment_and_batch_workers_and_nothing_is_lost_or_doubled(
    model: Path, tmp_path: Path
) -> None:
    write_tasks(tmp_path, SAMPLES)
    keep_token(tmp_path, TOKEN)
    homes = [tmp_path / f"node{number}" for number in (1, 2, 3)]
    run = tmp_path / "home" / "runs" / "run"
    with contextlib.ExitStack() as stack:
        provider = stack.enter_context(FakeProvider(lambda body: delayed(1.0, solve(body))))
        nodes = stack.enter_context(cluster(*homes))
        ray = ("--ray", nodes["address"])
        engine = launch(model, tmp_path / "engine", *ray, "--replicas", "3", **AUTH)
        stack.callback(engine.kill)
        parts = Parts(tmp_path / "home", engine, model, STEPS)
        stack.callback(parts.close)
        env = parts.env(STEPS - 1, *ray, "--replicas", "3", env=AUTH)
        for number in (1, 2, 3):
            env.until(rf"env-{number} started, pid \d+ on node")
        trainer = parts.trainer()
        flags = ("--num-workers", "3", "--concurrency", "3", "--executor", "ray", "--ray-address")
        batch = start(tmp_path, *command(tmp_path, provider, *flags, nodes["address"]))
        stack.callback(batch.kill)

        wait_for_segments(tmp_path, 3)
        wait_until(lambda: trainer.process.poll() is not None or (run_rows(run) >= 3))
        assert sum(member["connected"] for member in ask(parts.url, "GET", "/status")["envs"]) == 3
        trained, finished = run_rows(run), len(provider.posts) // 2
        assert trained < STEPS and finished < SAMPLES, "the node is killed while all three work"
        kill_node(nodes["raylets"][-1])

        out, err = batch.communicate(timeout=600)
        assert trainer.wait(600) == 0, trainer.output
        assert env.wait(300) == 0, env.output
        leases = trained_leases(run, STEPS)
        check_served(parts.url, leases)
        assert engine.metric("optimizer_steps_total") == STEPS
    check_weights(run, tmp_path / "engine")
    assert re.search(r"env-\d was lost by Ray: .*; it is started again", env.output), env.output

    assert batch.returncode == 0, err
    report = json.loads(out)
    assert (report["finished"], report["rows"], report["failed"]) == (SAMPLES, SAMPLES, {})
    assert report["worker_deaths"] >= 1
    assert set(Counter((row["key"], row["sample"]) for row in rows(tmp_path)).values()) == {1}


def run_rows(run: Path) -> int:
    return len(metrics(run)) if (run / "metrics.jsonl").exists() else 0
