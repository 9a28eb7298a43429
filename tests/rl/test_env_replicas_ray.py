"""`hermes env serve --ray`: replicas on the nodes of a cluster, one node killed, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.batch.ray_nodes import AUTH, cluster, kill_node, needs_ray
from tests.rl.env_group import Served
from tests.waiting import wait_until

NAMES = ["1/2", "2/2"]


def gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has reaped yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_replicas_of_a_lost_node_end_and_start_elsewhere(tmp_path: Path) -> None:
    with cluster(tmp_path / "first", tmp_path / "second") as nodes:
        served = Served(tmp_path, "--ray", nodes["address"], **AUTH)
        pids = wait_until(lambda: len(served.pids()) == 2 and served.pids())
        assert sorted(pids.values()) == NAMES
        victim = next(pid for pid, number in pids.items() if number == "1/2")
        os.kill(victim, signal.SIGKILL)
        again = wait_until(lambda: len(served.pids()) == 3 and served.pids())
        assert sorted(again.values()) == ["1/2", *NAMES]

        kill_node(nodes["raylets"][-1])
        wait_until(lambda: len(served.pids()) > 3)
        running = wait_until(
            lambda: (
                sorted(number for pid, number in served.pids().items() if not gone(pid)) == NAMES
                and served.pids()
            ),
        )
        served.process.terminate()
        assert served.process.wait(150) == 0, served.text()
        wait_until(lambda: all(gone(pid) for pid in running))
    text = served.text()
    assert "2 replicas on 2 Ray nodes" in text
    assert "env-1 was killed by signal 9; it is started again" in text
    assert "was lost by Ray" in text
    assert "env-1 started, pid" in text and "on node" in text


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_a_killed_command_leaves_no_replica_and_an_error_ends_the_others(tmp_path: Path) -> None:
    with cluster(tmp_path / "first", tmp_path / "second") as nodes:
        first = tmp_path / "killed"
        first.mkdir()
        served = Served(first, "--ray", nodes["address"], **AUTH)
        pids = wait_until(lambda: len(served.pids()) == 2 and served.pids())
        served.process.kill()
        served.process.wait()
        wait_until(lambda: all(gone(pid) for pid in pids))

        second = tmp_path / "failing"
        second.mkdir()
        served = Served(second, "--ray", nodes["address"], **AUTH)
        wait_until(lambda: len(served.pids()) == 2)
        assert served.end(2) == 1
        assert "ended with exit code 2" in served.text()


def refusal(*arguments: str, without_ray: bool = False) -> str:
    start = "import sys; from hermes.cli.main import main; sys.exit(main())"
    hidden = "import sys; sys.modules['ray'] = None; " if without_ray else ""
    ended = subprocess.run(
        [sys.executable, "-c", hidden + start, "env", *arguments], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode in (1, 2), ended
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_without_ray_the_error_is_the_install_line() -> None:
    text = refusal("serve", "--ray", "127.0.0.1:6379", "calculator", without_ray=True)
    assert "--ray needs the package 'ray'" in text
    assert "pip install 'hermes-research[ray]'" in text


@needs_ray
def test_what_is_no_cluster_is_refused_at_the_start() -> None:
    assert "--ray nowhere is not HOST:PORT" in refusal("serve", "--ray", "nowhere", "calculator")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("process", "--ray", "127.0.0.1:1", "calculator"), "--ray is for 'hermes env serve'"),
        (("serve", "--ray-insecure", "calculator"), "--ray-insecure needs --ray"),
        (("serve", "--ray", "127.0.0.1:1", "nothing_like_it"), "nothing_like_it"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: tuple[str, ...], message: str) -> None:
    assert message in refusal(*arguments)


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ((), "--env.rollout_server_url"),
        (
            (
                "--env.rollout_server_url",
                "http://10.0.0.1:8000",
                "--openai.base_url",
                "http://localhost:1/v1",
            ),
            "--openai.base_url",
        ),
    ],
)
def test_addresses_that_only_this_machine_has_are_refused_on_several(
    settings: tuple[str, ...], option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hermes.errors import UsageError
    from hermes.rl.supervise.env_ray import check_addresses

    monkeypatch.delenv("RL_API_URL", raising=False)
    with pytest.raises(UsageError) as refused:
        check_addresses(settings)
    assert option in refused.value.hint
    check_addresses(("--env.rollout_server_url", "http://10.0.0.1:8000"))


def test_nodes_of_other_versions_are_named() -> None:
    from hermes.cluster.actors import installed_versions
    from hermes.errors import HostError
    from hermes.rl.supervise.env_ray import EnvActor, EnvJob

    front = {**installed_versions(), "hermes": "0.0.1"}
    with pytest.raises(HostError, match=r"other versions .*hermes .* instead of 0\.0\.1"):
        next(EnvActor().serve(EnvJob((), {}, {}, ""), front))
