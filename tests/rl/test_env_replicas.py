"""Several environment processes: whose items and groups are whose, and that a dead one is started again."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.config.environment import ENV_REPLICA_VARIABLE
from hermes.envs.config import BaseEnvConfig
from hermes.envs.modes.pacing import EnvReplica, target_workers
from hermes.rl.run import RlRun, RunState
from hermes.rl.run_config import RunConfig
from hermes.rl.supervise.plan import RunPlan
from tests.rl.books import check_books
from tests.rl.conftest import MakeHome
from tests.rl.env_group import Served
from tests.rl.world import how_it_ended, start_run
from tests.waiting import wait_until


def test_replicas_share_the_items_and_the_room_in_the_queue() -> None:
    replicas = [EnvReplica.from_environ({ENV_REPLICA_VARIABLE: f"{number}/3"}) for number in (1, 2, 3)]
    owners = [[replica.index for replica in replicas if replica.owns(position)] for position in range(6)]
    assert owners == [[0], [1], [2], [0], [1], [2]]
    assert EnvReplica.from_environ({}) == EnvReplica(0, 1)
    assert [replica.suffix for replica in (EnvReplica(), *replicas)] == ["", "-1", "-2", "-3"]
    config = BaseEnvConfig(group_size=4, batch_size=48, max_batches_offpolicy=1)
    status = {"queue_size": 2, "self_queue_size": 0, "max_group_size": 4}
    alone = target_workers(config, status, 48, 100, evaluating=False)
    shares = [
        target_workers(config, status, 48, 100, evaluating=False, replica=replica) for replica in replicas
    ]
    assert (alone, shares) == (10, [4, 4, 4])


def test_a_run_has_a_process_for_every_replica(tmp_path: Path) -> None:
    run = RlRun(tmp_path, "0123abcd")
    about = {"service": None, "ports": {"api": 8000, "engine": 8001}, "cwd": str(tmp_path)}
    about |= {"max_hours": None, "max_usd": None, "model": "m", "device": "cpu", "environment_file": "e.py"}
    env = {"max_batches_offpolicy": 1, "data_dir_to_save_evals": None, "wandb_name": None, "use_wandb": False}
    config = {"env": env, "openai": [{}], "run": about, "tinker": {"sinks": [], "env_replicas": 3}}
    written = RunConfig.parse(config, "test")
    written.assign_ports(about["ports"])
    written.write(run.folder)
    processes = RunPlan(run).processes()
    assert [process.name for process in processes] == ["api", "engine", "trainer", "env-1", "env-2", "env-3"]
    assert [process.environ[ENV_REPLICA_VARIABLE] for process in processes[3:]] == ["1/3", "2/3", "3/3"]
    assert len({process.log for process in processes}) == 6
    written.tinker = written.tinker.model_copy(update={"env_replicas": 1})
    written.write(run.folder)
    assert [process.name for process in RunPlan(run).processes()][3:] == ["env"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    group = Served(tmp_path)
    yield group
    if group.process.poll() is None:
        group.process.terminate()
        group.process.wait(60)


def test_a_killed_replica_is_started_again_and_named_and_a_signal_ends_all(served: Served) -> None:
    pids = wait_until(lambda: len(served.pids()) == 2 and served.pids())
    assert sorted(pids.values()) == ["1/2", "2/2"]
    victim = next(pid for pid, number in pids.items() if number == "2/2")
    os.kill(victim, signal.SIGKILL)
    again = wait_until(lambda: len(served.pids()) == 3 and served.pids())
    assert sorted(again.values()) == ["1/2", "2/2", "2/2"]
    served.process.terminate()
    assert served.process.wait(150) == 0
    for pid in again:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    text = served.text()
    assert "env-2 was killed by signal 9; it is started again" in text
    assert "env-1 was killed" not in text


def test_a_replica_that_cannot_work_as_configured_ends_the_others_with_its_error(served: Served) -> None:
    wait_until(lambda: len(served.pids()) == 2)
    assert served.end(2) == 1
    assert re.search(r"error: env-[12] ended with exit code 2", served.text())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_with_two_replicas_survives_the_death_of_one(home_with: MakeHome) -> None:
    run = start_run(home_with(total_steps=12, env_replicas=2))
    wait_until(lambda: run.status().state is RunState.RUNNING)
    before = run.status().processes["env-2"]
    assert before.process_id is not None
    os.kill(before.process_id.pid, signal.SIGKILL)
    assert how_it_ended(run) == "completed: None"
    assert run.status().processes["env-2"].starts > before.starts
    events = [event["text"] for event in run.status().to_json()["events"]]
    assert any(re.match("env-2 .* it is started again", event) for event in events), events
    check_books(run, 12)
