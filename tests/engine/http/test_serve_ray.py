"""`hermes engine serve --ray`: workers on three Ray nodes, one of which is killed, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tinker
from tinker import types as tt

from tests.batch.ray_nodes import AUTH, children_of, cluster, kill_node, needs_ray
from tests.engine.http.conftest import Start
from tests.engine.http.engine_process import KEY, Server, batch, prompt
from tests.waiting import wait_until


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_workers_on_three_nodes_train_and_sample_and_one_node_is_killed(
    start: Start, model: str, tmp_path: Path
) -> None:
    homes = [tmp_path / f"home{number}" for number in range(3)]
    with cluster(*homes) as nodes:
        flags = ("--ray", nodes["address"], "--replicas", "auto", "--max-length", "256")
        server = start(tmp_path / "state", *flags, **AUTH)
        client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
        training = client.create_lora_training_client(model, rank=4, seed=1)
        params = tt.SamplingParams(max_tokens=64, seed=3)
        losses, answers = [], []
        for step in range(4):
            sampling = training.save_weights_and_get_sampling_client()
            running = [sampling.sample(prompt(), 2, params) for _ in range(6)]
            gradient = training.forward_backward(batch(6, seed=0), "cross_entropy")
            if step == 1:
                kill_node(nodes["raylets"][-1])
            losses.append(gradient.result().metrics["loss:sum"])
            training.optim_step(tt.AdamParams(learning_rate=0.01)).result()
            texts = {
                str([list(sequence.tokens) for sequence in answer.result().sequences]) for answer in running
            }
            assert len(texts) == 1, "whichever node samples, a seed gives the same tokens"
            answers += running
        assert losses == sorted(losses, reverse=True), "every step was made once"
        assert server.metric("optimizer_steps_total") == 4
        assert len(answers) == 24, "no sample was lost"
        server.kill()


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_replicas_of_two_ranks_on_three_nodes_train_as_one_process_and_one_node_is_killed(
    start: Start, model: str, tmp_path: Path
) -> None:
    alone = start(tmp_path / "alone", "--max-length", "256")
    expected_losses, expected_tokens = train(alone, model)
    homes = [tmp_path / f"home{number}" for number in range(3)]
    with cluster(*homes, cores=2) as nodes:
        flags = ("--max-length", "256", "--ray", nodes["address"], "--tensor-parallel-size", "2")
        engine = ("--model", model, "--state-dir", str(tmp_path / "refused"), *flags)
        message = refusal(*engine, "--replicas", "4", **AUTH)
        assert "a replica of 2 processes needs 2 cores on one node" in message
        assert "have room for 3 of 4" in message and "use --replicas 3 or less" in message
        message = refusal(*engine[:-1], "3", "--replicas", "1", **AUTH)
        assert "have room for 0 of 1" in message and "or use a smaller --tensor-parallel-size" in message

        server = start(tmp_path / "ranks", *flags, "--replicas", "2", **AUTH)
        followers = {raylet: followers_on(raylet) for raylet in nodes["raylets"]}
        assert sorted(map(len, followers.values())) == [0, 1, 1]
        killed = next(raylet for raylet in nodes["raylets"][1:] if followers[raylet])
        losses, tokens = train(server, model, during_second_step=lambda: kill_node(killed))
        assert losses == pytest.approx(expected_losses, rel=1e-5)
        assert tokens == expected_tokens
        assert server.metric("optimizer_steps_total") == len(losses)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in followers[killed]))
        server.kill()


def train(
    server: Server, model: str, during_second_step: Callable[[], None] = lambda: None
) -> tuple[list[float], list[list[int]]]:
    """The losses of four steps, and the tokens that were sampled with the weights before each of them."""
    client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
    training = client.create_lora_training_client(model, rank=4, seed=1)
    losses, tokens = [], []
    for step in range(4):
        sampling = training.save_weights_and_get_sampling_client()
        answer = sampling.sample(prompt(), 1, tt.SamplingParams(max_tokens=32, temperature=0.0))
        gradient = training.forward_backward(batch(6, seed=0), "cross_entropy")
        if step == 1:
            during_second_step()
        losses.append(gradient.result().metrics["loss:sum"])
        training.optim_step(tt.AdamParams(learning_rate=0.01)).result()
        tokens.append(list(answer.result().sequences[0].tokens))
    return losses, tokens


def followers_on(raylet: int) -> list[int]:
    """The node's raylet starts an actor, and the actor its followers, in any of its threads."""
    pids = []
    for actor in children_of(raylet):
        for children in Path(f"/proc/{actor}/task").glob("*/children"):
            pids += [int(pid) for pid in children.read_text().split()]
    return [pid for pid in pids if b"tensor_parallel.follower" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def refusal(*arguments: str, **variables: str) -> str:
    command = [sys.executable, "-m", "hermes", "engine", "serve", "--port", "0", *arguments]
    environ = {**os.environ, **variables}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600)
    assert ended.returncode in (1, 2), ended
    assert "Traceback" not in ended.stderr
    return ended.stderr


@needs_ray
def test_what_is_no_cluster_is_refused_at_the_start(tiny_folder: Path, tmp_path: Path) -> None:
    flags = ("--model", str(tiny_folder), "--state-dir", str(tmp_path / "state"), "--ray")
    assert "--ray nowhere is not HOST:PORT" in refusal(*flags, "nowhere")


@needs_ray
def test_nodes_of_other_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from hermes.cluster.actors import installed_versions
    from hermes.engine.replicas import ray_process
    from hermes.errors import HostError

    front = installed_versions(ray_process.COMPUTES)
    with pytest.raises(HostError, match=r"other versions .*torch .* instead of 1\.0"):
        ray_process.EngineActor().serve(("127.0.0.1", 1), b"", "", {**front, "torch": "1.0"})


def test_without_ray_the_error_is_the_install_line(tiny_folder: Path, tmp_path: Path) -> None:
    without_ray = "import sys; sys.modules['ray'] = None; from hermes.cli.main import main; sys.exit(main())"
    flags = ("--model", str(tiny_folder), "--state-dir", str(tmp_path / "state"), "--ray", "127.0.0.1:6379")
    command = [sys.executable, "-c", without_ray, "engine", "serve", "--port", "0", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert "--ray needs the package 'ray'" in ended.stderr
    assert "pip install 'hermes-research[ray]'" in ended.stderr
