"""The resolved configuration of a run: the reference's values, bounds, and what nobody can change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes.config.load import load
from hermes.core.processors import usable_processors
from hermes.errors import UsageError
from hermes.rl.config.resolve import LockedFieldError, Resolved, edit, env_processes, resolve, select
from hermes.rl.run import RlRun, last_step
from tests.rl.conftest import MakeHome
from tests.rl.world import ENVIRONMENTS, change_settings

LETTERS = str(ENVIRONMENTS / "letters.py")


def _resolved(home: Path, **flags: Any) -> Resolved:
    config = load({f"rl.{name}": value for name, value in flags.items()}, {"HERMES_HOME": str(home)})
    return resolve(config, select(config, LETTERS))


def test_eight_billion_parameters_are_trained_by_the_values_of_the_reference(tmp_path: Path) -> None:
    values = _resolved(tmp_path, model="Qwen/Qwen3-8B").values
    expected = {
        "env.tokenizer_name": "Qwen/Qwen3-8B",
        "env.max_token_length": 8192,
        "env.max_num_workers": 2048,
        "env.worker_timeout": 3600,
        "env.total_steps": 2500,
        "env.steps_per_eval": 25,
        "env.max_batches_offpolicy": 3,
        "env.inference_weight": 1.0,
        "env.eval_limit_ratio": 0.1,
        "env.group_size": 16,
        "env.batch_size": 128,
        "openai.api_key": "x",
        "openai.num_requests_for_eval": 256,
        "openai.timeout": 3600,
        "openai.server_type": "sglang",
        "tinker.lora_rank": 32,
        "tinker.learning_rate": 4e-5,
        "tinker.max_token_trainer_length": 9000,
        "tinker.save_checkpoint_interval": 25,
    }
    assert {name: values[name] for name in expected} == expected


def test_a_run_chooses_its_environment_processes_and_groups_in_progress(tmp_path: Path) -> None:
    assert [env_processes(512, cores, synchronous=False) for cores in (1, 2, 6, 16, 64)] == [1, 1, 3, 8, 8]
    assert [env_processes(size, 16, synchronous=False) for size in (32, 127, 128, 4096)] == [1, 1, 2, 8]
    assert env_processes(512, 16, synchronous=True) == 1
    run = {"model": "m", "device": "cuda"}

    def started(**values: Any) -> tuple[int, int]:
        resolved = _resolved(tmp_path, values={"synchronous": False, "group_size": 16, **values})
        config = resolved.run_config(run)
        return config.env_replicas, config.env.max_num_workers

    assert _resolved(tmp_path, device="cpu").values["env.max_eval_workers"] == 16
    assert _resolved(tmp_path, device="cuda").values["env.max_eval_workers"] == 128
    processes = env_processes(512, usable_processors(), synchronous=False)
    assert started(batch_size=512) == (processes, 32), "a whole batch is in progress"
    assert started(batch_size=16) == (1, 8)
    assert started(batch_size=512, env_replicas=3, max_num_workers=5) == (3, 5)
    assert started(batch_size=512, synchronous=True) == (1, -1)


def test_groups_of_equal_scores_reach_the_trainer_which_counts_them(tmp_path: Path) -> None:
    resolved = _resolved(tmp_path)
    assert resolved.values["env.ensure_scores_are_not_same"] is False
    assert resolved.fields["env.ensure_scores_are_not_same"].lock is None, "as the reference has it"


def test_a_bound_of_zero_is_shown(tmp_path: Path) -> None:
    fields = _resolved(tmp_path).fields
    assert (fields["tinker.kl_coefficient"].minimum, fields["tinker.kl_coefficient"].maximum) == (0, 10)
    assert fields["tinker.seed"].minimum == 0


@pytest.mark.parametrize("name", ["rollout_server_url", "openai.base_url", "checkpoint_dir", "slurm"])
def test_what_the_run_decides_itself_is_refused_even_to_a_person(home_with: MakeHome, name: str) -> None:
    home = home_with()
    change_settings(home, unlock=["rollout_server_url", "openai.base_url", "checkpoint_dir"])
    config = load(environ={"HERMES_HOME": str(home)})
    select(config, LETTERS)
    with pytest.raises(LockedFieldError) as caught:
        edit(config, name, "http://127.0.0.1:9", unlock=True)
    assert caught.value.hint == "it has no other value"
    change_settings(home, unlock=[], values={name: "x"})
    with pytest.raises(UsageError, match="is locked at"):
        select(load(environ={"HERMES_HOME": str(home)}), LETTERS)


def test_the_last_step_is_read_from_the_end_of_the_metrics(tmp_path: Path) -> None:
    run = RlRun(tmp_path, "0123abcd")
    assert last_step(run) == 0
    run.folder.mkdir(parents=True)
    rows = [json.dumps({"step": step, "more": "x" * 200}) for step in (5000, *range(2, 1001))]
    run.metrics_path.write_text("\n".join(rows) + "\n" + rows[0][:-20])
    assert last_step(run) == 1000, "neither the torn last line counts, nor what was long before"
    run.metrics_path.write_text(json.dumps({"step": 7, "more": "x" * 40_000}) + "\n")
    assert last_step(run) == 7, "a row longer than the end that is read"


OWN_SIZE = """
from hermes.envs.builtin.format import *
from hermes.envs.builtin import format as original

class SizedEnv(original.{name}):
    name = "sized"

    @classmethod
    def config_init(cls):
        config, servers = super().config_init()
        return type(config)(**{{**config.model_dump(exclude_unset=True), "group_size": {size}}}), servers
"""


@pytest.mark.parametrize("size", [4, 5])
def test_a_group_size_that_the_environment_sets_is_kept_even_if_it_is_the_common_default(
    tmp_path: Path, size: int
) -> None:
    from hermes.envs.builtin import format as original

    (name,) = [
        key
        for key, value in vars(original).items()
        if key.endswith("Env") and value.__module__ == original.__name__
    ]
    path = tmp_path / "sized.py"
    path.write_text(OWN_SIZE.format(name=name, size=size))
    config = load({}, {"HERMES_HOME": str(tmp_path / "home")})
    assert resolve(config, select(config, str(path))).values["env.group_size"] == size
