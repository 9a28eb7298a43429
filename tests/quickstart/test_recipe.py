"""What a quickstart does how much of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hermes.config.load import load
from hermes.core import Role
from hermes.quickstart import recipe
from hermes.quickstart.evaluate import open_env
from hermes.rl.config.resolve import check_together, find_selection, resolve


def test_the_examples_answer_with_the_number_alone_as_the_environment_asks() -> None:
    shown = recipe.examples()
    answers = [message.content for message in shown if message.role is Role.ASSISTANT and message.content]
    assert answers == ["84", "1128"]
    assert sum(len(message.tool_calls) for message in shown) == 2


def test_held_out_tasks_are_never_trained_on_nor_shown_as_examples() -> None:
    env = open_env(recipe.CPU, "http://127.0.0.1:1")
    train, held_out = env._load()
    assert len(train) == recipe.CPU.tasks and len(held_out) == recipe.CPU.eval_tasks
    assert not {item.key for item in train} & {item.key for item in held_out}
    shown = {message.content for message in recipe.examples()}
    assert not shown & {item.question for item in held_out}


def test_a_gpu_gets_more_work_and_a_test_less() -> None:
    fast, cpu, cuda = recipe.choose(fast=True, cuda=True), recipe.CPU, recipe.choose(fast=False, cuda=True)
    assert fast.batch_size < cpu.batch_size < cuda.batch_size
    assert recipe.choose(fast=False, cuda=False) is cpu


def test_the_curve_has_at_least_fifteen_steps() -> None:
    assert min(recipe.CPU.rl_steps, recipe.CUDA.rl_steps) >= 15


@pytest.mark.parametrize("chosen", [recipe.FAST, recipe.CPU, recipe.CUDA])
def test_a_run_takes_every_field_of_a_recipe(chosen: recipe.QuickstartRecipe, tmp_path: Path) -> None:
    config = load(environ={"HERMES_HOME": str(tmp_path)})
    resolved = resolve(config, find_selection(config, recipe.ENVIRONMENT))
    values = chosen.run_values(seed=1)
    assert set(values) <= set(resolved.fields)
    changed = resolve(config, replace(resolved.selection, edits=values))
    check_together(changed)
    assert {name: changed.values[name] for name in values} == values
