"""The supervisor over real, small processes: order, restarts, kill -9 of everything, stopping, the truth."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from hermes.rl.process import ProcessHandle, ProcessSpec
from hermes.rl.results import waiting_for
from hermes.rl.run import RlRun, RunState, RunStatus, last_step
from hermes.rl.supervise.supervisor import ExitAction, exit_action
from tests import disks
from tests.rl import drive
from tests.waiting import wait_until, wait_until_ended


def _all(run: RlRun, count: int = 8, pause_s: float = 0.05) -> list[dict[str, Any]]:
    return [drive.server(run, "api"), drive.server(run, "engine"), drive.worker(run, count, pause_s)]


def test_parts_start_in_order_and_the_run_completes(tmp_path: Path) -> None:
    run = drive.start(tmp_path, _all)
    status = drive.wait(run, drive.ended)
    assert status.state is RunState.COMPLETED and status.reason is None
    assert drive.steps(run) == list(range(1, 9))
    told = [event["text"].split(",")[0] for event in status.events]
    order = ["api started", "api is ready", "engine started", "engine is ready", "trainer started"]
    assert [text for text in told if text in order] == order
    for name in ("api", "engine", "trainer"):
        process = status.processes[name].process_id
        assert process is not None and not process.alive()
    assert status.processes["trainer"].exit_code == 0
    assert status.processes["api"].exit_code == -signal.SIGTERM


def _kill(status: RunStatus, name: str) -> None:
    process = status.supervisor if name == "supervisor" else status.processes[name].process_id
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("victim", ["api", "engine", "trainer", "supervisor"])
def test_a_killed_process_comes_back_and_no_step_is_lost_or_done_twice(tmp_path: Path, victim: str) -> None:
    run = drive.start(tmp_path, lambda run: _all(run, 30))
    before = drive.wait(run, lambda status: status.state is RunState.RUNNING)
    time.sleep(random.uniform(0, 0.5))
    _kill(before, victim)
    status = drive.wait(run, drive.ended)
    assert status.state is RunState.COMPLETED, status
    assert drive.steps(run) == list(range(1, 31))
    starts = {name: part.starts for name, part in status.processes.items()}
    if victim == "supervisor":
        assert status.supervisor != before.supervisor
        assert (starts["api"], starts["engine"]) == (1, 1), "what still runs is adopted"
    else:
        assert starts == {name: 1 + (name == victim) for name in starts}


def test_a_run_survives_many_kills_of_anything_at_any_moment(tmp_path: Path) -> None:
    run = drive.start(tmp_path, lambda run: _all(run, 60))
    chance = random.Random(7)
    for _ in range(6):
        time.sleep(chance.uniform(0.05, 0.6))
        status = run.status()
        alive = [
            name for name, part in status.processes.items() if part.process_id and part.process_id.alive()
        ]
        if status.state.ended or not alive:
            continue
        _kill(status, chance.choice([*alive, "supervisor"] if status.supervisor else alive))
    status = drive.wait(run, drive.ended)
    assert status.state is RunState.COMPLETED, status
    assert drive.steps(run) == list(range(1, 61))


def test_a_part_that_cannot_outlive_another_is_started_again_after_it(tmp_path: Path) -> None:
    def make(run: RlRun) -> list[dict[str, Any]]:
        return [drive.server(run, "engine"), {**drive.worker(run, 30), "restart_with": ["engine"]}]

    run = drive.start(tmp_path, make)
    _kill(drive.wait(run, lambda status: status.state is RunState.RUNNING), "engine")
    status = drive.wait(run, drive.ended)
    assert status.state is RunState.COMPLETED
    assert status.processes["trainer"].starts == 2
    assert drive.steps(run) == list(range(1, 31))


def test_stopping_while_starting_ends_stopped(tmp_path: Path) -> None:
    def make(run: RlRun) -> list[dict[str, Any]]:
        never = {**drive.server(run, "engine"), "ready": str(run.folder / "never")}
        return [drive.server(run, "api"), never, drive.worker(run, 5)]

    run = drive.start(tmp_path, make)
    before = drive.wait(
        run,
        lambda status: status.processes.get("engine") is not None and status.processes["engine"].starts == 1,
    )
    assert before.state is RunState.STARTING
    run.stop_path.touch()
    status = drive.wait(run, drive.ended)
    assert (status.state, status.reason) == (RunState.STOPPED, "stopped on request")
    assert status.processes["trainer"].starts == 0
    assert all(part.process_id is None or not part.process_id.alive() for part in status.processes.values())


def test_who_is_in_the_middle_of_a_step_finishes_and_saves_it_before_the_run_is_stopped(
    tmp_path: Path,
) -> None:
    run = drive.start(tmp_path, lambda run: [drive.server(run, "engine"), drive.saver(run, 6.5)])
    drive.wait(run, lambda status: status.state is RunState.RUNNING)
    run.request_stop()
    status = drive.wait(run, drive.ended)
    assert (status.state, status.processes["trainer"].exit_code) == (RunState.STOPPED, 0)
    assert (run.folder / "trainer.ready.saved").exists()


@pytest.mark.slow
@pytest.mark.parametrize("why", ["in a hurry", "its engine is gone"])
def test_nobody_waits_for_a_step_that_is_not_wanted_or_cannot_end(tmp_path: Path, why: str) -> None:
    run = drive.start(tmp_path, lambda run: [drive.server(run, "engine"), drive.saver(run, 250.0)])
    status = drive.wait(run, lambda status: status.state is RunState.RUNNING)
    run.request_stop()
    drive.wait(run, lambda status: (run.folder / "trainer.ready.asked").exists())
    if why == "in a hurry":
        run.request_stop(now=True)
    else:
        _kill(status, "engine")
    status = drive.wait(run, drive.ended)
    assert (status.state, status.processes["trainer"].exit_code) == (RunState.STOPPED, -signal.SIGTERM)
    assert not (run.folder / "trainer.ready.saved").exists()


def test_a_part_that_explains_its_end_fails_the_run_with_its_words(tmp_path: Path) -> None:
    broken = "import sys; open(sys.argv[1], 'w'); print('error: the adapter is stale'); sys.exit(1)"

    def make(run: RlRun) -> list[dict[str, Any]]:
        ready = run.folder / "t.ready"
        trainer = {"name": "trainer", "command": drive.python(broken, ready), "ready": str(ready)}
        return [drive.server(run, "api"), {**trainer, "completes": True}]

    status = drive.wait(drive.start(tmp_path, make), drive.ended)
    assert status.state is RunState.FAILED
    assert status.reason == "trainer exited (1): the adapter is stale"
    assert status.processes["trainer"].starts == 1
    assert status.processes["api"].exit_code == -signal.SIGTERM


@pytest.mark.slow
def test_a_part_that_crashes_without_progress_is_given_up_after_five_times(tmp_path: Path) -> None:
    def make(run: RlRun) -> list[dict[str, Any]]:
        ready = run.folder / "t.ready"
        command = drive.python("import sys; sys.exit('boom')")
        return [{"name": "trainer", "command": command, "ready": str(ready), "completes": True}]

    status = drive.wait(drive.start(tmp_path, make), drive.ended)
    assert status.state is RunState.FAILED
    assert status.reason == "trainer exited (1) 5 times without progress: boom"
    assert status.processes["trainer"].starts == 5


def test_a_part_that_never_gets_ready_fails_the_run(tmp_path: Path) -> None:
    def make(run: RlRun) -> list[dict[str, Any]]:
        return [{**drive.server(run, "api"), "ready": str(run.folder / "never"), "patience_s": 0.5}]

    status = drive.wait(drive.start(tmp_path, make), drive.ended)
    assert status.state is RunState.FAILED and "api was not ready after 0.5 s" in (status.reason or "")


def test_a_server_whose_port_another_one_answers_on_is_moved_and_so_are_those_that_asked_there(
    tmp_path: Path,
) -> None:
    script = "import os, sys, time\nif os.path.exists(sys.argv[1]): time.sleep(600)\n"
    script += "time.sleep(1); sys.exit('error: cannot listen on port 8000: it is taken')"

    def make(run: RlRun) -> list[dict[str, Any]]:
        """The file that says it is ready is there from the start: somebody else's."""
        (run.folder / "api.ready").touch()
        api = {"name": "api", "command": drive.python(script, run.folder / "moved"), "serves": True}
        return [{**api, "ready": str(run.folder / "api.ready")}, drive.worker(run, 40)]

    status = drive.wait(drive.start(tmp_path, make), drive.ended)
    assert status.state is RunState.COMPLETED, status
    assert {name: part.starts for name, part in status.processes.items()} == {"api": 2, "trainer": 2}


def test_a_process_whose_supervisor_dies_before_it_is_recorded_never_runs(tmp_path: Path) -> None:
    """Otherwise the next supervisor would start a second one, and the run would have two trainers."""
    ran, pid = tmp_path / "ran", tmp_path / "pid"
    spec = ProcessSpec("trainer", ("/bin/sh", "-c", f"echo > {ran}"), tmp_path / "log")

    def die(handle: ProcessHandle) -> None:
        pid.write_text(str(handle.id.pid))
        os.kill(os.getpid(), signal.SIGKILL)

    if (supervisor := os.fork()) == 0:
        ProcessHandle.launch(spec, tmp_path, die)
    os.waitpid(supervisor, 0)
    wait_until_ended([int(pid.read_text())])
    assert not ran.exists()
    recorded: list[ProcessHandle] = []
    handle = ProcessHandle.launch(spec, tmp_path, recorded.append)
    wait_until(handle.poll)
    assert recorded == [handle] and ran.exists()


def test_a_program_that_is_not_there_fails_the_run(tmp_path: Path) -> None:
    def make(run: RlRun) -> list[dict[str, Any]]:
        return [{"name": "api", "command": ["/nonexistent/program"], "ready": "x"}]

    status = drive.wait(drive.start(tmp_path, make), drive.ended)
    assert status.state is RunState.FAILED and "api cannot be started" in (status.reason or "")


def test_a_second_supervisor_leaves_the_run_to_the_first(tmp_path: Path) -> None:
    run = drive.start(tmp_path, lambda run: _all(run, 20))
    before = drive.wait(run, lambda status: status.state is RunState.RUNNING)
    drive.spawn(run)
    status = drive.wait(run, drive.ended)
    assert status.supervisor == before.supervisor
    assert {part.starts for part in status.processes.values()} == {1}


def test_a_used_up_wall_clock_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_HOURS", "0.0003")
    status = drive.wait(drive.start(tmp_path, lambda run: _all(run, 1000)), drive.ended)
    assert (status.state, status.reason) == (RunState.STOPPED, "the budget of 0.0003 h is used up")


def test_status_tells_the_truth_when_everything_was_killed(tmp_path: Path) -> None:
    run = drive.start(tmp_path, lambda run: _all(run, 1000))
    status = drive.wait(run, lambda status: status.state is RunState.RUNNING)
    assert status.processes["engine"].describe() == "running"
    assert status.supervisor is not None
    keeper = int(Path(f"/proc/{status.supervisor.pid}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (
        keeper,
        status.supervisor.pid,
        *(p.process_id.pid for p in status.processes.values() if p.process_id),
    ):
        os.kill(pid, signal.SIGKILL)
    drive.wait(run, lambda status: status.supervisor is not None and not status.supervisor.alive())
    seen = run.status()
    assert seen.state is RunState.RUNNING, "nobody was left to write otherwise"
    drive.wait(run, lambda status: status.processes["engine"].describe() == "exited")
    drive.spawn(run)
    run.stop_path.touch()
    assert drive.wait(run, drive.ended).state is RunState.STOPPED


@pytest.mark.parametrize(
    ("code", "explained", "affected_by_restart", "serves", "expected"),
    [
        (0, False, False, False, ExitAction.COMPLETE),
        (0, False, False, True, ExitAction.RESTART),
        (None, True, False, False, ExitAction.RESTART),
        (-9, True, False, False, ExitAction.RESTART),
        (2, True, True, False, ExitAction.FAIL),
        (1, True, False, False, ExitAction.FAIL),
        (1, True, True, False, ExitAction.RESTART),
        (1, False, False, False, ExitAction.RESTART),
        (1, True, False, True, ExitAction.RESTART),
    ],
)
def test_what_an_end_means(
    code: int | None, explained: bool, affected_by_restart: bool, serves: bool, expected: ExitAction
) -> None:
    spec = ProcessSpec("x", (), Path("x"), lambda: True, completes_run=True, is_server=serves)
    assert exit_action(spec, code, explained, affected_by_restart) is expected


def test_an_environment_that_ended_is_left_alone_while_the_trainer_computes(tmp_path: Path) -> None:
    """A step of any length is no reason to restart it, and never one to fail the run."""
    run = drive.start(tmp_path, lambda run: [drive.worker(run, 1, pause_s=3.0), drive.quitter(run)])
    status = drive.wait(run, drive.ended)
    assert (status.state, status.reason) == (RunState.COMPLETED, None)
    assert status.processes["env"].starts == 1


def test_an_environment_that_ended_early_is_started_again_while_the_trainer_waits(tmp_path: Path) -> None:
    run = drive.start(tmp_path, lambda run: [drive.worker(run, 1, pause_s=60.0), drive.quitter(run)])
    (run.folder / "starving").touch()
    status = drive.wait(run, drive.ended)
    assert status.state is RunState.FAILED
    assert status.reason is not None and status.reason.startswith("env ended before the training did")
    assert status.processes["env"].starts == 5
    notes = [event["text"] for event in status.events]
    assert "env ended and the trainer waits for a batch; env is started again" in notes


def test_a_full_disk_is_waited_for_and_the_run_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with disks.disk(tmp_path / "disk", "80m") as place:
        run = drive.start(place / "home", lambda run: _all(run, 600, 0.01))
        drive.wait(run, lambda status: status.state is RunState.RUNNING)
        ballast = place / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 4096)
        trainer = run.status().processes["trainer"].process_id
        assert trainer is not None
        wait_until(lambda: not trainer.alive())
        assert (waiting_for(run, run.status()) or "").startswith("the disk is full (0 MB were left at ")
        time.sleep(1)  # long enough for five restarts without a wait
        ballast.unlink()
        status = drive.wait(run, drive.ended)
        assert status.state is RunState.COMPLETED and status.waiting is None, status
        assert last_step(run) == 600
        texts = [event["text"] for event in status.events]
        assert sum(text.startswith("the disk is full") for text in texts) == 1
        assert "the disk has room again; the run goes on" in texts
