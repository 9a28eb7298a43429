"""The agent's budget: steps, wall clock and money, over all that one task starts; a scripted model tries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hermes.config.load import Config, load
from hermes.core import JSON
from hermes.errors import UsageError
from hermes.rl.budget import RemainingBudget, charge_test, grant, recorded_limits, remaining, spent_usd
from hermes.rl.config.resolve import Resolved, resolve, select
from hermes.rl.run import RlRun, RunState, RunStatus, find_run
from hermes.rl.run_config import RunConfig
from hermes.rl.supervise.plan import RunPlan
from hermes.training.service.token_meter import TokenMeter
from hermes.web.runs.listing import list_runs
from tests.engine.http.engine_process import launch
from tests.rl.conftest import MakeHome
from tests.rl.pilot import Pilot, drive
from tests.rl.world import change_settings

SERVICE = "http://127.0.0.1:9"
PRICE: dict[str, JSON] = {"prefill": 1.0, "sample": 2.0, "train": 4.0}


def configured(home: Path, **rl: JSON) -> Config:
    flags = {f"rl.{name}": value for name, value in rl.items()}
    return load(flags, {"HERMES_HOME": str(home)})


def chosen(config: Config, **edits: Any) -> Resolved:
    selection = select(config, "letters")
    return resolve(config, replace(selection, edits={**selection.edits, **edits}))


def a_run(home: Path, run_id: str, task: str, state: RunState, hours: float = 1.0, **about: Any) -> RlRun:
    """The record of a run, as `start` and a supervisor leave it."""
    run = RlRun(home, run_id)
    facts = {"task": task, "max_hours": None, "max_usd": None, "price": None, "service": None, "cwd": "/"}
    RunConfig.parse({"env": {"total_steps": 40}, "run": {**facts, **about}}, "test").write(run.folder)
    ended_at_ms = int(hours * 3.6e6) + 1 if state.ended else None
    run.write_status(RunStatus(state, started_at_ms=1, ended_at_ms=ended_at_ms))
    run.metrics_path.write_text('{"step": 1}\n{"step": 30}\n')
    return run


def test_runs_of_one_task_share_its_budget_and_those_of_others_do_not(home_with: MakeHome) -> None:
    config = configured(home_with(), max_steps=100, max_hours=4, max_usd=5.0)
    assert remaining(config, "a") == RemainingBudget(100, 4.0, 5.0)
    a_run(config.home, "00000001", "a", RunState.STOPPED, hours=0.5)
    a_run(config.home, "00000002", "b", RunState.COMPLETED)
    assert remaining(config, "a") == RemainingBudget(70, 3.5, 5.0), "a run that has ended counts what it made"
    a_run(config.home, "00000003", "a", RunState.RUNNING, max_hours=3.5, max_usd=2.0)
    assert remaining(config, "a") == RemainingBudget(30, 0.0, 3.0), (
        "one that goes on holds what it was granted"
    )
    assert remaining(config, "b") == RemainingBudget(70, 3.0, 5.0)


def test_what_a_service_asks_is_reckoned_by_the_tokens_and_stops_the_run(home_with: MakeHome) -> None:
    run = a_run(home_with(), "00000001", "a", RunState.RUNNING, service=SERVICE, max_usd=0.5, price=PRICE)
    meter = TokenMeter(run.folder)
    meter.count(prefill=100_000, sampled=50_000)
    meter.close()
    assert spent_usd(run) == pytest.approx(0.2) and RunPlan(run).over_budget() is None
    meter.count(trained=75_000)
    meter.close()
    assert RunPlan(run).over_budget() == "the budget of $0.5 is used up"


@pytest.mark.parametrize(
    ("settings", "edits", "said", "fix"),
    [
        ({"max_steps": 3}, {}, "total_steps is 4, and 3 are left of the budget of 3 steps", "rl.max_steps"),
        (
            {"max_usd": 1.0, "service": SERVICE},
            {},
            "a budget of $1, and the price of the service is unknown",
            "rl.price",
        ),
        (
            {"max_usd": 1.0},
            {"env.judge_model": "openrouter/x"},
            "env.judge_model openrouter/x may cost money",
            "a person can start",
        ),
        (
            {"max_usd": 1.0},
            {"env.judge_url": "https://judge.example/v1"},
            "env.judge_url https://judge.example/v1 may cost money",
            "a person can start",
        ),
    ],
)
def test_a_run_beyond_the_budget_or_of_unknown_price_is_refused_to_the_agent(
    home_with: MakeHome, settings: dict[str, JSON], edits: dict[str, str], said: str, fix: str
) -> None:
    config = configured(home_with(), **settings)
    resolved = chosen(config)
    resolved = replace(resolved, values={**resolved.values, **edits})
    with pytest.raises(UsageError) as caught:
        grant(config, resolved, "a")
    assert said in caught.value.message and fix in caught.value.hint


def test_a_run_gets_what_is_left_and_one_on_an_engine_of_its_own_costs_nothing(home_with: MakeHome) -> None:
    config = configured(home_with(), max_steps=50, max_hours=2, max_usd=1.0)
    assert grant(config, chosen(config), "a") == RemainingBudget(50, 2.0, None)
    paid = configured(config.home, max_usd=1.0, service=SERVICE, price=PRICE)
    assert grant(paid, chosen(paid), "a").usd == 1.0
    a_run(config.home, "00000001", "a", RunState.RUNNING, service=SERVICE, max_usd=1.0, price=PRICE)
    with pytest.raises(UsageError, match=r"the budget of \$1 is used up"):
        grant(paid, chosen(paid), "a")
    assert grant(configured(config.home), chosen(config), "a") == RemainingBudget(None, None, None)


def test_the_price_of_a_service_is_not_that_of_an_engine_of_this_machine(home_with: MakeHome) -> None:
    priced = configured(home_with(), max_usd=1.0, price=PRICE)
    served = configured(priced.home, max_usd=1.0, service=SERVICE, price=PRICE)
    unpriced = configured(priced.home, service="https://tinker.example")
    local, paid, unknown = (recorded_limits(config, None)["price"] for config in (priced, served, unpriced))
    assert (paid, unknown) == (PRICE, None)
    assert recorded_limits(configured(priced.home, service=SERVICE), None)["price"] == local
    run = a_run(priced.home, "00000001", "a", RunState.COMPLETED, max_usd=1.0, price=local)
    (run.folder / "tokens.json").write_text('{"prefill": 1000000, "sampled": 1000000, "trained": 1000000}')
    (run.folder / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    assert remaining(priced, "a").usd == 1.0
    assert [row.facts.cost_usd for row in list_runs(priced.home)] == [0.0]


def test_a_test_is_paid_for_before_it_begins_at_what_it_may_come_to(home_with: MakeHome) -> None:
    config = configured(home_with(), max_usd=0.02)
    resolved = chosen(config)
    with pytest.raises(UsageError, match="the price of qwen/qwen3-8b is unknown"):
        charge_test(config, resolved, "a", ["qwen/qwen3-8b"], 48)
    charge_test(config, resolved, "a", ["hermes/smollm2", str(config.home)], 48)
    flags: dict[str, JSON] = {
        "rl.max_usd": 0.02,
        "prices": {"openrouter/qwen/qwen3-8b": {"input": 10.0, "output": 20.0}},
    }
    priced = load(flags, {"HERMES_HOME": str(config.home)})
    charge_test(priced, resolved, "a", ["qwen/qwen3-8b"], 48)  # 48 answers of 8 tokens: about a cent
    assert remaining(priced, "a").usd == pytest.approx(0.02 - 0.01152)
    with pytest.raises(UsageError, match=r"may cost up to \$0.01, and \$0.01 are left"):
        charge_test(priced, resolved, "a", ["qwen/qwen3-8b"], 48)
    charge_test(priced, resolved, "b", ["qwen/qwen3-8b"], 48)


def _greedy() -> Pilot:
    yield "rl_select_environment", {"name": "letters"}
    yield "rl_edit_config", {"field": "group_size", "value": 4}
    yield "rl_edit_config", {"field": "total_steps", "value": 50}
    yield "rl_edit_config", {"field": "max_steps", "value": 1000}
    yield "rl_start_training", {}
    yield "rl_edit_config", {"field": "total_steps", "value": 10}
    yield "rl_start_training", {}
    yield "rl_test_inference", {"models": ["openrouter/some/model"]}


def test_the_agent_cannot_raise_its_budget_even_where_the_field_is_unlocked(home_with: MakeHome) -> None:
    home = home_with()
    change_settings(home, unlock=["total_steps"], max_steps=10, max_usd=1.0, service=SERVICE)
    script = drive(home, _greedy())
    edits = script.results("rl_edit_config")
    assert edits[1]["value"] == 50 and "there is no field 'max_steps'" in edits[2]["error"]
    long, unpriced = script.results("rl_start_training")
    assert "10 are left of the budget of 10 steps" in long["error"] and "only a person" in long["fix"]
    assert "the price of the service is unknown" in unpriced["error"]
    (test,) = script.results("rl_test_inference")
    assert "the price of openrouter/some/model is unknown" in test["error"]
    assert not any((home / "runs").glob("*/status.json"))


def _until_ended(run_id: str) -> Pilot:
    while True:
        runs = yield "rl_list_runs", {}
        if next(one["status"] for one in runs["runs"] if one["run_id"] == run_id) in ("stopped", "failed"):
            return


def _spendthrift() -> Pilot:
    yield "rl_select_environment", {"name": "letters"}
    yield "rl_edit_config", {"field": "group_size", "value": 4}
    yield "rl_edit_config", {"field": "batch_size", "value": 8}
    first = yield "rl_start_training", {}
    yield "rl_start_training", {}
    yield from _until_ended(first["run_id"])
    yield "rl_get_results", {"run_id": first["run_id"]}
    yield "rl_start_training", {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_has_spent_its_money_is_stopped_and_no_other_is_started(
    home_with: MakeHome, model: Path, tmp_path: Path
) -> None:
    engine = launch(model, tmp_path / "service")
    try:
        home = home_with(total_steps=1000)
        change_settings(home, max_usd=0.02, service=engine.url, price=PRICE)
        script = drive(home, _spendthrift())
    finally:
        engine.kill()
    first, second, third = script.results("rl_start_training")
    assert "the budget of $0.02 is used up" in second["error"], "the first run holds all of it"
    (results,) = script.results("rl_get_results")
    assert (results["status"], results["reason"]) == ("stopped", "the budget of $0.02 is used up")
    assert 0 < results["steps"] < 1000
    spent = spent_usd(find_run(home, first["run_id"]))
    assert 0.02 <= spent < 0.1, "it stops within moments of passing it"
    assert "the budget of $0.02 is used up" in third["error"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_has_spent_its_hours_is_stopped_and_no_other_is_started(home_with: MakeHome) -> None:
    home = home_with(total_steps=100_000)
    change_settings(home, max_hours=0.01)
    script = drive(home, _spendthrift())
    _, second, third = script.results("rl_start_training")
    assert "the budget of 0.01 h is used up" in second["error"]
    (results,) = script.results("rl_get_results")
    assert (results["status"], results["reason"]) == ("stopped", "the budget of 0.01 h is used up")
    assert "the budget of 0.01 h is used up" in third["error"]
