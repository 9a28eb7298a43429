"""The trajectory API without HTTP: one method for each request.

A request returns when the journal has made its change durable. Groups join the queue at that moment, in the
order of the log; a batch leaves the queue when it is requested, and is sent once that is recorded.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hermes.core.json import JSONObject
from hermes.errors import StoreError
from hermes.rollouts.core import events
from hermes.rollouts.core.metrics import Metrics
from hermes.rollouts.core.shares import Shares
from hermes.rollouts.core.state import Lease
from hermes.rollouts.intake import Intake, IntakeLimits, RejectedPostError
from hermes.rollouts.journal.journal import GroupJournal
from hermes.rollouts.schema import EnvRegistration, Registration

_EXAMPLE_KEYS = (
    "tokens",
    "masks",
    "scores",
    "advantages",
    "ref_logprobs",
    "generation_params",
    "inference_logprobs",
    "messages",
    "images",
)
"""The keys of `/latest_example`, with empty lists, before the first group."""
_WARN_EVERY_S = 60.0
_POLL_GAP_S = 15.0
"""A trainer that has not polled for this long is not waiting: it is training, or has ended."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchDelivery:
    """A batch to be sent."""

    lease: Lease
    readers: list[Callable[[], bytes]]
    """The bytes of each group; call them in a thread."""


class TrainerWait:
    """How long the trainer has polled without getting a batch.

    A trainer that is computing a step does not poll, so it does not count as waiting.
    """

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._last_poll_s = 0.0

    def record_poll(self, now_s: float) -> None:
        if self._since_s is None or now_s - self._last_poll_s > _POLL_GAP_S:
            self._since_s = now_s
        self._last_poll_s = now_s

    def record_batch(self) -> None:
        self._since_s = None

    def seconds(self, now_s: float) -> float | None:
        """None: it has a batch, or has stopped polling."""
        if self._since_s is None or now_s - self._last_poll_s > _POLL_GAP_S:
            return None
        return now_s - self._since_s


class TrajectoryService:
    def __init__(self, journal: GroupJournal, limits: IntakeLimits) -> None:
        self.state = journal.state
        self.journal = journal
        self.limits = limits
        self.metrics = Metrics()
        self.intake = Intake(journal, limits, self.metrics)
        self.trainer_wait = TrainerWait()
        self._shares = Shares(self.state)
        self._warned_s = 0.0

    async def register(self, registration: Registration) -> JSONObject:
        if self.state.registration is None:
            event = events.registered(registration)
            await self.journal.append(lambda: self.state.register(registration), event)
        return {"uuid": uuid.uuid4().int}

    async def register_env(self, registration: EnvRegistration) -> JSONObject:
        waiting: JSONObject = {"status": "wait for trainer to start"}
        if not self.state.started:
            return waiting
        env = await self.journal.append(
            lambda: self.state.register_env(registration, time.time()), events.env_registered(registration)
        )
        run = self.state.registration
        if env is None or run is None:  # the run was reset meanwhile
            return waiting
        return {
            "status": "success",
            "env_id": env.id,
            "wandb_name": env.wandb_name,
            "checkpoint_dir": run.checkpoint_dir,
            "starting_step": self.state.step,
            "checkpoint_interval": run.save_checkpoint_interval,
            "num_steps": run.num_steps,
        }

    async def disconnect_env(self, env_id: int) -> JSONObject:
        if env_id not in self.state.envs:
            return {"status": "failure", "error": f"environment {env_id} is not registered"}
        await self.journal.append(lambda: self.state.disconnect(env_id), events.env_disconnected(env_id))
        return {"status": "success"}

    def env_status(self, env_id: int) -> JSONObject:
        if env_id not in self.state.envs:
            raise RejectedPostError(404, f"environment {env_id} is not registered")
        self.state.mark_seen(env_id, time.time())
        return self._shares.figures(env_id)

    def expire(self) -> None:
        """Expires leases and marks silent environments; to be called about every second."""
        now_s = time.time()
        self.state.expire(now_s)
        self.state.mark_silent(now_s - self.limits.env_timeout_s)

    async def next_batch(self, lease_s: float | None) -> BatchDelivery | JSONObject:
        """The next batch, or why there is none. Without `lease_s` the lease ends with the connection."""
        if self.state.registration is None:
            message = "Trainer not registered. Call /register first."
            return {"status": "error", "message": message, "batch": []}
        if not self.state.started:
            await self.journal.append(self.state.start, events.started())
        self.state.expire(time.time())
        lease = self.state.lease_batch(_expiry(lease_s))
        if lease is None:
            self.trainer_wait.record_poll(time.time())
            connected = sum(env.connected for env in self.state.envs.values())
            return {"batch": None, "reason": self._no_batch_reason(), "envs_connected": connected}
        self.trainer_wait.record_batch()
        return await self._serve(lease)

    async def redeliver(self, lease_id: int, lease_s: float | None) -> BatchDelivery:
        """Serves an outstanding batch again."""
        if lease_id not in self.state.leases:
            raise RejectedPostError(404, f"lease {lease_id} is not outstanding")
        return await self._serve(self.state.redeliver(lease_id, _expiry(lease_s)))

    async def acknowledge(self, lease_id: int) -> JSONObject:
        """Idempotent: a lease that is finished may be acknowledged again."""
        if lease_id in self.state.leases:
            await self._finish(lease_id)
        elif not 0 < lease_id < self.state.next_lease_id:
            raise RejectedPostError(404, f"there is no lease {lease_id}")
        return {"status": "success"}

    async def renew(self, lease_ids: Sequence[int], lease_s: float) -> JSONObject:
        """Leases that are finished, or of an earlier run, are listed as unknown; they are no error."""
        expires_s = time.time() + lease_s
        outstanding = [lease_id for lease_id in lease_ids if lease_id in self.state.leases]
        if outstanding:
            event = events.renewed(outstanding, expires_s)
            await self.journal.append(lambda: self.state.renew(outstanding, expires_s), event)
        unknown = [lease_id for lease_id in lease_ids if lease_id not in outstanding]
        return {"status": "success", "renewed": len(outstanding), "unknown": unknown}

    def settle_delivery(self, lease: Lease, *, arrived: bool) -> None:
        """The batch has arrived, or its connection broke first.

        A lease without a time limit ends when its batch arrives. The response does not wait for that record;
        if it is lost in a crash, the batch is redelivered. A broken connection counts only if the batch was
        not redelivered since.
        """
        if arrived and lease.expires_s is None and lease.id in self.state.leases:
            self._finish(lease.id).add_done_callback(_log_failure)
        elif not arrived and self.state.leases.get(lease.id) == lease:
            self.state.mark_lost(lease.id)
            self.metrics.count("batches_lost_total")

    async def reset(self) -> None:
        def apply() -> None:
            groups = list(self.state.groups())
            self.state.reset()
            self.journal.forget(groups)
            self.intake.latest = None

        await self.journal.append(apply, events.reset())

    async def latest_example(self) -> bytes:
        if self.intake.latest is None and (
            newest := max((group.id for group in self.state.queue), default=None)
        ):
            (reader,) = self.journal.readers([newest])
            self.intake.latest = await asyncio.to_thread(reader)
        return self.intake.latest or b"{%s}" % b",".join(b'"%s":[]' % key.encode() for key in _EXAMPLE_KEYS)

    async def _serve(self, lease: Lease) -> BatchDelivery:
        readers = self.journal.readers(group.id for group in lease.groups)
        try:
            await self.journal.append(lambda: None, events.served(lease))
        except BaseException:
            self.state.mark_lost(lease.id)
            raise
        self.metrics.batches.add(1, time.time())
        self.metrics.count("batches_served_total")
        if lease.redelivered:
            self.metrics.count("batches_redelivered_total")
        return BatchDelivery(lease, readers)

    def _finish(self, lease_id: int) -> asyncio.Future[None]:
        def apply() -> None:
            self.journal.forget(self.state.finish(lease_id))

        return self.journal.append(apply, events.finished(lease_id))

    def _no_batch_reason(self) -> str:
        reason = self.state.no_batch_reason()
        if self.state.set_aside() and time.time() - self._warned_s > _WARN_EVERY_S:
            self._warned_s = time.time()
            _logger.warning("%d queued groups are set aside; no batch: %s", self.state.set_aside(), reason)
        return reason


def _expiry(lease_s: float | None) -> float | None:
    return None if lease_s is None else time.time() + lease_s


def _log_failure(future: asyncio.Future[None]) -> None:
    if not future.cancelled() and isinstance(error := future.exception(), StoreError):
        _logger.error("a served batch could not be recorded as arrived: %s", error.message)
