"""The ten tools, field by field: arguments and answers are those that agents of the predecessor know."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hermes.config.load import Config, load
from hermes.core.clock import now_ms
from hermes.rl import tool_handlers
from hermes.rl.process import ProcessId
from hermes.rl.run import RlRun, RunState, RunStatus
from hermes.rl.run_config import RunConfig
from hermes.rl.tools import RL_TOOLS
from tests.cli.process import failure
from tests.cli.terminal import hermes_terminal
from tests.fakes.provider import FakeProvider, text
from tests.recipes.scripts import RECIPES
from tests.rl.conftest import MakeHome
from tests.rl.reference_calls import RETURNS
from tests.rl.world import answer, change_settings, hermes

ARGUMENTS: dict[str, tuple[set[str], list[str]]] = {
    "rl_list_environments": (set(), []),
    "rl_select_environment": ({"name"}, ["name"]),
    "rl_get_current_config": (set(), []),
    "rl_edit_config": ({"field", "value"}, ["field", "value"]),
    "rl_start_training": (set(), []),
    "rl_check_status": ({"run_id"}, ["run_id"]),
    "rl_stop_training": ({"run_id"}, ["run_id"]),
    "rl_get_results": ({"run_id"}, ["run_id"]),
    "rl_list_runs": (set(), []),
    "rl_test_inference": ({"num_steps", "group_size", "models"}, []),
}
OWN_LOCKED = (
    "engine_kv_gib",
    "engine_memory_gib",
    "engine_quantize",
    "engine_replicas",
    "engine_tensor_parallel_size",
    "env_replicas",
    "lora_alpha",
    "lora_targets",
    "sampling_folder",
    "sampling_seed",
    "sampling_server_type",
    "sampling_servers",
    "teacher_model",
    "teacher_url",
)
"""Fields that the reference does not have."""
FIELD = {"name", "type", "default", "description", "current_value"}
LOCKED = (
    *("tokenizer_name", "rollout_server_url", "use_wandb", "max_token_length", "max_num_workers"),
    *("worker_timeout", "total_steps", "steps_per_eval", "max_batches_offpolicy", "inference_weight"),
    *("eval_limit_ratio", "lora_rank", "learning_rate", "max_token_trainer_length", "checkpoint_dir"),
    *("save_checkpoint_interval", "model_name", "base_url", "api_key", "num_requests_for_eval", "timeout"),
    *("server_type", "slurm", "testing", "base_model"),
    *("data_path_to_save_groups", "data_dir_to_save_evals", "terminal_backend"),  # added to the reference
)


def test_every_tool_takes_the_arguments_of_the_reference() -> None:
    found = {
        tool.name: (set(tool.parameters["properties"]), tool.parameters["required"]) for tool in RL_TOOLS
    }
    assert found == ARGUMENTS


def test_choosing_and_configuring_answers_with_the_fields_of_the_reference(home_with: MakeHome) -> None:
    config = load(environ={"HERMES_HOME": str(home_with())})

    def told(tool: str, **arguments: Any) -> dict[str, Any]:
        said: dict[str, Any] = getattr(tool_handlers, tool.removeprefix("rl_"))(config, arguments, "task")
        assert RETURNS[tool] <= said.keys(), tool
        return said

    listed = told("rl_list_environments")
    assert listed["count"] == len(listed["environments"]) > 0
    assert {*listed["environments"][0]} == {"name", "class_name", "file_path", "description"}
    assert told("rl_select_environment", name="letters")["environment"] == "letters"
    shown = told("rl_get_current_config")
    assert all(field.keys() >= FIELD for field in shown["configurable_fields"])
    assert all({*FIELD, "locked_value"} <= field.keys() for field in shown["locked_fields"])
    names = [field["name"].rpartition(".")[2] for field in shown["locked_fields"]]
    assert sorted(names) == sorted([*LOCKED, *OWN_LOCKED])
    name = next(field for field in shown["configurable_fields"] if field["name"] == "env.wandb_name")
    assert name["current_value"].startswith("letters-20")
    assert told("rl_edit_config", field="group_size", value=4)["value"] == 4
    refused = tool_handlers.edit_config(config, {"field": "slurm", "value": True}, "task")
    assert refused["locked_value"] is False and refused["fix"] == "it has no other value"


def _record(home: Path, **about: Any) -> Config:
    """A run as its supervisor, trainer and environment leave it, while it goes on."""
    run = RlRun(home, "0123abcd")
    facts = {"environment": "letters", "service": None, "ports": {"api": 1, "engine": 2}}
    RunConfig.parse({"env": {"wandb_name": "letters-1", "total_steps": 8}, "run": facts}, "test").write(
        run.folder
    )
    run.metrics_path.write_text(
        "".join(
            json.dumps(
                {
                    "step": step,
                    "time_s": time.time(),
                    "reward/mean": 0.07,
                    "reward/positive": 1.0,
                    "success/mean": 0.125,
                }
            )
            + "\n"
            for step in range(1, 21)
        )
    )
    (run.folder / "evals").mkdir()
    held_out = {"results": {"all": {"eval/success_rate": 0.625}}}
    (run.folder / "evals" / "metrics.json").write_text(json.dumps(held_out))
    (run.folder / "wandb.json").write_text(json.dumps(about))
    run.write_status(
        RunStatus(RunState.RUNNING, started_at_ms=now_ms(), supervisor=ProcessId.of(os.getpid()))
    )
    return load(environ={"HERMES_HOME": str(home)})


def test_what_is_told_of_a_run_has_the_fields_of_the_reference(tmp_path: Path) -> None:
    url = "https://wandb.example/letters-1"
    config, run_id = _record(tmp_path, url=url, error="it went away"), {"run_id": "0123abcd"}
    status = tool_handlers.check_status(config, run_id, "task")
    assert RETURNS["rl_check_status"] <= status.keys()
    assert (status["wandb_url"], status["wandb_error"]) == (url, "it went away")
    assert status["metrics"] == {
        "step": 20,
        "reward_mean": 0.07,
        "percent_correct": 12.5,
        "percent_positive_reward": 100.0,
        "eval_percent_correct": 62.5,
    }
    again = tool_handlers.check_status(config, run_id, "task")
    assert again["rate_limited"] and again["next_check_in_seconds"] > 0
    results = tool_handlers.get_results(config, run_id, "task")
    assert RETURNS["rl_get_results"] <= results.keys() and results["wandb_error"] == "it went away"
    assert [row["step"] for row in results["history"]] == [1, 3, 5, 7, 9, 12, 14, 16, 18, 20]
    listed = tool_handlers.list_runs(config, {}, "task")
    assert listed["count"] == 1 and {*listed["runs"][0]} == {
        *("run_id", "environment", "status", "wandb_run_name")
    }


def test_the_toolset_is_there_whenever_training_is_possible(home_with: MakeHome) -> None:
    home = home_with()

    def tools(**environ: str) -> dict[str, str | None]:
        rows = answer(home, "tools", env=environ)
        return {row["tool"]: row["why"] for row in rows if row["toolset"] == "rl"}

    assert tools() == dict.fromkeys(ARGUMENTS), "an engine of this machine's own needs no key"
    change_settings(home, service="managed")
    assert all("TINKER_API_KEY is not set" in str(why) for why in tools().values())
    assert tools(TINKER_API_KEY="tml-not-a-real-key") == dict.fromkeys(ARGUMENTS)


@pytest.mark.parametrize("flag", ["--list_environments", "--list-environments"])
def test_rl_cli_is_hermes_rl_under_its_older_name_and_spelling(home_with: MakeHome, flag: str) -> None:
    environ = {"PATH": os.environ["PATH"], "HERMES_HOME": str(home_with())}
    done = subprocess.run(
        [sys.executable, str(RECIPES / "rl_cli.py"), flag], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0 and "letters" in done.stdout


def test_the_older_flags_are_taken_and_a_key_on_the_command_line_is_refused(home_with: MakeHome) -> None:
    home = home_with()
    what, how = failure(hermes(home, "rl", "Train it", "--api_key", "sk-1"), 2)
    assert "can be read by every user" in what and "config set" in how
    what, _ = failure(hermes(home, "rl", "--verbose"), 2)
    assert what == "no task"
    with FakeProvider(lambda request: text("Done.")) as provider:
        flags = ("--model", "pilot", "--base_url", provider.base_url, "--toolsets", "file", "--json")
        old = ("--max_iterations", "3", "--save_trajectories")
        said = hermes(home, "rl", "Train it", *flags, *old, env={"OPENAI_API_KEY": "k"})
        serve_proxy = {tool["function"]["name"] for tool in provider.requests[0].json["tools"]}
    assert json.loads(said.stdout)["answer"] == "Done."
    assert serve_proxy > ARGUMENTS.keys() and "read_file" in serve_proxy


def test_one_can_talk_to_the_agent_that_trains(home_with: MakeHome) -> None:
    home = home_with()
    with FakeProvider(lambda request: text("Which environment?")) as provider:
        flags = ("--model", "pilot", "--base-url", provider.base_url)
        with hermes_terminal(home, "rl", "--interactive", *flags) as terminal:
            terminal.expect("tools: rl")
            terminal.line("Train something")
            terminal.expect(r"Which environment\?")
