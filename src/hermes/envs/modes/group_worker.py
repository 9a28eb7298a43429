"""From one item to a group that is kept and sent, or to a failure with a name.

An exception out of the environment's code ends here: it is classified, logged with its traceback and
counted. An infrastructure failure puts the item back, a bounded number of times; a setting that cannot work
goes on to end the run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hermes.core.sequence import MASKED
from hermes.envs.failures import MAX_TRIES, NO_GROUP, TIMED_OUT, EnvironmentRunError, GroupFailure, classify
from hermes.envs.groups import refusal
from hermes.envs.types import Item
from hermes.errors import HermesError

if TYPE_CHECKING:
    from hermes.envs.base import BaseEnv

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def prepare(env: BaseEnv) -> None:
    """Sets the environment up, and waits for its model."""
    try:
        await env.setup()
    except HermesError:
        raise
    except Exception as error:  # a stranger's code: what it raised is the message
        logger.exception("setup failed")
        raise EnvironmentRunError(f"setup failed: {type(error).__name__}: {error}") from error
    await env.server.wait_until_ready(env.config.start_patience_s)


async def next_item(env: BaseEnv) -> Item:
    """The environment's next item; None if it has no more."""
    try:
        return await env.get_next_item()
    except HermesError:
        raise
    except Exception as error:  # there is nothing to go on with
        logger.exception("get_next_item failed")
        raise EnvironmentRunError(f"get_next_item failed: {type(error).__name__}: {error}") from error


async def finish(env: BaseEnv) -> None:
    """Closes the environment and lets go of its model. In some environments `close` is not async."""
    closing = cast(Any, env).close()
    if inspect.isawaitable(closing):
        await closing
    await env.server.close()


async def all_or_error(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, or the first error; what is still running then is stopped."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def handle(env: BaseEnv, item_uuid: str) -> Any:
    """Makes and sends the group of a running item; returns it, or None if there is none."""
    running = env.running_items.get(item_uuid)
    if running is None:
        return None
    item, started_s = running["item"], time.monotonic()
    try:
        made = await make_group(env, item)
    finally:
        env.running_items.pop(item_uuid, None)
    duration_s = time.monotonic() - started_s
    env.task_duration.append(duration_s)
    succeeded = not isinstance(made, GroupFailure)
    env.task_successful.append(int(succeeded))
    (env.succeeded_task_duration if succeeded else env.failed_task_duration).append(duration_s)
    if isinstance(made, GroupFailure):
        after_failure(env, made, item, running.get("tries", 0))
        return None
    if (failure := await hand_over(env, made, item)) is not None:
        env.tally.drop(failure)
        return None
    env.last_completed_item = item
    return made


async def hand_over(env: BaseEnv, made: Any, item: Item, **flags: bool) -> GroupFailure | None:
    """Has the environment keep and send what it made; the Failure if its own code fails at that."""
    try:
        await env.handle_send_to_api(made, item, **flags)
        cleaning = cast(Any, env).cleanup()
        if inspect.isawaitable(cleaning):
            await cleaning
    except HermesError:
        raise
    except Exception as error:  # an override of a stranger's
        logger.exception("a group was made, but could not be kept")
        return classify(error)
    return None


async def make_group(env: BaseEnv, item: Item) -> Any:
    """What the environment makes of an item, or the Failure that prevented it."""
    allowed_s = env.config.worker_timeout if env.config.worker_timeout > 0 else None
    try:
        async with asyncio.timeout(allowed_s) as limit:
            group, later = await env.collect_trajectories(item)
            env.backlog.extend(later or ())
            if group:
                group = await env.postprocess_histories(group)
    except Exception as error:  # every failure of a stranger's code is a Failure from here on
        if limit.expired():
            logger.warning("gave up a group: %s", TIMED_OUT.text)
            return TIMED_OUT
        failure = classify(error)
        logger.warning(
            "a group failed (%s): %s", failure.reason, failure.text, exc_info=not failure.infrastructure
        )
        if failure.fatal:
            raise error if isinstance(error, HermesError) else EnvironmentRunError(failure.text) from error
        return failure
    return group or NO_GROUP


def after_failure(env: BaseEnv, failure: GroupFailure, item: Item, tries: int) -> None:
    """Puts the item back or gives it up."""
    if failure.infrastructure and tries + 1 < MAX_TRIES:
        env.tally.retry(failure)
        env.retries.append((item, tries + 1))
    else:
        env.tally.drop(failure)


async def keep_and_send(env: BaseEnv, scored_data: Any, item: Item, send: bool, check_length: bool) -> None:
    """Checks each group, writes and remembers the good ones, and sends them as they came: one, or a list."""
    groups = scored_data if isinstance(scored_data, list) else [scored_data]
    longest = env.max_token_len if check_length and env.max_token_len > 0 else None
    good = []
    for group in groups:
        if group is None:
            continue
        for mask in group.get("masks") or ():
            env.completion_lengths.append(sum(token != MASKED for token in mask))
        if (reason := refusal(group, env.config, longest)) is not None:
            logger.warning("left out a group: %s", reason)
            env.tally.leave_out(reason)
            continue
        await _keep(env, group, item)
        env.tally.success()
        good.append(group)
    if good and send:
        env.items_sent_this_step += len(good)
        await env._send_scored_data_to_api(good if isinstance(scored_data, list) else good[0])


async def _keep(env: BaseEnv, group: dict[str, Any], item: Item) -> None:
    for key in ("ref_logprobs", "overrides", "group_overrides", "distill_token_ids", "distill_logprobs"):
        group.setdefault(key, None)
    if env.config.include_messages and group.get("messages") is None:
        group["messages"] = [
            [{"role": "user", "content": env.tokenizer.decode(ids)}] for ids in group["tokens"]
        ]
    await env.add_rollouts_for_wandb(group, item)
    if env.jsonl_writer is not None:
        env.jsonl_writer.write(group)
