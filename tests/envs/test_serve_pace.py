"""How fast a serving environment goes on: turns of its loop for each group, counted."""

from __future__ import annotations

import asyncio
from typing import Any

from hermes.envs import serve
from hermes.envs.base import BaseEnv
from hermes.envs.config import BaseEnvConfig
from hermes.envs.servers.config import APIServerConfig
from hermes.envs.stopping import Stop

GROUPS = 12


class Counting(BaseEnv):
    """Groups of nothing, each made in less than a turn; the trainer is a step further with each."""

    turns = made = 0

    async def get_status(self) -> None:
        self.turns += 1
        waiting = {"queue_size": 0, "self_queue_size": 0, "max_group_size": 1}
        self.status_dict = {"current_step": self.made, "env_weight": 1.0, **waiting}

    async def get_next_item(self) -> int:
        return self.made

    async def collect_trajectories(self, item: Any) -> tuple[Any, list[Any]]:
        await asyncio.sleep(0.01)
        self.made += 1
        return None, []


async def test_the_place_of_a_finished_group_is_taken_in_the_turn_that_finds_it_finished() -> None:
    config = BaseEnvConfig(
        group_size=1, batch_size=1, total_steps=GROUPS, max_num_workers=1, steps_per_eval=0, use_wandb=False
    )
    place = APIServerConfig(base_url="http://127.0.0.1:1/v1", model_name="none", health_check=False)
    env = Counting(config, [place])
    await serve._loop(env, Stop())
    await env.server.close()
    assert env.made == GROUPS + 1
    assert env.turns <= env.made + 3, "with a turn lost for each group it would be twice as many"
