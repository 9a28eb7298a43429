"""Client of the trajectory API for a trainer: registers, takes batches under a lease, acknowledges them.

A request that fails transiently (no connection, 429, 5xx) is retried until the patience is spent. A batch
stays leased until it is acknowledged, so that after a crash a batch that is not part of a checkpoint can be
requested again. A thread renews the leases of all unacknowledged batches, so a lease lasts as long as its
trainer, however long a step takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hermes.core.json import JSONObject
from hermes.errors import HermesError
from hermes.models.remote.retry import OutageWait, RetryPolicy, retry_blocking
from hermes.serving.trajectory_api import (
    TIMEOUT_S,
    TrajectoryApiError,
    auth_headers,
    parse_response,
    translated_errors,
)

if TYPE_CHECKING:
    import httpx2

LEASE_S = 600.0
"""A batch whose trainer has stopped renewing its lease is served again after this long, under its own id."""
_RENEWALS_PER_LEASE = 4
"""How often a lease is renewed within its time, so that a few lost requests do no harm."""
NO_LEASE = 0
"""The lease id of a batch from an API without leases (the original): it is served only once."""
_RENEWAL_TIMEOUT_S = 10.0
"""Short, because the end of a run waits for a renewal in progress."""
_PAUSES = RetryPolicy(max_retries=0, base_s=0.05, cap_s=1.0)
"""Only the schedule of pauses: attempts are limited by time, not by number."""

logger = logging.getLogger(__name__)
ENV_PATIENCE_S = 1800.0
_LOG_EVERY_S = 30.0
_START_ONE = "start one: hermes env serve NAME"


@dataclass(frozen=True, slots=True)
class LeasedBatch:
    lease_id: int
    groups: list[JSONObject]
    redelivered: int = 0
    """How often it was served before."""


@dataclass(frozen=True, slots=True)
class NoBatch:
    """The API has no batch to serve at the moment."""

    reason: str
    envs_connected: int | None = None
    """Environments that may still send groups; None: this API does not report it."""


class TrainerApi:
    """One trainer at one API. A context manager: on exit the leases are no longer renewed."""

    def __init__(self, url: str, patience_s: float, lease_s: float = LEASE_S) -> None:
        self.url = url.rstrip("/")
        self._patience_s = patience_s
        self._lease_s = lease_s
        self._session: httpx2.Client | None = None
        self._registration: JSONObject = {}
        self._unacknowledged: set[int] = set()
        self._lock = threading.Lock()
        """Guards `_unacknowledged`, which the renewing thread reads."""
        self._closed = threading.Event()
        self._renewer: threading.Thread | None = None

    def register(self, registration: JSONObject) -> None:
        self._registration = registration
        self._request("POST", "/register", registration)

    def next_batch(self) -> LeasedBatch | NoBatch:
        """The next batch, or why there is none yet."""
        response = self._request("GET", f"/batch?lease_s={self._lease_s:g}")
        if response.get("status") == "error":  # an API without a journal was restarted
            self.register(self._registration)
            return NoBatch(str(response.get("message")))
        if not response.get("batch"):
            return NoBatch(str(response.get("reason") or "nothing is queued"), response.get("envs_connected"))
        lease_id, redelivered = response.get("lease_id", NO_LEASE), response.get("redelivered", 0)
        self.keep_leases([lease_id])
        return LeasedBatch(int(lease_id), response["batch"], int(redelivered))

    def redeliver(self, lease_id: int) -> LeasedBatch | None:
        """A batch that was served before; None if its lease is not outstanding."""
        if lease_id == NO_LEASE:
            return None
        try:
            response = self._request("GET", f"/batch?lease_id={lease_id}&lease_s={self._lease_s:g}")
        except TrajectoryApiError as error:
            if error.status == 404:
                self._drop_lease(lease_id)
                return None
            raise
        self.keep_leases([lease_id])
        return LeasedBatch(lease_id, response["batch"], int(response["redelivered"]))

    def keep_leases(self, lease_ids: Iterable[int]) -> None:
        """Renews these leases until they are acknowledged or this trainer ends."""
        with self._lock:
            self._unacknowledged.update(lease_id for lease_id in lease_ids if lease_id != NO_LEASE)
            idle = not self._unacknowledged or self._renewer is not None
        if not idle:
            self._renewer = threading.Thread(target=self._renew, name="renew-leases", daemon=True)
            self._renewer.start()

    def acknowledge(self, lease_id: int) -> None:
        """May be repeated. A lease that the API does not have is from before it was reset."""
        if lease_id == NO_LEASE:
            return
        try:
            self._request("POST", "/batch/ack", {"lease_id": lease_id})
        except TrajectoryApiError as error:
            if error.status != 404:
                raise
        self._drop_lease(lease_id)

    def __enter__(self) -> TrainerApi:
        return self

    def __exit__(self, *exception: object) -> None:
        self._closed.set()
        if self._renewer is not None:
            self._renewer.join()
        if self._session is not None:
            self._session.close()

    def _drop_lease(self, lease_id: int) -> None:
        with self._lock:
            self._unacknowledged.discard(lease_id)

    def _renew(self) -> None:
        """Renews the leases at intervals. A failed renewal is logged and not retried: the lease outlasts
        several intervals, and if the API stays unreachable, the trainer's own requests end the run."""
        while not self._closed.wait(self._lease_s / _RENEWALS_PER_LEASE):
            with self._lock:
                lease_ids = sorted(self._unacknowledged)
            if not lease_ids:
                continue
            try:
                renewal: JSONObject = {"lease_ids": lease_ids, "lease_s": self._lease_s}
                self._send("POST", "/batch/renew", renewal, timeout_s=_RENEWAL_TIMEOUT_S)
            except TrajectoryApiError as error:
                if error.status in (404, 405):
                    logger.warning("leases are not renewed, the API does not support it: %s", error.message)
                    return
                logger.warning("%d leases were not renewed: %s", len(lease_ids), error.message)

    def _request(self, method: str, path: str, body: JSONObject | None = None) -> JSONObject:
        wait = OutageWait(self._patience_s, _PAUSES)

        def pause_after(error: Exception, attempts: int) -> float | None:
            if not isinstance(error, TrajectoryApiError) or not error.retryable:
                return None
            return wait.next_pause_s(error.retry_after_s)

        return retry_blocking(lambda: self._send(method, path, body), pause_after)

    def _send(
        self, method: str, path: str, body: JSONObject | None, timeout_s: float = TIMEOUT_S
    ) -> JSONObject:
        with translated_errors(self.url):
            response = self._open().request(method, self.url + path, json=body, timeout=timeout_s)
        return parse_response(self.url, path, response)

    def _open(self) -> httpx2.Client:
        if self._session is None:
            import httpx2

            self._session = httpx2.Client(headers=auth_headers(), trust_env=False)
        return self._session


class NoEnvironmentError(HermesError):
    """No environment was connected for the whole patience, and no batch was queued."""


class BatchWait:
    """One wait, from the first poll without a batch."""

    def __init__(self, env_patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._env_patience_s = env_patience_s
        self._clock = clock
        self._logged_s = clock()
        self._no_env_since_s: float | None = None
        """Since when no environment is connected; None: one is, or the API does not report it."""

    def line_if_due(self, response: NoBatch) -> str | None:
        """The line to log, every 30 seconds, else None. NoEnvironmentError once the patience is over."""
        now_s = self._clock()
        if response.envs_connected != 0:
            self._no_env_since_s = None
        elif self._no_env_since_s is None:
            self._no_env_since_s = now_s
        left_s = None if self._no_env_since_s is None else self._no_env_since_s + self._env_patience_s - now_s
        if left_s is not None and left_s <= 0:
            raise NoEnvironmentError(
                f"no environment was connected to the trajectory API for {self._env_patience_s:g} s, "
                f"and no batch could be made: {response.reason}",
                f"{_START_ONE}; then run this command again, and it continues from its last checkpoint. "
                "If an environment has ended, its log has the reason.",
            )
        if now_s - self._logged_s < _LOG_EVERY_S:
            return None
        self._logged_s = now_s
        line = f"waiting for a batch: {response.reason}"
        if left_s is not None:
            line += f"; no environment is connected ({_START_ONE}), and this run ends in {left_s:.0f} s"
        return line
