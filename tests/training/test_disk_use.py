"""What a run leaves on disk while it trains: bounded, however many steps it makes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from hermes.training.checkpoints import StateFile
from hermes.training.data.datums import sft_datum
from hermes.training.monitor.sinks import Sinks
from hermes.training.service.client import AdapterClient
from hermes.training.service.token_meter import TokenMeter
from hermes.training.session import TrainingSession
from hermes.training.sft import _LOSS
from tests.engine.http.engine_process import launch
from tests.training.conftest import MakeRun

STEPS = 100
TOKENS = (5, 6, 7, 8, 9, 10, 11, 12)


def adapters(folder: Path) -> int:
    return len(list(folder.rglob("adapter_model.safetensors")))


@pytest.mark.slow
def test_a_hundred_proved_steps_leave_a_bounded_number_of_adapters(
    make_run: MakeRun, tiny: Path, tmp_path: Path
) -> None:
    """Every step publishes weights and proves them; the proof holds none that the run has deleted."""
    state_dir = tmp_path / "engine"
    server = launch(tiny, state_dir)
    try:
        run = make_run(url=server.url, every=25, last=2)
        most = spilled = 0
        with (
            closing(TokenMeter(run.folder)) as meter,
            AdapterClient(run.connection, run.lora, meter) as client,
        ):
            state = StateFile(run.folder).read("sft", {})
            session = TrainingSession(run, state, client, Sinks([]), higher_is_better=False)
            session.publish(0)
            session.begin_proof(TOKENS)
            for step in range(1, STEPS + 1):
                client.forward_backward([sft_datum(TOKENS, [1.0] * len(TOKENS))], _LOSS)
                client.optim_step(1e-3, 0.9, 0.95, 1.0)
                session.publish(step)
                session.prove(pushed=True)
                if session.checkpoint_due(step, STEPS):
                    session.checkpoint(step, None)
                most = max(most, adapters(state_dir))
                spilled = max(spilled, adapters(state_dir / ".ephemeral"))
            session.finish("all steps made")
        assert spilled == 0, "weights that the run deleted were held by its own proof"
        assert most <= 22, "16 published weights, two checkpoints with two adapters each, one being written"
        assert adapters(state_dir) == 4
    finally:
        server.kill()
