"""The RL loop with a real engine, a real trajectory API and an environment that samples what is published."""

from __future__ import annotations

import statistics
import threading
from typing import Any

import pytest

from hermes.errors import HermesError, UsageError
from hermes.rl.checks.doctor import diagnose
from hermes.serving.trajectory_api import TrajectoryApiError
from hermes.training.checkpoints import exclusive_lock
from hermes.training.data.advantages import Baseline
from hermes.training.data.batch import BatchConfig
from hermes.training.monitor.sinks import JsonLines, Sinks
from hermes.training.rl import RunServices, train
from tests.training.conftest import MakeRun
from tests.training.rl_runs import always_the_first, feeding, services, settings, trained
from tests.training.world import Environment, ask, metrics

SEEDS = (
    *("train/loss", "train/learning_rate", "reward/mean", "logprobs/mean", "logprobs/mean_training"),
    *("logprobs/diff", "advantages/mean", "advantages/std"),
)
HEALTH = (
    "reward/positive",
    *(
        "health/entropy",
        "health/clip_fraction",
        "health/group_signal",
        "health/truncated",
        "health/staleness",
    ),
    *("health/tool_errors", "stop/completed", "stop/max_tokens", "probe/gap", "optim/grad_norm"),
)


def test_the_reward_rises_on_a_task_that_can_be_learned_and_the_run_looks_healthy(
    make_run: MakeRun, environment: Environment
) -> None:
    run = make_run(every=10)
    done = trained(run, environment, steps=25, batch_size=16)
    rewards = [row["reward/mean"] for row in metrics(run.folder)]
    assert done.step == 25 and done.best is not None
    assert statistics.fmean(rewards[-4:]) > statistics.fmean(rewards[:4]) + 0.15, rewards
    assert ask(environment.api_url, "GET", "/status")["leases"]["outstanding"] == 0
    assert diagnose(metrics(run.folder), "running", None) == []


def test_every_number_of_the_seeds_and_of_the_health_set_is_written(
    make_run: MakeRun, environment: Environment
) -> None:
    def tell(made: dict[str, Any]) -> None:
        for index, facts in enumerate(made["overrides"]):
            facts |= {
                "stop_reason": "max_tokens" if index else "completed",
                "tool_calls": 2,
                "tool_errors": 1,
                "forbidden_paths": 2 if index == 1 else 0,
            }

    run = make_run()
    trained(run, environment, tell, steps=2)
    last = metrics(run.folder)[-1]
    assert {*SEEDS, *HEALTH} <= last.keys()
    assert last["health/truncated"] == 0.75 and last["health/tool_errors"] == 0.5
    assert last["health/forbidden_paths"] == 0.25
    assert last["probe/gap"] < 1e-4
    spread = [last[f"reward/{name}"] for name in ("min", "p10", "p50", "p90", "max")]
    assert spread == sorted(spread)


@pytest.mark.parametrize("loss", ["ppo", "cispo"])
def test_the_other_losses_train_too_with_several_updates_from_a_batch(
    loss: str, make_run: MakeRun, environment: Environment
) -> None:
    run = make_run()
    trained(run, environment, steps=2, loss=loss, epochs=2, rules=BatchConfig(Baseline.LEAVE_ONE_OUT))
    assert [row["optim/optimizer_step"] for row in metrics(run.folder)] == [2, 4]


def test_groups_without_signal_are_skipped_and_counted_and_do_not_stop_the_run(
    make_run: MakeRun, environment: Environment
) -> None:
    made_so_far = 0

    def same_but_at_first(made: dict[str, Any]) -> None:
        nonlocal made_so_far
        made_so_far += 1
        if made_so_far > 2:
            made["scores"] = [1.0] * len(made["scores"])

    run = make_run()
    done = trained(run, environment, same_but_at_first, steps=30)
    assert done.step == 30
    first, *others = metrics(run.folder)
    assert "optim/grad_norm" in first and len(others) == 29
    for row in others:
        assert row["health/zero_variance_groups"] == 2 and row["health/group_signal"] == 0
        assert "optim/grad_norm" not in row


@pytest.mark.parametrize(("steps", "made"), [(3, 3), (99, 24)])
def test_a_run_that_never_had_any_signal_does_not_claim_to_have_learned(
    make_run: MakeRun, environment: Environment, steps: int, made: int
) -> None:
    def worth_nothing(made: dict[str, Any]) -> None:
        made["scores"] = [0.0] * len(made["scores"])

    run = make_run()
    with pytest.raises(HermesError, match=r"^no signal: in all \d+ batches .* equal \(mean reward 0\)"):
        trained(run, environment, worth_nothing, steps=steps)
    assert len(metrics(run.folder)) == made


def test_what_was_sampled_too_long_ago_is_not_trained_on(make_run: MakeRun, environment: Environment) -> None:
    run = make_run()
    trained(run, environment, always_the_first(environment), steps=4, rules=BatchConfig(max_staleness=1))
    rows = metrics(run.folder)
    assert [row["health/staleness"] for row in rows] == [0, 1, 2, 3]
    assert [row["health/stale_dropped"] for row in rows] == [0, 0, 8, 8]
    assert ["optim/grad_norm" in row for row in rows] == [True, True, False, False]


@pytest.mark.slow
def test_a_penalty_keeps_the_policy_near_the_base_model(make_run: MakeRun, environment: Environment) -> None:
    drifts = []
    for kl in (0.0001, 1.0):
        environment.forget()
        run = make_run(f"kl-{kl}")
        trained(run, environment, steps=8, kl=kl)
        drifts.append(metrics(run.folder)[-1]["kl/reference"])
        ask(environment.api_url, "GET", "/reset_data", text=True)
    assert abs(metrics(run.folder)[0]["kl/reference"]) < 1e-4
    assert drifts[1] < drifts[0]


def test_a_run_that_is_asked_to_stop_saves_what_it_has_and_goes_on_later(
    make_run: MakeRun, environment: Environment
) -> None:
    run, stop = make_run(), threading.Event()
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if line.startswith("step 2/"):
            stop.set()

    with feeding(environment):
        done = train(
            run, settings(environment.api_url, 4), RunServices(Sinks([JsonLines(run.folder)]), tell, stop)
        )
        assert (done.step, done.reason) == (2, "stopped")
        again = RunServices(Sinks([JsonLines(run.folder)]), tell)
        assert train(run, settings(environment.api_url, 4), again).step == 4
    assert [row["step"] for row in metrics(run.folder)] == [1, 2, 3, 4]
    assert [row["optim/optimizer_step"] for row in metrics(run.folder)] == [1, 2, 3, 4]


def test_a_run_that_is_under_way_is_not_started_a_second_time(make_run: MakeRun) -> None:
    run = make_run()
    with (
        exclusive_lock(run.folder),
        pytest.raises(UsageError, match=r"another process is training the run in .*/run$") as caught,
    ):
        train(run, settings("http://127.0.0.1:9"), services(run))
    assert "another run name" in caught.value.hint
    assert not (run.folder / "training.json").exists()


def test_an_api_that_is_not_there_is_said_once_the_patience_is_spent(make_run: MakeRun) -> None:
    run = make_run()
    with pytest.raises(
        TrajectoryApiError, match=r"no response from the trajectory API at http://127\.0\.0\.1:9"
    ) as caught:
        train(run, settings("http://127.0.0.1:9", api_patience_s=0.2), services(run))
    assert caught.value.hint.startswith("start it with: hermes api")


def test_a_sampler_at_another_temperature_is_trained_on_without_its_ratios(
    make_run: MakeRun, environment: Environment
) -> None:
    run, environment.temperature = make_run(), 1.5
    trained(run, environment, steps=3)
    rows = metrics(run.folder)
    assert abs(rows[0]["logprobs/diff"]) > 0.1, "the stated logprobs are those at the temperature"
    assert rows[0]["health/ratio_max"] == pytest.approx(1, abs=1e-3) and abs(rows[0]["health/k3"]) < 1e-3
    assert abs(rows[0]["train/loss"]) < 1e-3  # ratios are 1, and advantages are centred
    assert rows[-1]["optim/grad_norm"] > 0


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_divergence_from_the_base_model_is_that_of_the_present_policy(
    make_run: MakeRun, environment: Environment, temperature: float
) -> None:
    """0 before the first update, whatever the temperature; not 0 for rollouts of the first weights later."""
    run, environment.temperature = make_run(), temperature
    trained(run, environment, always_the_first(environment), steps=3, kl=0.001)
    first, *later = [row["kl/reference"] for row in metrics(run.folder)]
    assert abs(first) < 1e-4
    assert all(abs(value) > 1e-3 for value in later)
