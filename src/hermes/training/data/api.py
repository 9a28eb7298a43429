"""The trajectory API as a trainer asks it: registers, takes batches under a lease, acknowledges.

A request that fails in passing (nobody there, a server that is full or broken for the moment) is tried again
until the patience is spent. A batch is the trainer's until it acknowledges it, so that one that was taken and
not yet part of a checkpoint can be asked for again after any crash. A thread renews the leases of all batches
that are not acknowledged, so a lease lives as long as its trainer, however long a step takes.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hermes.core.json import JSONObject
from hermes.errors import HermesError

if TYPE_CHECKING:
    import httpx2

DEFAULT_URL = "http://127.0.0.1:8000"
TOKEN_VARIABLE = "HERMES_API_TOKEN"
LEASE_S = 600.0
"""A batch whose trainer has stopped renewing its lease is served again after this long, under its own id."""
_RENEWALS_PER_LEASE = 4
"""How often a lease is renewed within its time, so that a few lost requests do no harm."""
NO_LEASE = 0
"""The lease of a batch from an API that knows none (the original): it is gone once it was served."""
_TIMEOUT_S = 60.0
_RENEWAL_TIMEOUT_S = 10.0
"""Short, because the end of a training waits for a renewal under way."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_HINT = "start it with: hermes api; --api-url or RL_API_URL names another address"


logger = logging.getLogger(__name__)


class TrajectoryApiError(HermesError):
    """The trajectory API is not there, or refused."""

    def __init__(self, message: str, hint: str = "", *, status: int | None = None) -> None:
        super().__init__(message, hint)
        self.status = status
        """None: nothing answered."""


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
    """Environments that may still send groups; None: this API does not tell."""


class TrainerApi:
    """One trainer's standing with one API."""

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
        self._renewing: threading.Thread | None = None

    def register(self, registration: JSONObject) -> None:
        self._registration = registration
        self._ask("POST", "/register", registration)

    def next_batch(self) -> LeasedBatch | NoBatch:
        """The next batch, or why there is none yet."""
        answer = self._ask("GET", f"/batch?lease_s={self._lease_s:g}")
        if answer.get("status") == "error":  # an API without a memory was started anew
            self.register(self._registration)
            return NoBatch(str(answer.get("message")))
        if not answer.get("batch"):
            return NoBatch(str(answer.get("reason") or "nothing is queued"), answer.get("envs_connected"))
        lease_id, redelivered = answer.get("lease_id", NO_LEASE), answer.get("redelivered", 0)
        self.keep_leases([lease_id])
        return LeasedBatch(int(lease_id), answer["batch"], int(redelivered))

    def again(self, lease_id: int) -> LeasedBatch | None:
        """A batch that was taken before; None if it is not outstanding."""
        if lease_id == NO_LEASE:
            return None
        try:
            answer = self._ask("GET", f"/batch?lease_id={lease_id}&lease_s={self._lease_s:g}")
        except TrajectoryApiError as error:
            if error.status == 404:
                self._drop_lease(lease_id)
                return None
            raise
        self.keep_leases([lease_id])
        return LeasedBatch(lease_id, answer["batch"], int(answer["redelivered"]))

    def keep_leases(self, lease_ids: Iterable[int]) -> None:
        """Renews these leases until they are acknowledged or this trainer ends."""
        with self._lock:
            self._unacknowledged.update(lease_id for lease_id in lease_ids if lease_id != NO_LEASE)
            idle = not self._unacknowledged or self._renewing is not None
        if not idle:
            self._renewing = threading.Thread(target=self._renew, name="renew-leases", daemon=True)
            self._renewing.start()

    def acknowledge(self, lease_id: int) -> None:
        """May be repeated. A lease that the API does not know belonged to another life of it."""
        if lease_id == NO_LEASE:
            return
        try:
            self._ask("POST", "/batch/ack", {"lease_id": lease_id})
        except TrajectoryApiError as error:
            if error.status != 404:
                raise
        self._drop_lease(lease_id)

    def __enter__(self) -> TrainerApi:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        if self._renewing is not None:
            self._renewing.join()
        if self._session is not None:
            self._session.close()

    def _drop_lease(self, lease_id: int) -> None:
        with self._lock:
            self._unacknowledged.discard(lease_id)

    def _renew(self) -> None:
        """The thread that renews. A failed renewal is logged and repeated with the next one: the lease has
        time left, and an API that stays away ends the training by its own requests."""
        while not self._closed.wait(self._lease_s / _RENEWALS_PER_LEASE):
            with self._lock:
                lease_ids = sorted(self._unacknowledged)
            if not lease_ids:
                continue
            try:
                renewal: JSONObject = {"lease_ids": lease_ids, "lease_s": self._lease_s}
                self._try("POST", "/batch/renew", renewal, timeout_s=_RENEWAL_TIMEOUT_S)
            except TrajectoryApiError as error:
                if error.status in (404, 405):
                    logger.warning("leases are not renewed, the API cannot do it: %s", error.message)
                    return
                logger.warning("%d leases were not renewed: %s", len(lease_ids), error.message)

    def _ask(self, method: str, path: str, body: JSONObject | None = None) -> JSONObject:
        deadline_s = time.monotonic() + self._patience_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return self._try(method, path, body)
            except TrajectoryApiError as error:
                passing = error.status is None or error.status == 429 or error.status >= 500
                if not passing or time.monotonic() + pause_s > deadline_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _try(
        self, method: str, path: str, body: JSONObject | None, timeout_s: float = _TIMEOUT_S
    ) -> JSONObject:
        with self._errors():
            response = self._open().request(method, self.url + path, json=body, timeout=timeout_s)
        if response.status_code >= 400:
            wants = response.status_code in (401, 403)
            raise TrajectoryApiError(
                f"the trajectory API at {self.url} answered {response.status_code} to {path}: "
                f"{response.text[:300]}",
                f"it wants its token: set {TOKEN_VARIABLE}" if wants else "",
                status=response.status_code,
            )
        try:
            answer: Any = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise TrajectoryApiError(f"what answers at {self.url} is not a trajectory API", _HINT, status=400)
        return answer

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import httpx2

        try:
            yield
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise TrajectoryApiError(
                f"'{self.url}' is not an address: {error}", f"write it like {DEFAULT_URL}", status=400
            ) from error
        except httpx2.HTTPError as error:
            why = str(error) or type(error).__name__
            raise TrajectoryApiError(
                f"no answer from the trajectory API at {self.url}: {why}", _HINT
            ) from error

    def _open(self) -> httpx2.Client:
        if self._session is None:
            import httpx2

            token = os.environ.get(TOKEN_VARIABLE)
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            self._session = httpx2.Client(headers=headers, trust_env=False)
        return self._session
