"""What a quickstart does how much of."""

from __future__ import annotations

from hermes.core import Role
from hermes.quickstart import recipe
from hermes.quickstart.evaluate import open_env


def test_the_examples_answer_with_the_number_alone_as_the_environment_asks() -> None:
    shown = recipe.examples()
    answers = [message.content for message in shown if message.role is Role.ASSISTANT and message.content]
    assert answers == ["84", "1128", "4"]
    assert sum(len(message.tool_calls) for message in shown) == 3


def test_held_out_tasks_are_never_trained_on_nor_shown_as_examples() -> None:
    env = open_env(recipe.CPU, "http://127.0.0.1:1")
    train, held_out = env._load()
    assert len(train) == recipe.CPU.tasks and len(held_out) == recipe.CPU.eval_tasks
    assert not {item.key for item in train} & {item.key for item in held_out}
    shown = {message.content for message in recipe.examples()}
    assert not shown & {item.question for item in held_out}


def test_a_gpu_gets_more_work_and_a_test_less() -> None:
    (fast,) = recipe.choose(fast=True, cuda=True)
    (cuda,) = recipe.choose(fast=False, cuda=True)
    (cpu,) = recipe.choose(fast=False, cuda=False, full=True)
    assert fast.batch_size < cpu.batch_size < cuda.batch_size


def test_a_cpu_has_recipes_from_the_full_one_to_one_for_slow_machines() -> None:
    recipes = recipe.choose(fast=False, cuda=False)
    assert recipes[0] == recipe.CPU
    rollouts = [size.rl_steps * size.batch_size for size in recipes]
    assert rollouts == sorted(rollouts, reverse=True) and len(set(rollouts)) == len(rollouts) == 4
