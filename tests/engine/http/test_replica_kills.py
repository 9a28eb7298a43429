"""Workers and fronts killed under load, as often as HERMES_KILLS says: no sample lost, no update doubled.

HERMES_KILLS=50 pytest -m slow tests/engine/http/test_replica_kills.py
"""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tinker
from tinker import types as tt

from tests.engine.http.conftest import Start
from tests.engine.http.engine_process import KEY, Server, batch, prompt, worker_pids
from tests.waiting import wait_until

KILLS = int(os.environ.get("HERMES_KILLS", "5"))
FRONT_EVERY = 5
"""Every fifth kill is of the front, the others of a worker."""
FLAGS = ("--replicas", "2", "--max-length", "256")


@dataclass
class Trainee:
    """A client that trains step by step, and knows the last state that was acknowledged."""

    server: Server
    client: tinker.ServiceClient
    training: tinker.TrainingClient

    @classmethod
    def begin(cls, server: Server, model: str) -> Trainee:
        client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
        return cls(server, client, client.create_lora_training_client(model, rank=4, seed=1))

    @classmethod
    def resume(cls, server: Server, path: str) -> Trainee:
        client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
        return cls(server, client, client.create_training_client_from_state_with_optimizer(path))

    def submit(self, step: int) -> tuple[list[Any], Any]:
        sampling = self.training.save_weights_and_get_sampling_client()
        params = tt.SamplingParams(max_tokens=48, seed=step)
        samples: list[Any] = [sampling.sample(prompt(), 2, params) for _ in range(4)]
        return samples, self.training.forward_backward(batch(4, seed=step), "cross_entropy")

    def finish(self, step: int, work: tuple[list[Any], Any]) -> tuple[float, str, set[str]]:
        """The loss of the step, the path of the state after it, and the different answers."""
        samples, gradient = work
        loss = gradient.result().metrics["loss:sum"]
        self.training.optim_step(tt.AdamParams(learning_rate=0.01)).result()
        path = self.training.save_state(f"step-{step}").result().path
        texts = {str([list(sequence.tokens) for sequence in sample.result().sequences]) for sample in samples}
        return loss, path, texts


@pytest.mark.slow
@pytest.mark.timeout(600 + 240 * KILLS)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_kills_of_workers_and_fronts_change_no_loss_and_lose_no_sample(
    start: Start, model: str, tmp_path: Path
) -> None:
    calm = Trainee.begin(start(tmp_path / "calm", *FLAGS), model)
    expected = [calm.finish(step, calm.submit(step)) for step in range(KILLS)]
    calm.server.kill()
    calm.client.holder.close()

    moments, kinds = random.Random(0), {"worker": 0, "front": 0}
    trainee, path = Trainee.begin(start(tmp_path / "state", *FLAGS), model), ""
    path = trainee.training.save_state("begin").result().path
    for step in range(KILLS):
        work = trainee.submit(step)
        time.sleep(moments.uniform(0, 0.3))
        if step % FRONT_EVERY == FRONT_EVERY - 1:
            kinds["front"] += 1
            trainee.server.kill()
            trainee.client.holder.close()
            trainee = Trainee.resume(start(tmp_path / "state", *FLAGS), path)
            work = trainee.submit(step)
        else:
            kinds["worker"] += 1
            pids = wait_until(lambda server=trainee.server: worker_pids(server))
            os.kill(moments.choice(pids), signal.SIGKILL)
        loss, path, texts = trainee.finish(step, work)
        assert loss == expected[step][0], f"step {step}: an update was lost or made twice"
        assert texts == expected[step][2], f"step {step}: other answers"
    assert sum(kinds.values()) == KILLS
    trainee.server.kill()
    trainee.client.holder.close()
