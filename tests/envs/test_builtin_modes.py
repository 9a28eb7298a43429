"""The built-in environments run whole: processed and evaluated against a model behind a real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hermes.envs.builtin.calculator import CalculatorEnv
from hermes.envs.builtin.terminal_tasks import TerminalTasksEnv
from hermes.envs.builtin.tool_calling import ToolCallingEnv
from hermes.envs.modes import commandline
from tests.cli.process import hermes
from tests.envs.gold import SOLVABLE, PerfectModel, settings
from tests.fakes.provider import FakeProvider, text

QUICK = (CalculatorEnv, TerminalTasksEnv)


@pytest.fixture
def home_with_model(home: Path, bundled_home: Path) -> Path:
    """Groups are shown as text, which takes the policy's tokenizer."""
    home.mkdir()
    (home / "models").symlink_to(bundled_home / "models")
    return home


def perfect(cls: type[Any]) -> PerfectModel:
    """What answers every item of a small environment rightly."""
    env = cls(cls.env_config_cls(**settings(cls, train_size=4, eval_size=4)), cls.config_init()[1])

    async def model() -> PerfectModel:
        await env.setup()
        made = PerfectModel(env, [*env._train, *env._eval])
        await env.close()
        return made

    return asyncio.run(model())


def flags(cls: type[Any], base_url: str, **more: object) -> list[str]:
    given = {"train_size": 4, "eval_size": 4, "use_wandb": False, **more}
    env = [part for key, value in given.items() for part in (f"--env.{key}", str(value))]
    server = [
        "--openai.base_url",
        base_url,
        "--openai.server_type",
        "openai",
        "--openai.model_name",
        "perfect",
    ]
    return [*env, *server, "--openai.health_check", "false"]


@pytest.mark.parametrize("cls", SOLVABLE)
def test_a_perfect_model_behind_a_server_is_measured_as_perfect(
    cls: type[Any], home: Path, tmp_path: Path
) -> None:
    with FakeProvider(perfect(cls)) as provider:
        argv = flags(cls, provider.base_url, data_dir_to_save_evals=tmp_path / "evals")
        commandline.run(cls, ["evaluate", *argv])
    metrics = json.loads((tmp_path / "evals" / "metrics.json").read_text())["results"]["all"]
    assert metrics["eval/success_rate"] == metrics["eval/mean_reward"] == 1.0
    assert 0.3 < metrics["eval/success_rate_low"] < 1.0
    assert metrics["eval/success_rate_high"] == 1.0
    assert metrics["eval/samples"] == 4
    samples = [json.loads(line) for line in (tmp_path / "evals" / "samples.jsonl").read_text().splitlines()]
    assert [sample["score"] for sample in samples] == [1.0] * 4


@pytest.mark.parametrize(
    "cls", [cls if cls in QUICK else pytest.param(cls, marks=pytest.mark.slow) for cls in SOLVABLE]
)
def test_groups_are_written_with_their_scores_and_without_tokens_they_do_not_have(
    cls: type[Any], home_with_model: Path, tmp_path: Path
) -> None:
    with FakeProvider(perfect(cls)) as provider:
        output = tmp_path / "groups.jsonl"
        more = {"total_steps": 2, "group_size": 2, "data_path_to_save_groups": output}
        commandline.run(cls, ["process", *flags(cls, provider.base_url, **more)])
    groups = [json.loads(line) for line in output.read_text().splitlines()]
    assert [group["scores"] for group in groups] == [[1.0, 1.0]] * 2
    assert all(group["messages"] and group["tokens"] == [[], []] for group in groups)
    assert output.with_suffix(".html").exists()


def test_a_poor_model_is_measured_as_poor(home: Path, tmp_path: Path) -> None:
    with FakeProvider(lambda request: text("42")) as provider:
        argv = flags(CalculatorEnv, provider.base_url, data_dir_to_save_evals=tmp_path)
        commandline.run(CalculatorEnv, ["evaluate", *argv])
    metrics = json.loads((tmp_path / "metrics.json").read_text())["results"]["all"]
    assert metrics["eval/success_rate"] == 0.0
    assert 0.0 < metrics["eval/success_rate_high"] < 0.7


@pytest.mark.parametrize("name", ["calculator", "preference"])
def test_hermes_env_check_finds_nothing_wrong(name: str, home: Path) -> None:
    done = hermes(home, "env", "check", name, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    states = {finding["state"] for finding in json.loads(done.stdout)["findings"]}
    assert "failed" not in states


@pytest.mark.slow
def test_hermes_env_process_runs_an_environment_by_its_name(home_with_model: Path, tmp_path: Path) -> None:
    with FakeProvider(perfect(ToolCallingEnv)) as provider:
        more = {"total_steps": 1, "group_size": 2, "data_path_to_save_groups": tmp_path / "g.jsonl"}
        done = hermes(
            home_with_model,
            "env",
            "process",
            "tool_calling",
            *flags(ToolCallingEnv, provider.base_url, **more),
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "g.jsonl").read_text())["scores"] == [1.0, 1.0]
