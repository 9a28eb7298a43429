"""The quickstart's processes: real ones, started, watched, killed and ended."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.rl.supervise.ports import is_free
from hermes.rl.supervise.process_group import ProcessFailedError, ProcessGroup, sigterm_as_interrupt
from hermes.serving.fetch import fetch_json
from tests.ports import free_port


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ProcessGroup]:
    with ProcessGroup(tmp_path / "logs", tmp_path, {"HERMES_HOME": str(tmp_path / "home")}) as processes:
        yield processes


def start_api(processes: ProcessGroup, port: int) -> None:
    processes.serve(
        "api",
        ("api", "--port", str(port)),
        lambda: fetch_json(f"http://127.0.0.1:{port}/status") is not None,
    )


def pid_of(processes: ProcessGroup, name: str) -> int:
    return processes._running[name].handle.id.pid


def test_a_command_gives_the_object_it_printed(processes: ProcessGroup, tmp_path: Path) -> None:
    looked = list[int]()
    told = processes.run("new", ("env", "new", "mine", "--json"), lambda: looked.append(1))
    assert (tmp_path / told["file_path"]).name == "mine.py"
    assert looked


def test_a_command_that_fails_is_named_with_its_last_lines_and_its_log(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    with pytest.raises(ProcessFailedError) as caught:
        processes.run("export", ("export", "--format", "nonsense", "--output", "x.jsonl"))
    assert caught.value.message.startswith("export ended with exit code 2. Its last lines:\n")
    assert "nonsense" in caught.value.message
    assert str(tmp_path / "logs" / "export.log") in caught.value.hint


def test_a_command_that_prints_no_object_is_a_failure(processes: ProcessGroup) -> None:
    with pytest.raises(ProcessFailedError, match="printed no result"):
        processes.run("version", ("--version",))


def test_a_server_is_up_when_serve_returns_and_gone_when_the_crew_has_left(tmp_path: Path) -> None:
    port = free_port()
    with ProcessGroup(tmp_path / "logs", tmp_path, {}) as processes:
        start_api(processes, port)
        processes.check()
        assert not is_free(port)
    assert is_free(port)


def test_a_server_whose_port_is_taken_is_a_failure_that_says_so(processes: ProcessGroup) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ProcessFailedError, match="it is taken"):
            processes.serve("api", ("api", "--port", str(port)), lambda: False)


def test_a_server_that_was_killed_is_named_while_another_command_is_waited_for(
    processes: ProcessGroup,
) -> None:
    start_api(processes, free_port())

    def kill() -> None:
        os.kill(pid_of(processes, "api"), signal.SIGKILL)

    with pytest.raises(ProcessFailedError, match=r"api was killed \(signal 9\)"):
        processes.run("other", ("api", "--port", "0"), kill)


def test_of_two_that_are_started_at_once_the_one_that_fails_is_named(processes: ProcessGroup) -> None:
    processes.start("api", ("api", "--port", "0"))
    processes.start("other", ("export", "--format", "nonsense", "--output", "x.jsonl"))
    with pytest.raises(ProcessFailedError, match="other ended with exit code 2"):
        processes.wait_until_ready("api", lambda: False)


def test_a_process_that_ignores_the_polite_signal_is_ended_all_the_same(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path / "logs", tmp_path, {}) as processes:
        start_api(processes, free_port())
        pid = pid_of(processes, "api")
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_sigterm_unwinds_like_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
