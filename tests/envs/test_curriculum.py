"""A curriculum opens harder levels when the easier ones succeed, and only between steps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hermes.envs.builtin.calculator import CalculatorConfig, CalculatorEnv
from hermes.envs.builtin.generated import Curriculum
from hermes.envs.servers.config import APIServerConfig


def test_a_level_opens_when_enough_groups_of_the_present_one_succeed() -> None:
    curriculum = Curriculum(3)
    for _ in range(3):
        curriculum.record(0, [1.0, 1.0])
    assert not curriculum.advance(), "three groups are too few"
    curriculum.record(0, [1.0, 0.0])
    assert curriculum.level == 0 and curriculum.advance() and curriculum.level == 1
    for _ in range(8):
        curriculum.record(0, [1.0, 1.0])
    assert not curriculum.advance(), "easier groups do not count"
    for _ in range(4):
        curriculum.record(1, [0.5, 0.5])
    assert not curriculum.advance() and curriculum.level == 1
    for level in (1, 1, 2, 2):
        for _ in range(16):
            curriculum.record(level, [1.0])
        curriculum.advance()
    assert curriculum.level == 2, "there is no higher one"


def test_the_order_of_arrival_does_not_matter() -> None:
    scores = [[1.0], [0.0], [1.0], [0.9], [0.2], [1.0]]
    levels = []
    for ordered in (scores, scores[::-1]):
        curriculum = Curriculum(2)
        for group in ordered:
            curriculum.record(0, group)
        curriculum.advance()
        levels.append(curriculum.level)
    assert levels == [1, 1]


def environment(**settings: object) -> CalculatorEnv:
    config = CalculatorConfig(train_size=40, eval_size=4, seed=1, two_step_share=0.5, **settings)
    return CalculatorEnv(config, [APIServerConfig(base_url="http://127.0.0.1:9/v1", health_check=False)])


async def levels_of(env: CalculatorEnv, count: int) -> list[int]:
    return [env.level(await env.get_next_item()) for _ in range(count)]


def test_the_calculator_begins_with_sums_of_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))

    async def serve() -> None:
        plain, env = environment(), environment(curriculum=True)
        await plain.setup()
        await env.setup()
        assert set(await levels_of(plain, 40)) == {0, 1}
        assert set(await levels_of(env, 60)) == {0}
        item = await env.get_next_item()
        for _ in range(4):
            env.on_group(item, [1.0, 1.0])
        assert set(await levels_of(env, 5)) == {0}, "not before the step ends"
        env.on_step(3)
        assert set(await levels_of(env, 40)) == {0, 1}

    asyncio.run(serve())
