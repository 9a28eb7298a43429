"""A run whose engine has several workers: they fit or the start is refused, and one may die."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from hermes.config.load import load
from hermes.core.memory import available_bytes
from hermes.errors import HermesError, UsageError
from hermes.rl.checks.preflight import preflight
from hermes.rl.checks.replica_memory import missing_on_cpu, missing_on_gpus
from hermes.rl.config.fields import TrainerFields
from hermes.rl.run import RunState, all_runs
from hermes.rl.start import start
from hermes.rl.supervise.engine_process import engine_options
from tests.rl.books import check_books
from tests.rl.conftest import MakeHome
from tests.rl.world import how_it_ended, resolved_run, start_run
from tests.waiting import wait_until

GIB = 1 << 30
NEEDED = 37 * GIB // 10


def test_replicas_that_do_not_fit_into_memory_are_counted() -> None:
    assert missing_on_cpu(4, NEEDED, None, 20 * GIB) is None
    assert missing_on_cpu(4, NEEDED, None, None) is None, "the memory is not known"
    missing = missing_on_cpu(6, NEEDED, None, 20 * GIB)
    assert missing is not None
    assert missing.problem == "6 engine replicas do not fit: each needs 3.7 GiB, and 20.0 GiB are free"
    assert missing.fix.startswith("set engine_replicas to 5 or less")
    limited = missing_on_cpu(2, NEEDED, 4 * GIB, 20 * GIB)
    assert limited is not None and "4.0 GiB is engine_memory_gib" in limited.problem


@pytest.mark.parametrize(
    ("replicas", "free", "words"),
    [
        (2, [40, 40], None),
        (3, [40, 40], "GPU 0 has 40.0 GiB free for 2"),
        (2, [40, 8], "GPU 1 has 8.0 GiB free for 1"),
        (9, [], None),
    ],
)
def test_replicas_share_gpus_in_turn(replicas: int, free: Sequence[int], words: str | None) -> None:
    missing = missing_on_gpus(replicas, 30 * GIB, [size * GIB for size in free])
    assert (missing is None) == (words is None)
    assert missing is None or (words is not None and words in missing.problem)


def test_ranks_of_a_replica_divide_the_base_model() -> None:
    free = [16 * GIB, 16 * GIB, 16 * GIB, 16 * GIB]
    assert missing_on_gpus(2, 30 * GIB, free) is not None
    assert missing_on_gpus(2, 30 * GIB, free, ranks=2) is None
    missing = missing_on_gpus(4, 30 * GIB, free, ranks=2)
    assert missing is not None
    assert (
        "4 engine replicas of 2 processes do not fit on 4 GPUs: each process needs 16.0 GiB"
        in missing.problem
    )
    assert missing.fix.startswith("set engine_replicas to 2 or less")


def test_what_a_run_sets_reaches_the_engines_command_line() -> None:
    fields = TrainerFields(
        engine_dtype="float32",
        engine_kv_gib=0.5,
        engine_replicas=3,
        engine_exact=True,
        engine_quantize="nf4",
        engine_tensor_parallel_size=2,
    )
    words = " ".join(engine_options(fields, port=1, state_dir=Path("/s")).arguments())
    assert words == (
        "engine serve --dtype=float32 --quantize=nf4 --port=1 --replicas=3 --tensor-parallel-size=2 --exact "
        "--kv-gib=0.5 --state-dir=/s"
    )
    assert engine_options(TrainerFields()).arguments() == ("engine", "serve")


@pytest.mark.skipif(not available_bytes(), reason="the system does not report its free memory")
def test_a_run_with_more_replicas_than_memory_is_refused_before_it_starts(home_with: MakeHome) -> None:
    home = home_with()
    config = load({}, {"HERMES_HOME": str(home)})
    resolved = resolved_run(home, engine_replicas=64, engine_memory_gib=8.0)
    with pytest.raises(HermesError, match="64 engine replicas do not fit") as refused:
        start(config, resolved)
    assert "set engine_replicas to 11 or less" in refused.value.hint
    with pytest.raises(HermesError, match="64 engine replicas do not fit"):
        preflight(config, resolved)
    assert all_runs(home) == []
    with pytest.raises(UsageError, match=re.escape("tinker.engine_replicas = 0")):
        resolved_run(home, engine_replicas=0)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted({int(child) for task in tasks for child in task.read_text().split()})


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_a_run_with_two_engine_workers_survives_the_death_of_one(home_with: MakeHome) -> None:
    run = start_run(home_with(total_steps=12, engine_replicas=2))
    wait_until(lambda: run.status().state is RunState.RUNNING)
    engine = run.status().processes["engine"]
    assert engine.process_id is not None
    workers = children(engine.process_id.pid)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    assert how_it_ended(run) == "completed: None"
    assert run.status().processes["engine"].starts == engine.starts, "the front starts its worker again"
    check_books(run, 12)
    assert "worker 2 was killed by signal 9; it is started again" in run.log_path("engine").read_text()
