"""`EnvRunner`: the state that every run of an environment has, and the way of an item to a group.

A group is kept and sent, or there is a failure with a name: an exception raised by the environment's code is
classified, logged with its traceback and counted. A setting that cannot work ends the run.

The modes are built on this class: `serve.ServeMode`, `process.ProcessMode`, and `EnvRunner.evaluate`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from pathlib import Path
from typing import Any, cast

from hermes.core.sequence import ENVIRONMENT, MASKED
from hermes.envs.config import BaseEnvConfig
from hermes.envs.failures import (
    NO_GROUP,
    TIMED_OUT,
    EnvironmentRunError,
    GroupFailure,
    GroupTally,
    classify,
)
from hermes.envs.groups import GroupSink, GroupWriter, rejection_reason
from hermes.envs.modes.api_session import ApiSession
from hermes.envs.modes.hooks import EnvHooks
from hermes.envs.modes.metrics import RunTimings, start_wandb
from hermes.envs.modes.pacing import EnvReplica
from hermes.envs.modes.redaction import clean_group
from hermes.envs.phase import phase
from hermes.envs.types import Item
from hermes.errors import HermesError

logger = logging.getLogger(__name__)

UNSENT_VARIABLE = "HERMES_UNSENT_DIR"
"""The folder for groups that were not sent; the supervisor of a run sets it."""


class EnvRunner:
    """Runs one environment, in one of the modes, once."""

    def __init__(self, env: EnvHooks) -> None:
        self.env = env
        self.process_mode = False
        self.curr_step = 0
        self.max_token_len = -1
        """The trainer's limit on a sequence; -1: unknown."""
        self.session: ApiSession | None = None
        """The session with the trajectory API; None except while serving."""
        self.tally = GroupTally()
        self.timings = RunTimings()
        self.items_sent_this_step = 0
        self.backlog: list[Item] = []
        """Items that collect_trajectories returned for later."""
        self.replica = EnvReplica.from_environ(os.environ)
        path = env.config.data_path_to_save_groups
        self.writer = None if path is None else GroupWriter(self._own_file(path))
        self.sink: GroupSink | None = self.writer
        """Takes every group that is kept; None: groups are only sent."""

    @property
    def config(self) -> BaseEnvConfig:
        return self.env.config

    @property
    def max_workers(self) -> int:
        """Most groups in progress at the same time."""
        if self.config.max_num_workers != -1:
            return self.config.max_num_workers
        return self.config.max_num_workers_per_node * max(1, len(self.env.server.servers))

    @property
    def spool_path(self) -> Path:
        """Where groups are written that the trajectory API did not accept before the run ended."""
        folder = os.environ.get(UNSENT_VARIABLE, "data")
        output = self.config.data_path_to_save_groups or f"{folder}/{self.env.display_name}.jsonl"
        return Path(self._own_file(output)).with_suffix(".unsent.jsonl")

    def _own_file(self, path: str) -> str:
        """The path, with the number of this replica if there are several."""
        file = Path(path)
        return str(file.with_name(f"{file.stem}{self.replica.suffix}{file.suffix}"))

    async def prepare(self) -> None:
        """Sets the environment up, and waits for its model server."""
        try:
            await self.env.setup()
        except HermesError:
            raise
        except Exception as error:  # an author's code may raise anything; its message is the message
            logger.exception("setup failed")
            raise EnvironmentRunError(f"setup failed: {type(error).__name__}: {error}") from error
        await self.env.server.wait_until_ready(self.config.start_patience_s)

    def start_wandb(self, project: str | None = None, group: str | None = None) -> None:
        start_wandb(self.config, self.config.wandb_name or self.env.display_name, project, group)

    async def finish(self) -> None:
        """Closes the environment and its model servers. In some environments `close` is not async."""
        closing = cast(Any, self.env).close()
        if inspect.isawaitable(closing):
            await closing
        await self.env.server.close()

    async def evaluate(self) -> None:
        """The evaluate mode: sets up, waits for the model server, evaluates."""
        try:
            await self.prepare()
            with phase("eval"):
                await self.env.evaluate()
        except HermesError:
            raise
        except Exception as error:  # an author's code may raise anything
            logger.exception("the evaluation failed")
            raise EnvironmentRunError(
                f"the evaluation failed ({classify(error).reason}): {type(error).__name__}: {error}"
            ) from error
        finally:
            await self.finish()

    async def next_item(self) -> Item:
        """The environment's next item; None if it has no more."""
        try:
            return await self.env.get_next_item()
        except HermesError:
            raise
        except Exception as error:  # without items the run cannot continue
            logger.exception("get_next_item failed")
            raise EnvironmentRunError(f"get_next_item failed: {type(error).__name__}: {error}") from error

    def begin_step(self, step: int) -> None:
        """Calls the environment's on_step."""
        try:
            self.env.on_step(step)
        except HermesError:
            raise
        except Exception as error:  # an author's code may raise anything
            logger.exception("on_step failed")
            raise EnvironmentRunError(f"on_step failed: {classify(error).text}") from error

    async def collect_group(self, item: Item) -> Any:
        """The result of collect_trajectories for the item (a group or a list of them), or a GroupFailure."""
        timeout_s = self.config.worker_timeout if self.config.worker_timeout > 0 else None
        try:
            async with asyncio.timeout(timeout_s) as limit:
                group, later_items = await self.env.collect_trajectories(item)
                self.backlog.extend(later_items or ())
                if group:
                    group = await self.env.postprocess_histories(group)
        except Exception as error:  # an author's code may raise anything; from here on it is a GroupFailure
            if limit.expired():
                logger.warning("a group was dropped: %s", TIMED_OUT.text)
                return TIMED_OUT
            failure = classify(error)
            logger.warning(
                "a group failed (%s): %s", failure.reason, failure.text, exc_info=not failure.infrastructure
            )
            if failure.fatal:
                if isinstance(error, HermesError):
                    raise
                raise EnvironmentRunError(failure.text) from error
            return failure
        return group or NO_GROUP

    async def deliver(self, group: Any, item: Item, **flags: bool) -> GroupFailure | None:
        """Passes what was collected to the environment's handle_send_to_api; the failure if that raises."""
        try:
            await self.env.handle_send_to_api(group, item, **flags)
            cleaning = cast(Any, self.env).cleanup()
            if inspect.isawaitable(cleaning):
                await cleaning
        except HermesError:
            raise
        except Exception as error:  # an author's override
            logger.exception("a complete group could not be delivered")
            return classify(error)
        return None

    async def keep_and_send(self, scored_data: Any, item: Item, *, send: bool, check_length: bool) -> None:
        """Validates one group or a list of them; writes and counts the accepted ones, and sends them."""
        groups = scored_data if isinstance(scored_data, list) else [scored_data]
        max_tokens = self.max_token_len if check_length and self.max_token_len > 0 else None
        accepted = []
        for group in groups:
            if group is None:
                continue
            for mask in group.get("masks") or ():
                self.env.completion_lengths.append(sum(token != MASKED for token in mask))
            if (reason := rejection_reason(group, self.config, max_tokens)) is not None:
                logger.warning("a group was rejected: %s", reason)
                self.tally.reject(reason)
                continue
            await self._keep(group, item)
            self.tally.complete()
            accepted.append(group)
        if accepted and send:
            self.items_sent_this_step += len(accepted)
            for group in accepted:
                overrides = group.get("group_overrides") or {}
                group["group_overrides"] = {**overrides, ENVIRONMENT: self.env.display_name}
            await self.send(accepted if isinstance(scored_data, list) else accepted[0])

    async def _keep(self, group: dict[str, Any], item: Item) -> None:
        for key in ("ref_logprobs", "overrides", "group_overrides", "distill_token_ids", "distill_logprobs"):
            group.setdefault(key, None)
        if self.config.include_messages and group.get("messages") is None:
            decode = self.env.tokenizer.decode
            group["messages"] = [[{"role": "user", "content": decode(ids)}] for ids in group["tokens"]]
        await self.env.add_rollouts_for_wandb(group, item)
        if self.sink is not None:
            self.sink.write(clean_group(group, lambda ids: str(self.env.tokenizer.decode(ids))))

    async def send(self, groups: Any) -> None:
        """Sends one group or a list of them. Cancelling the wait does not cancel the delivery."""
        if self.session is not None:
            await asyncio.shield(self.session.send(groups))
