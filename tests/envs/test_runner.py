"""The runner: groups of concurrent items, limits on failures in a row, and attributes for authors."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hermes.envs.base import BaseEnv
from hermes.envs.config import BaseEnvConfig
from hermes.envs.failures import FAILED, EnvironmentRunError, GroupFailure, GroupTally
from hermes.envs.modes.process import ItemDelivery
from hermes.envs.modes.runner import EnvRunner


class Numbers(BaseEnv):
    """One group for each number; delivery is slow, and goes through tasks of the author's."""

    async def get_next_item(self) -> int | None:
        return None

    async def collect_trajectories(self, item: int) -> tuple[list[dict[str, Any]], list[Any]]:
        group = {"tokens": [[item], [item]], "masks": [[item], [item]], "scores": [0.0, 1.0]}
        return [dict(group), dict(group)], [item + 100]

    async def handle_send_to_api(self, scored_data: Any, *args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(0.01)
        deliver = super().handle_send_to_api
        await asyncio.gather(*(deliver(group, *args, **kwargs) for group in scored_data))


def make(**settings: Any) -> Numbers:
    return Numbers(BaseEnvConfig(group_size=2, use_wandb=False, **settings), [], testing=True)


def items_of(lines: list[bytes]) -> list[int]:
    return [json.loads(line)["tokens"][0][0] for line in lines]


async def test_groups_of_items_that_are_delivered_at_the_same_time_are_kept_apart(tmp_path: Path) -> None:
    runner = make(data_path_to_save_groups=str(tmp_path / "groups.jsonl"))._env_runner
    delivery = ItemDelivery(runner)

    async def run(item: int) -> list[int]:
        lines, failure = await delivery.deliver(await runner.collect_group(item), item)
        assert failure is None
        return items_of(lines)

    assert await asyncio.gather(*map(run, range(1, 5))) == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert not list(tmp_path.iterdir()), "the caller writes the lines"
    assert sorted(runner.backlog) == [101, 102, 103, 104] and runner.tally.completed == 8


async def test_outside_of_the_process_mode_groups_are_written_when_they_are_kept(tmp_path: Path) -> None:
    env = make(data_path_to_save_groups=str(tmp_path / "groups.jsonl"))
    group, _ = await env.collect_trajectories(7)
    await env.handle_send_to_api(group)
    assert items_of((tmp_path / "groups.jsonl").read_bytes().splitlines()) == [7, 7]


async def test_attributes_of_the_run_are_the_runners_and_authors_may_set_some() -> None:
    env = make()
    runner: EnvRunner = env._env_runner
    env.max_token_len, env.process_mode, env.items_sent_this_step = 4096, True, 3
    assert (runner.max_token_len, runner.process_mode, runner.items_sent_this_step) == (4096, True, 3)
    runner.curr_step = 9
    assert (env.curr_step, env.status_dict, env.wandb_prepend, env.checkpoint_dir) == (9, {}, None, "")
    with pytest.raises(AttributeError):
        env.curr_step = 10  # type: ignore[misc]


def test_groups_in_a_row_that_fail_or_that_the_policy_spoils_end_a_run_by_separate_limits() -> None:
    tally, limits = GroupTally(), {FAILED: 2, "too long": 3}
    broken = GroupFailure("environment", "KeyError: 'x'", infrastructure=False)
    for reject in (lambda: tally.reject("too long"), lambda: tally.drop(broken), tally.complete):
        reject()
        tally.check_stall(limits, "hint")
    for _ in range(2):
        tally.reject("too long")
        tally.check_stall(limits, "hint")
    tally.reject("too long")
    with pytest.raises(EnvironmentRunError, match=r"3 groups in a row .*too long") as caught:
        tally.check_stall(limits, "hint")
    assert "max_token_length" in caught.value.hint
    tally.drop(broken)
    tally.reject("bad score")
    with pytest.raises(EnvironmentRunError, match=r"2 groups in a row .*bad score") as caught:
        tally.check_stall(limits, "hint")
    assert caught.value.hint == "hint"
    assert (
        tally.describe()
        == "1 groups completed, 1 dropped (bad score), 2 dropped (environment), 4 dropped (too long)"
    )
