"""The serve mode: groups made by workers, sent to the trajectory API, as many as the trainer can use.

Each turn of the loop asks the API how much waits there. Below the bound (`max_batches_offpolicy` batches) it
starts workers, above it starts none. A worker that runs is never cancelled for that: what it makes is sent.
SIGTERM and Ctrl-C end the loop in order (`stopping`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from hermes.envs.failures import EnvironmentRunError, classify
from hermes.envs.modes import metrics, pacing
from hermes.envs.modes.api_session import ApiSession
from hermes.envs.modes.group_worker import finish, next_item, prepare
from hermes.envs.modes.shutdown import Stop, listening, wind_down
from hermes.envs.modes.watchdog import Watchdog
from hermes.envs.phase import eval_face
from hermes.errors import ConfigError

if TYPE_CHECKING:
    from hermes.envs.base import BaseEnv

logger = logging.getLogger(__name__)

_TURN_S = 0.1
_HOPELESS_IN_A_ROW = 16
"""Groups given up one after another, with none made in between, after which the run ends."""
_FRUITLESS: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "too long": (256, "Raise the trainer's longest sequence, or lower max_token_length."),
        "equal scores": (1024, "Use easier or harder tasks, or larger groups."),
    }
)
"""The same for groups that were made, and left out for what the policy did; and what to do about it."""


async def run(env: BaseEnv) -> None:
    """Serves until the trainer has all its steps, a signal comes, or it cannot go on."""
    stop = Stop()
    with listening(env, stop):
        main = asyncio.create_task(_serve(env, stop))
        asked = asyncio.create_task(stop.asked.wait())
        await asyncio.wait({main, asked}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done() and env.link is None:
            main.cancel()  # still in setup or waiting for a server: nothing is lost
        asked.cancel()
        try:
            await main
        except asyncio.CancelledError:
            if not main.cancelled() or not stop.asked.is_set():
                raise
        finally:
            await finish(env)


async def _serve(env: BaseEnv, stop: Stop) -> None:
    await prepare(env)
    env.link = ApiSession(env.config, env.config.wandb_name or env.display_name)
    finished = False
    try:
        await stop.unless_asked(_join_run(env))
        if not stop.asked.is_set():
            await _loop(env, stop)
        finished = True
    finally:
        await wind_down(env, stop, finished)


async def _join_run(env: BaseEnv) -> None:
    await env.setup_wandb()
    await env.register_env()
    await env.get_server_info()


async def _loop(env: BaseEnv, stop: Stop) -> None:
    watch = Watchdog(env)
    while not stop.asked.is_set():
        turn_s = time.monotonic()
        await stop.unless_asked(env.get_status())
        if stop.asked.is_set():
            return
        await stop.unless_asked(env.env_step_checks())
        if pacing.has_enough(env.config, env.status_dict):
            logger.info("the trainer has what it needs for its %d steps", env.config.total_steps)
            return
        if watch.out_of_items():
            logger.info("the environment has no more items")
            return
        if not pacing.must_pause(env.config, env.status_dict, env.derived_batch_size):
            await stop.unless_asked(env.add_train_workers())
        watch.look()
        _raise_fatal(env)
        await _next_turn(env, stop)
        env.mainloop_timings.append(time.monotonic() - turn_s)
        del env.mainloop_timings[:-1000]


async def _next_turn(env: BaseEnv, stop: Stop) -> None:
    """Until a worker is done, but not longer than a turn."""
    asked = asyncio.create_task(stop.asked.wait())
    await asyncio.wait({asked, *env.workers}, timeout=_TURN_S, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()


def _raise_fatal(env: BaseEnv) -> None:
    for worker in [worker for worker in env.workers if worker.done()]:
        env.workers.discard(worker)
        if not worker.cancelled() and (error := worker.exception()) is not None:
            raise error
    if env.tally.in_a_row >= max(_HOPELESS_IN_A_ROW, env.max_num_workers):
        assert env.tally.last is not None, "something was given up"
        raise EnvironmentRunError(
            f"{env.tally.in_a_row} groups in a row came to nothing ({env.tally.last.reason}): "
            f"{env.tally.last.text}",
            "The log has the details of each.",
        )
    for reason, (most, fix) in _FRUITLESS.items():
        if env.tally.fruitless[reason] >= most:
            raise EnvironmentRunError(f"{most} groups in a row were of no use: {reason}", fix)


async def setup_wandb(env: BaseEnv) -> None:
    """Joins the trainer's W&B project, once it has named one; nothing where W&B is not configured."""
    if env.link is None or not metrics.wandb_is_configured(env):
        return
    if metrics.wandb_if_configured(env) is None:
        logger.warning(
            "W&B is configured, but the package wandb is not installed: nothing is sent to it. "
            "Install it with: pip install 'hermes-research[wandb]'"
        )
        return
    while env.wandb_project is None:
        told = await env.link.wandb_info()
        env.wandb_group, env.wandb_project = told["group"], told["project"]
        if env.wandb_project is None:
            await asyncio.sleep(1)
    metrics.start_wandb(env)


async def register(env: BaseEnv) -> None:
    """Joins the run; where it is already under way, the environment's own checkpoint is loaded."""
    assert env.link is not None, "registering is a part of serving"
    answer = await env.link.register()
    env.wandb_prepend = answer["wandb_name"]
    env.curr_step = answer["starting_step"]
    env.checkpoint_dir = answer["checkpoint_dir"]
    env.checkpoint_interval = answer["checkpoint_interval"]
    if env.config.total_steps == -1:
        env.config.total_steps = answer["num_steps"]
    if env.config.total_steps == -1:
        raise ConfigError(
            "neither this environment nor the trainer says how many steps there are.",
            "Set --env.total_steps.",
        )
    logger.info("registered as %s (%s) at step %d", env.wandb_prepend, env.link.env_id, env.curr_step)
    if env.curr_step > 0:
        env.load_checkpoint()


async def read_info(env: BaseEnv) -> None:
    """The trainer's batch size and longest sequence."""
    assert env.link is not None, "asking for the run's settings is a part of serving"
    told = await env.link.info()
    if told["batch_size"] != -1:
        env.config.batch_size = told["batch_size"]
    if told["max_token_len"] != -1:
        env.max_token_len = told["max_token_len"]
    if env.config.group_size > env.config.batch_size:
        raise ConfigError(
            f"group_size is {env.config.group_size}, but the trainer's batches have only "
            f"{env.config.batch_size} sequences.",
            "Set a smaller --env.group_size, or a larger batch in the trainer.",
        )


async def read_status(env: BaseEnv) -> None:
    assert env.link is not None, "asking for the status is a part of serving"
    env.status_dict = await env.link.status()
    env.max_num_workers = env._most_workers()
    await env.server.update_weight(env.status_dict["env_weight"])


async def step_checks(env: BaseEnv) -> None:
    """At a new step: evaluate, keep the environment's state, report; each when a multiple was crossed."""
    before, now = env.curr_step, env.status_dict["current_step"]
    if before == now:
        return
    if pacing.crossed(before, now, env.config.steps_per_eval):
        if env.eval_runner is None or env.eval_runner.done():
            env.eval_runner = asyncio.create_task(_evaluate(env))
        else:
            logger.warning("the last evaluation is still running; this one is skipped")
    if pacing.crossed(before, now, env.checkpoint_interval):
        env.save_checkpoint(now // env.checkpoint_interval * env.checkpoint_interval)
    env.curr_step = now
    if env.items_sent_this_step >= env.config.min_items_sent_before_logging:
        env.items_sent_this_step = 0
        await env.wandb_log({})


async def _evaluate(env: BaseEnv) -> None:
    with eval_face(env) as face:
        try:
            await face.evaluate()
        except Exception as error:  # an evaluation that fails is reported; the training goes on
            logger.exception("the evaluation failed (%s)", classify(error).reason)


async def top_up(env: BaseEnv) -> None:
    """Starts workers until there are as many as wanted, or no items."""
    evaluating = env.eval_runner is not None and not env.eval_runner.done()
    wanted = pacing.wanted_workers(
        env.config, env.status_dict, env.derived_batch_size, env.max_num_workers, evaluating
    )
    env.workers_added_list.append(max(0, wanted - len(env.workers)))
    del env.workers_added_list[:-1000]
    while len(env.workers) < wanted and await env.server.is_ready():
        item, tries = await _next(env)
        if item is None:
            return
        uuid = str(uuid4())
        env.running_items[uuid] = {"item": item, "tries": tries, "start_time": time.time()}
        worker = asyncio.create_task(env.handle_env(uuid))
        env.running_items[uuid]["worker"] = worker
        env.workers.add(worker)


async def _next(env: BaseEnv) -> tuple[Any, int]:
    if env.retries:
        return env.retries.pop(0)
    item = env.backlog.pop() if env.backlog else await next_item(env)
    if item is not None:
        env.dry_since_s = None
    elif env.dry_since_s is None:
        env.dry_since_s = time.monotonic()
    return item, 0
