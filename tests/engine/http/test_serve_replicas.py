"""`hermes engine serve --replicas 2` through the SDK: the same service, whose workers may die."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import tinker
from tinker import types as tt

from hermes.cli.engine import _replica_count
from hermes.errors import UsageError
from tests.engine.http.conftest import Start
from tests.engine.http.engine_process import KEY, batch, prompt, worker_pids
from tests.waiting import wait_until


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_two_workers_train_sample_and_survive_a_kill_and_end_with_their_front(
    start: Start, model: str, tmp_path: Path
) -> None:
    server = start(tmp_path / "state", "--replicas", "2", "--max-length", "256")
    workers = worker_pids(server)
    assert len(workers) == 2
    client = tinker.ServiceClient(base_url=server.url, api_key=KEY)  # it cannot say goodbye: see the end
    training = client.create_lora_training_client(model, rank=4, seed=1)
    losses = []
    for step in range(3):
        if step == 1:
            os.kill(workers[0], signal.SIGKILL)
        output = training.forward_backward(batch(4, seed=0), "cross_entropy").result()
        losses.append(output.metrics["loss:sum"])
        training.optim_step(tt.AdamParams(learning_rate=0.01)).result()
    assert losses == sorted(losses, reverse=True), "every step was made once"
    assert server.metric("optimizer_steps_total") == 3
    sampling = training.save_weights_and_get_sampling_client()
    params = tt.SamplingParams(max_tokens=8, seed=3)
    answers = [sampling.sample(prompt(), 2, params) for _ in range(4)]
    tokens = {str([list(sequence.tokens) for sequence in answer.result().sequences]) for answer in answers}
    assert len(tokens) == 1, "whichever worker samples, a seed gives the same tokens"
    wait_until(lambda: len(worker_pids(server)) == 2)
    survivors = worker_pids(server)
    server.kill()
    wait_until(lambda: not any(map(is_alive, survivors)))


@pytest.mark.parametrize("text", ["0", "65", "-1", "many"])
def test_a_number_of_replicas_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"--replicas is '{text}'"):
        _replica_count(text)
    assert (_replica_count("auto"), _replica_count("2")) == (None, 2)
