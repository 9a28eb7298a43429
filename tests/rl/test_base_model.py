"""Which base model the agent may train: the configured one, and those that a person allows besides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes.config.load import load
from hermes.config.settings import RlSettings
from hermes.errors import HermesError, UsageError
from hermes.rl import tool_handlers
from hermes.rl.config.base_model import check_model, models_named_in
from hermes.rl.machine import has_gpu
from hermes.rl.run import all_runs, find_run
from tests.cli.process import failure
from tests.cli.terminal import hermes_terminal
from tests.fakes.hub import serve_hub
from tests.fakes.provider import FakeProvider
from tests.rl.conftest import MakeHome
from tests.rl.pilot import Pilot, Script
from tests.rl.world import answer, change_settings, hermes, tiny_model

QWEN = "Qwen/Qwen3-8B"


def tool(home: Path, tool_name: str, /, **arguments: Any) -> dict[str, Any]:
    """What an rl_* tool answers."""
    config = load(environ={"HERMES_HOME": str(home)})
    result: dict[str, Any] = getattr(tool_handlers, tool_name)(config, arguments, "task")
    return result


def fields(home: Path, kind: str) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in tool(home, "get_current_config")[kind]}


def test_train_qwen3_8b_on_gsm8k_with_lora_rank_32_is_configured_or_says_what_forbids_it(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    assert tool(home, "select_environment", name="gsm8k_tinker")["environment"] == "gsm8k"
    forbidden = tool(home, "edit_config", field="base_model", value=QWEN)
    assert forbidden["error"] == f"{QWEN} may not be trained: rl.model and rl.models allow hermes/smollm2"
    assert forbidden["allowed_models"] == ["hermes/smollm2"] and f"rl.models '[{QWEN}]'" in forbidden["fix"]
    assert "tinker.base_model" in fields(home, "locked_fields")
    assert hermes(home, "config", "set", "rl.models", f"[{QWEN}]").returncode == 0
    assert fields(home, "configurable_fields")["tinker.base_model"]["choices"] == ["hermes/smollm2", QWEN]
    assert tool(home, "edit_config", field="base_model", value="qwen3-8b")["value"] == QWEN
    assert tool(home, "edit_config", field="lora_rank", value=32)["value"] == 32, "it is locked at 32"
    assert "locked_value" in tool(home, "edit_config", field="lora_rank", value=64)
    locked = {name: field["current_value"] for name, field in fields(home, "locked_fields").items()}
    assert locked["env.tokenizer_name"] == QWEN and locked["tinker.learning_rate"] == pytest.approx(4e-5)
    assert (locked["env.total_steps"], locked["env.max_token_length"]) == (2500, 8192)
    if not has_gpu():
        with pytest.raises(HermesError, match="8 billion parameters and needs a GPU"):
            tool(home, "start_training")


def test_a_run_of_a_model_that_no_hub_has_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    home = tmp_path / "home"
    start = ("rl", "start", "--env", "calculator", "--no-preflight", "--model")
    with serve_hub("hf_token") as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
        what, fix = failure(hermes(home, *start, "gpt-9", env=env), 2)
        assert what == f"there is no model 'gpt-9', neither in a folder here nor at {hub.url}"
        assert "--model or rl.model (ORG/NAME as the hub writes it, a folder, or hermes/smollm2)" in fix
        _, fix = failure(hermes(home, *start, "smolm2", env=env), 2)
        assert fix.startswith("did you mean hermes/smollm2?")
        hermes(home, *start, "Qwen3-0.6B", env=env)
        assert "/models/Qwen/Qwen3-0.6B/" in hub.requests[-1]
    sweep = ("rl", "sweep", "--env", "calculator", "--set", "learning_rate=1e-4,3e-4", "--model")
    assert failure(hermes(home, *sweep, "gpt-9", env=env), 1) == failure(
        hermes(home, *start, "gpt-9", env=env), 1
    )
    what, fix = failure(hermes(home, *start, "gpt-9", env=env), 1)
    assert f"gpt-9 is not on this machine, and {hub.url} cannot be reached" in what
    assert "HF_ENDPOINT" in fix and all_runs(home) == []


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("run:sums", "sums"),
        ("run:sums@3", "sums"),
        ("sums@step-3", "sums"),
        ("policy", "policy"),
        ("policy:sums@step-3", "policy:sums@step-3"),
    ],
)
def test_trained_weights_are_no_base_model_and_the_fix_starts_from_them(name: str, start: str) -> None:
    with pytest.raises(UsageError, match="names trained weights") as error:
        check_model(RlSettings(), name, unlock=True)
    assert error.value.hint.startswith(f"--set start_from={start} ")


@pytest.mark.parametrize(
    ("task", "named"),
    [
        ("Train Qwen3-8B on GSM8K with LoRA rank 32", (QWEN,)),
        ("train qwen3-0.6b, then Qwen/Qwen3-0.6B.", ("Qwen/Qwen3-0.6B",)),
        ("SmolLM2 and acme/tiny-1B on ./envs/sums.py", ("hermes/smollm2", "acme/tiny-1B")),
        ("Train the model on calculator, 8B or so", ()),
    ],
)
def test_a_task_names_models(task: str, named: tuple[str, ...]) -> None:
    assert models_named_in(task) == named


def test_a_model_that_the_person_names_in_the_task_is_trained_after_one_yes(home_with: MakeHome) -> None:
    def pilot() -> Pilot:
        yield "rl_select_environment", {"name": "letters"}
        yield "rl_get_current_config", {}

    home, script = home_with(), Script(pilot())
    with FakeProvider(script.answer) as provider:
        flags = ("--model", "pilot", "--base-url", provider.base_url)
        with hermes_terminal(home, "rl", "Train Qwen3-0.6B on letters", *flags) as terminal:
            terminal.expect(r"May it train Qwen/Qwen3-0.6B, beside [^?]+\? \[y/N\]: ")
            terminal.line("y")
            terminal.expect("The model is trained")
    (configuration,) = script.results("rl_get_current_config")
    assert configuration["base_model"] == "Qwen/Qwen3-0.6B"


def test_the_agents_choice_is_what_the_run_trains(home_with: MakeHome, tmp_path: Path, model: Path) -> None:
    home, other = home_with(), tiny_model(tmp_path / "other")
    change_settings(home, models=[str(other)])
    tool(home, "select_environment", name="letters")
    tool(home, "edit_config", field="base_model", value=str(other))
    started = tool(home, "start_training")
    about = find_run(home, started["run_id"]).config()
    assert started["base_model"] == about.run.model == about.env.get("tokenizer_name") == str(other)


def test_a_person_may_name_any_model_and_the_agent_may_not(home_with: MakeHome, model: Path) -> None:
    home = home_with()
    answer(home, "rl", "select", "letters")
    what, how = failure(hermes(home, "rl", "config", "base_model", QWEN), 2)
    assert what.startswith(f"{QWEN} may not be trained") and "--unlock" in how
    assert tool(home, "edit_config", field="base_model", value=str(model))["value"] == str(model)
    shown = answer(home, "rl", "config", "base_model", QWEN, "--unlock")
    tokenizer = next(field for field in shown["locked_fields"] if field["name"] == "env.tokenizer_name")
    assert tokenizer["current_value"] == QWEN


@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")
def test_a_named_model_that_this_machine_cannot_train_is_said_before_a_call_is_paid(
    home_with: MakeHome,
) -> None:
    what, how = failure(hermes(home_with(), "rl", "Train Qwen3-8B on GSM8K with LoRA rank 32"), 1)
    assert "Qwen/Qwen3-8B has 8 billion parameters and needs a GPU" in what and "--service" in how
