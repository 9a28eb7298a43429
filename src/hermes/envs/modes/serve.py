"""The serve mode: workers generate groups for the trajectory API, as many as the trainer can use.

Each turn of the loop reads the API's status. While fewer than `max_batches_offpolicy` batches are queued it
starts workers, and otherwise none; running workers are never cancelled for that. After an infrastructure
failure an item is retried, a bounded number of times. A synchronous environment begins exactly the groups of
the batch that the trainer waits for.

The first SIGTERM or Ctrl-C ends the run in order: no new work is started, groups in progress have
`stop_patience_s` seconds and are then dropped and counted, complete groups are delivered for as long again or
written to a file that the log names. A second signal waits for nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from hermes.config import paths
from hermes.envs.concurrency import STOP_SIGNAL, cancel_all, run_within, wait_all
from hermes.envs.config import BaseEnvConfig
from hermes.envs.failures import FAILED, MAX_TRIES, STOPPED, EnvironmentRunError, GroupFailure
from hermes.envs.modes import metrics, pacing
from hermes.envs.modes.api_session import ApiSession
from hermes.envs.modes.evaluate import EvalRunner
from hermes.envs.modes.runner import EnvRunner
from hermes.envs.modes.shutdown import StopRequest, stop_on_signals
from hermes.envs.tasks.split import secret_seed
from hermes.envs.types import Item
from hermes.errors import ConfigError

logger = logging.getLogger(__name__)
_KEPT = "groups that were sent are at the trajectory API; the same command serves again"

_POLICY_LIMITS: Mapping[str, int] = MappingProxyType(
    {"too long": 256, "equal scores": 1024, "no group": 256, "wrong size": 256}
)
"""Groups in a row that may be of no use because of what the policy did before serving ends."""
_TURN_S = 0.1
_NO_ITEMS_S = 10.0
"""How long get_next_item may return None, with no group in progress, before serving ends."""
_WARN_EVERY_S = 60.0
"""Between two warnings about a wait."""
_CANCEL_TIMEOUT_S = 3.0
"""How long a cancelled group may clean up."""


@dataclass(frozen=True, slots=True)
class RunningItem:
    """An item that a worker of the serve mode is working on."""

    item: Item
    tries: int
    """Failed attempts before this one."""
    worker: asyncio.Task[Any]


@dataclass(frozen=True, slots=True)
class RunMembership:
    """The numbers that the trajectory API assigned when the environment registered."""

    wandb_name: str | None = None
    checkpoint_dir: str = ""
    checkpoint_interval: int = -1


class ServeMode:
    """Serves one environment, and owns what only serving needs: the run's status and the workers."""

    def __init__(self, runner: EnvRunner) -> None:
        self.runner = runner
        self.env = runner.env
        self.status: Mapping[str, Any] = {}
        """The API's last response to /status-env."""
        self.membership = RunMembership()
        self._retries: list[tuple[Item, int]] = []
        """Items to try again after an infrastructure failure, each with its attempts so far."""
        self._workers: set[asyncio.Task[Any]] = set()
        self._running_items: dict[str, RunningItem] = {}
        self._evaluations = EvalRunner(self.env)
        self._evaluation: asyncio.Task[None] | None = None
        self._trainer_waits = True
        """Synchronous: the trainer waits for a batch, with its newest weights published."""
        self._counted_groups = 0
        """Completed groups when the status was requested."""
        self._position = 0
        """Items that get_next_item has returned."""
        self._no_items_since_s: float | None = None
        """Since when get_next_item has returned None; None if its last call returned an item."""

    @property
    def config(self) -> BaseEnvConfig:
        return self.runner.config

    async def run(self) -> None:
        """Serves until the trainer has enough groups, a signal arrives, or an error ends the run."""
        stop = StopRequest()
        STOP_SIGNAL.set(stop.signalled)
        with stop_on_signals(stop, self._spool):
            main = asyncio.create_task(self._serve(stop))
            requested = asyncio.create_task(stop.requested.wait())
            await asyncio.wait({main, requested}, return_when=asyncio.FIRST_COMPLETED)
            if requested.done() and self.runner.session is None:
                main.cancel()  # in setup or waiting for a server: no group exists yet
            requested.cancel()
            try:
                await main
            except asyncio.CancelledError:
                if not main.cancelled() or not stop.requested.is_set():
                    raise
            finally:
                await self.runner.finish()
                if stop.requested.is_set():
                    logger.info("stopped; %s", _KEPT)

    async def _serve(self, stop: StopRequest) -> None:
        self.env.secret_seed = secret_seed(paths.home(), self.config.sampling_seed)
        await self.runner.prepare()
        self.runner.session = ApiSession(self.config, self.config.wandb_name or self.env.display_name)
        completed = False
        try:
            await stop.run_unless_requested(self._join_run())
            if not stop.requested.is_set():
                await self._serve_loop(stop)
            completed = True
        finally:
            await self._wind_down(self.runner.session, stop, completed)

    async def _join_run(self) -> None:
        await self.env.setup_wandb()
        await self.env.register_env()
        await self.env.get_server_info()

    async def _serve_loop(self, stop: StopRequest) -> None:
        watchdog = Watchdog(self.config, self.runner.curr_step)
        while not stop.requested.is_set():
            started_s = time.monotonic()
            await stop.run_unless_requested(self.env.get_status())
            if stop.requested.is_set():
                return
            await stop.run_unless_requested(self.env.env_step_checks())
            if pacing.has_enough(self.config, self.status):
                logger.info("the trainer has enough groups for its %d steps", self.config.total_steps)
                return
            if self._is_out_of_items():
                logger.info("the environment has no more items")
                return
            paused = not self._trainer_waits or pacing.must_pause(
                self.config, self.status, self.env.derived_batch_size
            )
            if not paused:
                await stop.run_unless_requested(self.env.add_train_workers())
            watchdog.check(self.runner.curr_step, paused=paused, model_healthy=self.env.server.any_healthy())
            self._raise_worker_errors()
            self.runner.tally.check_stall(
                {
                    FAILED: max(self.runner.config.max_failed_groups, self.runner.max_workers),
                    **_POLICY_LIMITS,
                },
                "The log has the details.",
            )
            await self._wait_for_worker(stop)
            self.runner.timings.add_turn(time.monotonic() - started_s)

    def _is_out_of_items(self) -> bool:
        if self._no_items_since_s is None or self._workers or self._retries:
            return False
        return time.monotonic() - self._no_items_since_s > _NO_ITEMS_S

    def _raise_worker_errors(self) -> None:
        for worker in [worker for worker in self._workers if worker.done()]:
            self._workers.discard(worker)
            if not worker.cancelled() and (error := worker.exception()) is not None:
                raise error

    async def _wait_for_worker(self, stop: StopRequest) -> None:
        """Returns when a worker has ended, and after a turn's time at the latest."""
        requested = asyncio.create_task(stop.requested.wait())
        await asyncio.wait({requested, *self._workers}, timeout=_TURN_S, return_when=asyncio.FIRST_COMPLETED)
        requested.cancel()

    def _active_session(self) -> ApiSession:
        assert self.runner.session is not None, "only called while serving"
        return self.runner.session

    async def setup_wandb(self) -> None:
        """Joins the trainer's W&B project once it is set; does nothing if W&B is not configured."""
        if self.runner.session is None or not metrics.wandb_is_configured(self.config):
            return
        if metrics.load_wandb(self.config) is None:
            logger.warning(
                "W&B is configured, but the package wandb is not installed: nothing is sent to it. "
                "Install it with: pip install 'hermes-research[wandb]'"
            )
            return
        info = await self.runner.session.wandb_info()
        while info["project"] is None:
            await asyncio.sleep(1)
            info = await self.runner.session.wandb_info()
        self.runner.start_wandb(info["project"], info["group"])

    async def register(self) -> None:
        """Registers with the API. If the run is under way, the environment's checkpoint is loaded."""
        session = self._active_session()
        response = await session.register()
        self.membership = RunMembership(
            response["wandb_name"], response["checkpoint_dir"], response["checkpoint_interval"]
        )
        self.runner.curr_step = response["starting_step"]
        if self.config.total_steps == -1:
            self.config.total_steps = response["num_steps"]
        if self.config.total_steps == -1:
            raise ConfigError(
                "neither this environment nor the trainer sets the number of steps.",
                "Set --env.total_steps.",
            )
        logger.info(
            "registered as %s (%s) at step %d",
            self.membership.wandb_name,
            session.env_id,
            self.runner.curr_step,
        )
        if self.runner.curr_step > 0:
            self.env.load_checkpoint()

    async def read_server_info(self) -> None:
        """Reads the trainer's batch size and longest sequence."""
        info = await self._active_session().info()
        if info["batch_size"] != -1:
            self.config.batch_size = info["batch_size"]
        if info["max_token_len"] != -1:
            self.runner.max_token_len = info["max_token_len"]
        if self.config.group_size > self.config.batch_size:
            raise ConfigError(
                f"group_size is {self.config.group_size}, but the trainer's batches have only "
                f"{self.config.batch_size} sequences.",
                "Set a smaller --env.group_size, or a larger batch in the trainer.",
            )

    async def read_status(self) -> None:
        self._counted_groups = self.runner.tally.completed
        run_status = await self._active_session().run_status() if self.config.synchronous else {}
        self.status = await self._active_session().status()
        self._trainer_waits = pacing.waits_for_batch(run_status, self.status)
        await self.env.server.update_weight(self.status["env_weight"])

    async def check_step(self) -> None:
        """At a new step: evaluates, saves a checkpoint and logs, each if its interval was crossed."""
        before, now = self.runner.curr_step, self.status["current_step"]
        if before == now:
            return
        if pacing.is_crossed(before, now, self.config.steps_per_eval):
            if self._is_evaluating():
                logger.warning("the last evaluation is still running; this one is skipped")
            else:
                self._evaluation = asyncio.create_task(self._evaluations.run())
        interval = self.membership.checkpoint_interval
        if pacing.is_crossed(before, now, interval):
            self.env.save_checkpoint(now // interval * interval)
        self.runner.curr_step = now
        self.runner.begin_step(now)
        if self.runner.items_sent_this_step >= self.config.min_items_sent_before_logging:
            self.runner.items_sent_this_step = 0
            await self.env.wandb_log({})

    def _is_evaluating(self) -> bool:
        return self._evaluation is not None and not self._evaluation.done()

    async def start_workers(self) -> None:
        """Starts workers until the target is reached, or there are no items."""
        target = pacing.target_workers(
            self.config,
            self.status,
            self.env.derived_batch_size,
            self.runner.replica.share(self.runner.max_workers),
            self._is_evaluating(),
            self.runner.replica,
        )
        if self.config.synchronous:
            target = min(target, len(self._workers) + self._missing_groups())
        self.runner.timings.add_workers(max(0, target - len(self._workers)))
        while len(self._workers) < target and await self.env.server.is_ready():
            item, tries = await self._next_item_to_run()
            if item is None:
                return
            uuid = str(uuid4())
            worker = asyncio.create_task(self.env.handle_env(uuid))
            self._running_items[uuid] = RunningItem(item, tries, worker)
            self._workers.add(worker)

    def _missing_groups(self) -> int:
        """Groups to begin for the batch that the trainer waits for; none while the status is out of date."""
        if self.runner.tally.completed != self._counted_groups:
            return 0
        share = self.env.derived_batch_size
        missing = pacing.missing_groups(self.config, self.status, share, len(self._workers))
        return self.runner.replica.share(missing)

    async def _next_item_to_run(self) -> tuple[Item, int]:
        """The next item and its failed attempts: a retry, one of the backlog, or a new one."""
        if self._retries:
            return self._retries.pop(0)
        item = self.runner.backlog.pop() if self.runner.backlog else await self._next_own_item()
        if item is not None:
            self._no_items_since_s = None
        elif self._no_items_since_s is None:
            self._no_items_since_s = time.monotonic()
        return item, 0

    async def _next_own_item(self) -> Item:
        """The next item that is this replica's; those of other replicas are passed over."""
        while True:
            item = await self.runner.next_item()
            if item is None:
                return None
            position, self._position = self._position, self._position + 1
            if self.runner.replica.owns(position):
                return item

    async def run_item(self, item_uuid: str) -> Any:
        """The work of one worker: collects the item's group and delivers it. The group, or None."""
        running = self._running_items.get(item_uuid)
        if running is None:
            return None
        started_s = time.monotonic()
        try:
            group = await self.runner.collect_group(running.item)
        finally:
            self._running_items.pop(item_uuid, None)
        failure = group if isinstance(group, GroupFailure) else None
        self.runner.timings.add_group(time.monotonic() - started_s, succeeded=failure is None)
        if failure is None:
            failure = await self.runner.deliver(group, running.item)
        elif failure.infrastructure and running.tries + 1 < MAX_TRIES:
            self.runner.tally.retry(failure)
            self._retries.append((running.item, running.tries + 1))
            return None
        if failure is not None:
            self.runner.tally.drop(failure)
            return None
        return group

    async def _wind_down(self, session: ApiSession, stop: StopRequest, completed: bool) -> None:
        """Ends the work in progress and delivers complete groups; after an error it waits for nothing."""
        stop_timeout_s = self.config.stop_patience_s
        try:
            if completed and stop.requested.is_set():
                logger.info("stopping: %d groups are in progress", len(self._running_items))
                await run_within(stop_timeout_s, wait_all(self._workers), stop.immediate)
            await self._drop_unfinished()
            if completed and not stop.requested.is_set():
                await stop.run_unless_requested(session.drain())
            if completed and stop.requested.is_set():
                await run_within(stop_timeout_s, self._drain(session), stop.immediate)
        finally:
            logger.info("%s; %d sent", self.runner.tally.describe(), session.sent)
            await session.close(self.runner.spool_path, immediate=stop.immediate.is_set())
            await cancel_all(self._workers, _CANCEL_TIMEOUT_S)

    async def _drop_unfinished(self) -> None:
        """Cancels and counts the groups in progress, and drops those that were to be retried."""
        workers = [running.worker for running in self._running_items.values()]
        evaluations = [self._evaluation] if self._evaluation is not None and self._is_evaluating() else []
        if evaluations:
            logger.info("the running evaluation is cancelled")
        await cancel_all([*workers, *evaluations], _CANCEL_TIMEOUT_S)
        unfinished = [worker for worker in workers if not worker.done() or worker.cancelled()]
        for _ in [*unfinished, *self._retries]:
            self.runner.tally.drop(STOPPED)
        self._retries.clear()

    async def _drain(self, session: ApiSession) -> None:
        """Waits until everything complete has been sent."""
        try:
            await wait_all(self._workers)
            await session.drain()
        except EnvironmentRunError as error:
            logger.error("%s", error.message)

    def _spool(self) -> None:
        if self.runner.session is not None:
            self.runner.session.spool(self.runner.spool_path)


class Watchdog:
    """Ends a run that waits too long for its trainer or its model server; before that it logs warnings."""

    def __init__(self, config: BaseEnvConfig, step: int) -> None:
        self._config = config
        self._step = step
        self._progress_s = self._healthy_s = self._warned_s = time.monotonic()

    def check(self, step: int, *, paused: bool, model_healthy: bool) -> None:
        """`paused`: enough groups are queued, so the environment waits for the trainer and needs no model."""
        now_s = time.monotonic()
        if step != self._step or not paused:
            self._step, self._progress_s = step, now_s
        if model_healthy or paused:
            self._healthy_s = now_s
        self._check_wait(
            now_s - self._progress_s,
            self._config.trainer_patience_s,
            "the trainer has taken no batch",
            "Check that the trainer is running. The groups are queued in the trajectory API.",
        )
        self._check_wait(
            now_s - self._healthy_s,
            self._config.outage_patience_s,
            "no model server has answered",
            "Start the model server again, or set --openai.base_url to one that is running.",
        )

    def _check_wait(self, waited_s: float, limit_s: float, problem: str, hint: str) -> None:
        if waited_s > limit_s:
            raise EnvironmentRunError(f"{problem} for {limit_s:g} s, at step {self._step}.", hint)
        if waited_s > _WARN_EVERY_S and time.monotonic() - self._warned_s > _WARN_EVERY_S:
            self._warned_s = time.monotonic()
            logger.warning("%s for %d s; waiting", problem, waited_s)
