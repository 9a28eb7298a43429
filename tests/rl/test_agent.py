"""The agent with its ten tools: a scripted model drives them all through a whole training run."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.rl.run import find_run
from hermes.rl.tools import RL_TOOLS
from tests.fakes.provider import FakeProvider
from tests.rl.conftest import MakeHome
from tests.rl.pilot import Pilot, Script, ask
from tests.rl.reference_calls import RETURNS, SUMMARY, TESTED


def _whole_run(model: Path) -> Pilot:
    yield "rl_list_environments", {}
    yield "rl_select_environment", {"name": "leters"}
    yield "rl_select_environment", {"name": "letters"}
    yield "rl_get_current_config", {}
    for field, value in (
        ("lora_rank", 64),
        ("group_size", 1),
        ("nothing", 1),
        ("group_size", 4),
        ("batch_size", 8),
    ):
        yield "rl_edit_config", {"field": field, "value": value}
    yield "rl_test_inference", {"num_steps": 1, "group_size": 2, "models": [str(model)]}
    started = yield "rl_start_training", {}
    run_id = started["run_id"]
    yield "rl_check_status", {"run_id": run_id}
    checked = False
    while True:
        runs = yield "rl_list_runs", {}
        state = next(row["status"] for row in runs["runs"] if row["run_id"] == run_id)
        if state == "running" and not checked:
            told = yield "rl_check_status", {"run_id": run_id}
            if checked := "metrics" in told:
                yield "rl_check_status", {"run_id": run_id}
        if state in ("completed", "failed", "stopped"):
            break
    yield "rl_check_status", {"run_id": run_id}
    yield "rl_get_results", {"run_id": run_id}
    second = yield "rl_start_training", {}
    yield "rl_stop_training", {"run_id": second["run_id"]}
    yield "rl_stop_training", {"run_id": second["run_id"]}
    yield "rl_get_results", {"run_id": "ffffffff"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_scripted_model_drives_all_ten_tools_through_a_whole_run(home_with: MakeHome, model: Path) -> None:
    home = home_with(total_steps=8)
    script = Script(_whole_run(model))
    with FakeProvider(script.answer) as provider:
        done = ask(home, provider, "Train the tiny model on letters")
        serve_proxy = {tool["function"]["name"] for tool in provider.requests[0].json["tools"]}
    assert done.returncode == 0 and done.stdout.strip().endswith("The model is trained."), done.stderr
    assert serve_proxy == {tool.name for tool in RL_TOOLS} == {name for name, _, _ in script.said}
    for tool, keys in RETURNS.items():
        good = [said for said in script.results(tool) if "error" not in said and "rate_limited" not in said]
        assert good and all(keys <= said.keys() for said in good), tool

    assert "letters" in [each["name"] for each in script.results("rl_list_environments")[0]["environments"]]
    misspelt, chosen = script.results("rl_select_environment")
    assert "letters" in misspelt["available"] and chosen["environment"] == "letters"
    config = script.results("rl_get_current_config")[0]
    rank = next(field for field in config["locked_fields"] if field["name"] == "tinker.lora_rank")
    assert rank["locked_value"] == 4 and rank["reason"]
    locked, small, unknown, group, batch = script.results("rl_edit_config")
    assert locked["locked_value"] == 4 and "at least 2" in small["fix"]
    assert "env.group_size" in unknown["available_fields"]
    assert (group["value"], batch["value"], batch["config"]["env.group_size"]) == (4, 8, 4)
    test = script.results("rl_test_inference")[0]
    assert test["summary"].keys() == SUMMARY and test["models_tested"][0].keys() == TESTED
    assert test["summary"]["environment_working"] and test["models_tested"][0]["total_completions"] == 2

    first, second = script.results("rl_start_training")
    checks = script.results("rl_check_status")
    assert checks[0]["status"] in ("starting", "running") and set(checks[0]["processes"]) >= {"api", "env"}
    assert checks[-1]["status"] == "completed" and checks[-1]["metrics"]["step"] == 8
    assert 0 <= checks[-1]["metrics"]["percent_positive_reward"] <= 100
    healthy = [check for check in checks if check["status"] == "running" and "last_log_lines" not in check]
    assert [bool(check.get("rate_limited")) for check in healthy] == [False, True], "from the first step on"
    results = script.results("rl_get_results")
    assert results[0]["status"] == "completed" and len(results[0]["history"]) == 8
    assert Path(results[0]["weights_path"]).is_dir()
    assert "no run 'ffffffff'" in results[1]["error"]
    stopped, again = script.results("rl_stop_training")
    assert stopped["status"] == "stopped" and "has ended: stopped" in again["error"]
    assert find_run(home, second["run_id"]).status().state.value == "stopped"
    assert first["config"]["env.total_steps"] == 8 and Path(first["config_path"]).is_file()
