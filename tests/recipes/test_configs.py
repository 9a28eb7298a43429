"""The reference's YAML files: environment, trainer and `hermes rl start` read the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes.config.load import load
from hermes.envs.builtin.gsm8k import Gsm8kEnv
from hermes.envs.modes.commandline import build, parse
from hermes.errors import ConfigError
from hermes.rl.config.resolve import current_selection, select, with_run_file
from hermes.rl.config.run_file import read_run_file
from tests.cli.process import failure
from tests.rl.world import answer, hermes

CONFIGS = Path(__file__).parents[2] / "recipes" / "configs"
EVERY = sorted(CONFIGS.glob("*.yaml"))


def test_the_files_that_the_text_names_are_there() -> None:
    names = {path.name for path in EVERY}
    assert {"default.yaml", "qwen3_8b.yaml", "quick_test.yaml"} <= names
    quick = read_run_file(CONFIGS / "quick_test.yaml")
    assert (quick.values["env.total_steps"], quick.base_model) == (10, "meta-llama/Llama-3.2-1B")


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_every_file_is_good_for_an_rl_run_and_for_the_environment(path: Path, tmp_path: Path) -> None:
    config = load(environ={"HERMES_HOME": str(tmp_path)})
    select(config, "gsm8k_tinker")
    resolved = with_run_file(config, current_selection(config.home), path)
    written = read_run_file(path, resolved.classes["env"].model_fields)
    assert resolved.model == resolved.values["env.tokenizer_name"] == written.base_model
    for name in ("env.group_size", "env.total_steps", "tinker.lora_rank", "tinker.learning_rate"):
        assert resolved.values[name] == written.values[name]
    env, settings = build(Gsm8kEnv, parse(["serve", "--config", str(path)]))
    (server,) = settings["openai"]
    assert (server.model_name, server.server_type) == ("policy", "sglang"), "what is trained is sampled"
    assert (server.tokenizer_name, env.config.group_size) == (
        written.base_model,
        written.values["env.group_size"],
    )


def test_qwen3_8b_has_the_values_of_the_text() -> None:
    values = read_run_file(CONFIGS / "qwen3_8b.yaml").values
    expected: dict[str, Any] = {
        "tinker.base_model": "Qwen/Qwen3-8B",
        "tinker.lora_rank": 32,
        "tinker.learning_rate": 4e-5,
        "tinker.save_checkpoint_interval": 25,
        "env.max_token_length": 8192,
        "env.total_steps": 2500,
    }
    assert {name: values[name] for name in expected} == expected


def test_an_rl_run_takes_the_file_and_then_the_flags(tmp_path: Path) -> None:
    home = tmp_path / "home"
    words = ("rl", "start", "--env", "gsm8k", "--config", str(CONFIGS / "quick_test_cpu.yaml"))
    what, _ = failure(hermes(home, *words, "--set", "group_size=7"), 2)
    assert "batch_size 16 is not a multiple of group_size 7" in what
    config = answer(home, "rl", "config")
    fields = {
        field["name"]: field["current_value"]
        for field in (*config["locked_fields"], *config["configurable_fields"])
    }
    assert (fields["env.total_steps"], fields["tinker.lora_rank"]) == (10, 8)
    assert fields["env.group_size"] != 7, "--set holds for that start only"
    (tmp_path / "wrong.yaml").write_text("env:\n  datset_name: hub\n")
    wrong = hermes(home, "rl", "start", "--env", "gsm8k", "--config", str(tmp_path / "wrong.yaml"))
    what, fix = failure(wrong, 2)
    assert "unknown key 'env.datset_name'" in what and fix == "did you mean env.dataset_name?"


def test_a_section_that_is_no_mapping_and_an_interval_of_zero(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("env: 4\n")
    with pytest.raises(ConfigError, match="'env' is not a mapping"):
        read_run_file(file)
    file.write_text("env:\n  total_steps: 7\n  of_its_own: 1\ntinker:\n  save_checkpoint_interval: 0\n")
    assert read_run_file(file).values == {
        "env.total_steps": 7,
        "env.of_its_own": 1,
        "tinker.save_checkpoint_interval": 7,
    }
