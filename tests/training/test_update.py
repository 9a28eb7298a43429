"""What the trainer sends for an update, as it goes over the wire, and the numbers it gives of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from hermes.engine.server.tinker.proto import parse_forward_backward, read_data, read_loss
from hermes.engine.types import Datum, Loss
from hermes.training.data.batch import BatchConfig, prepare
from hermes.training.schedule import Schedule
from hermes.training.service.client import AdapterClient
from hermes.training.service.token_meter import TokenMeter
from hermes.training.update import Update
from tests.engine.http.engine_process import Server
from tests.training.conftest import MakeRun, StartTrainer
from tests.training.proxy import proxy
from tests.training.rl_runs import feeding, settings, trained
from tests.training.world import PROMPT, Environment, group, metrics


class Wire:
    """What went by."""

    def __init__(self) -> None:
        self.updates: list[tuple[Loss, list[Datum]]] = []
        self.optim: list[dict[str, Any]] = []
        self.saved: list[str] = []

    def hear(self, path: str, body: bytes) -> None:
        if path.endswith("/forward_backward"):
            message = parse_forward_backward(body)
            if message.loss_fn != "cross_entropy":  # that is the probe
                self.updates.append((read_loss(message), read_data(message)))
        elif path.endswith("/optim_step"):
            self.optim.append(json.loads(body)["adam_params"])
        elif path.endswith("/save_weights"):
            self.saved.append(json.loads(body)["path"])


@pytest.fixture
def wire(engine: Server) -> Iterator[tuple[Wire, str]]:
    """What goes to the engine, and the address to send it to."""
    heard = Wire()
    with proxy(engine.url, hear=heard.hear) as url:
        yield heard, url


def test_clipping_is_that_of_every_update_from_a_batch(make_run: MakeRun, environment: Environment) -> None:
    run = make_run()
    trained(run, environment, steps=1, loss="ppo", epochs=2, clip=(0.9999, 1.0001), schedule=Schedule(0.05))
    (row,) = metrics(run.folder)
    # Nothing is clipped before the first update, and next to everything before the second.
    assert 0.4 < row["health/clip_fraction"] <= 0.5
    assert row["health/ratio_max"] == pytest.approx(1, abs=1e-3), "before the update"


def stated_lower(present: list[list[float]], shift: Callable[[int], float], version: str) -> dict[str, Any]:
    """A group whose stated logprobs are lower than the present ones by `shift` of their position."""
    before = len(PROMPT)
    rows = [[value - shift(n) for n, value in enumerate(row[before:])] for row in present]
    return group(ANSWERS, rows, [1.0, 0.0], overrides=[{"policy_version": version}] * 2)


ANSWERS = ((8, 9, 10, 11, 12, 13), (20, 21, 22, 23, 24, 25))


def test_stale_rollouts_are_weighed_by_their_capped_ratio_and_ppo_clips_around_the_present_policy(
    make_run: MakeRun, wire: tuple[Wire, str]
) -> None:
    """The ratio of a token is exactly what its stated logprob is off by."""
    heard, url = wire
    run = make_run(url=url)
    with (
        closing(TokenMeter(run.folder)) as meter,
        AdapterClient(run.connection, run.lora, meter) as client,
    ):
        present = client.forward([[*PROMPT, *answer] for answer in ANSWERS])
        made = stated_lower(present, lambda position: 0.4 if position % 2 else 1.5, "step-0")
        batch = prepare([made], BatchConfig(), step=1)
        row = Update(client, settings("", loss="ppo")).apply(batch.sequences, 2, 0.0, None)
    ((loss, stale),) = heard.updates
    assert loss == Loss("ppo", {})
    before = len(PROMPT) - 1  # the first token is not predicted
    for datum in stale:
        sent = datum.inputs["advantages"][before:]
        weights = np.array([2.0 if position % 2 == 0 else math.exp(0.4) for position in range(6)])
        own = sent / weights
        assert own == pytest.approx(np.full(6, own[0]), rel=1e-4), "one advantage for the rollout"
    told = np.concatenate([datum.inputs["logprobs"][before:] for datum in stale])
    assert told.mean() == pytest.approx(row["logprobs/mean_training"], abs=1e-4), "π has taken μ's place"
    assert row["logprobs/diff"] == pytest.approx(-0.95, abs=1e-3), "reference - training, as stated"
    assert row["health/logprob_gap"] == pytest.approx(0.95, abs=1e-3)
    assert row["health/clip_fraction"] == 0 and row["health/ratio_max"] == pytest.approx(
        math.exp(1.5), rel=1e-3
    )


@pytest.mark.parametrize(
    ("more", "bounds"),
    [
        ({"cap": 1.5}, (0.0, 1.5)),
        ({"cap": 1.5, "clip": (0.5, 3.0)}, (0.5, 3.0)),
        ({"cap": None}, None),
    ],
    ids=["cap", "clip", "neither"],
)
def test_cispo_clips_at_the_correction_cap_unless_it_is_given_bounds(
    make_run: MakeRun, environment: Environment, wire: tuple[Wire, str], more: Any, bounds: Any
) -> None:
    heard, url = wire
    trained(make_run(url=url), environment, steps=1, loss="cispo", **more)
    ((loss, _),) = heard.updates
    names = ("clip_low_threshold", "clip_high_threshold")
    assert loss == Loss("cispo", dict(zip(names, bounds, strict=True)) if bounds else {})


@pytest.mark.slow
def test_the_recipe_is_what_a_plain_command_sends(
    start: StartTrainer, environment: Environment, wire: tuple[Wire, str]
) -> None:
    """Adam with 0.9 and 0.95, gradients clipped at 1, a checkpoint after 25 steps: without being asked."""
    heard, url = wire
    given = ("--num-steps", "26", "--batch-size", "4", "--api-url", environment.api_url)
    with feeding(environment, groups=1):
        process = start("grpo", *given, url=url)
        assert process.wait() == 0, process.output
    (adam,) = {json.dumps(params, sort_keys=True) for params in heard.optim}
    sent = json.loads(adam)
    assert (sent["beta1"], sent["beta2"], sent["grad_clip_norm"]) == (0.9, 0.95, 1.0)
    assert sent["learning_rate"] == pytest.approx(1.5e-3, rel=0.5), "by the model's size"
    assert heard.saved == ["step-25", "step-26"]
    assert {loss.name for loss, _ in heard.updates} == {"cispo"}
    bounds = {"clip_low_threshold": 0.0, "clip_high_threshold": 2.0}
    assert all(loss.config == bounds for loss, _ in heard.updates), "importance sampling, capped at 2"
