"""An environment's session with the trajectory API, across outages and restarts of the API.

Promises: a complete group is sent until it is acknowledged or rejected for good, and a retry is never stored
twice; if the API has lost the registration, the environment registers again; no wait is longer than the
settings allow, and the error then names what was missing. Groups that could not be delivered are written to a
file that the log names.

`TrajectoryClient` sends a request over a connection pool, with gzip. The session decides about a retry by the
fields of `TrajectoryApiError`.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from hermes.envs.failures import EnvironmentRunError
from hermes.envs.groups import encode
from hermes.models.remote.retry import OutageWait, RetryPolicy, retry
from hermes.serving.trajectory_api import (
    TIMEOUT_S,
    TrajectoryApiError,
    auth_headers,
    parse_response,
    translated_errors,
)

if TYPE_CHECKING:
    import httpx2

    from hermes.envs.config import BaseEnvConfig

logger = logging.getLogger(__name__)

_OUTAGE_PAUSES = RetryPolicy(max_retries=0, base_s=0.1, cap_s=5.0)
_TRAINER_PAUSES = RetryPolicy(max_retries=0, base_s=0.1, cap_s=1.0)
"""Only the schedule of pauses: attempts are limited by time, not by number."""
_WARN_EVERY_S = 30.0
_DISCONNECT_TIMEOUT_S = 5.0


class ApiSession:
    """Registers, reads the status, sends groups."""

    def __init__(self, config: BaseEnvConfig, name: str) -> None:
        self.config = config
        self.name = name
        self.client = TrajectoryClient(config.rollout_server_url)
        self.registration: dict[str, Any] = {}
        """The API's response to the last successful registration."""
        self.sent = 0
        """Groups acknowledged."""
        self.rejected: Counter[int] = Counter()
        """Posts that the API rejected for good, by HTTP status."""
        self._unsent: dict[str, Any] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._registering = asyncio.Lock()
        self._reached = False
        """Whether the API has responded to any request."""

    @property
    def env_id(self) -> int | None:
        return self.registration.get("env_id")

    async def register(self, lost_id: int | None = None) -> dict[str, Any]:
        """Waits for the API and for its trainer. `lost_id`: a registration that the API has lost."""
        async with self._registering:
            if lost_id is not None and self.env_id != lost_id:
                return self.registration  # registered again in the meantime
            wait = LoggedWait(self.config.trainer_patience_s, _TRAINER_PAUSES)
            while True:
                response = await self._request_with_retry(
                    lambda: self.client.register_env(self._registration_body())
                )
                if response.get("status") == "success":
                    self.registration = response
                    return response
                logger.info("not registered, there is no trainer yet: %s", response.get("status"))
                pause_s = wait.next_pause_s(
                    f"no trainer has requested a batch from {self.client.url} within "
                    f"{self.config.trainer_patience_s:g} s.",
                    "Start the trainer; environments are admitted after its first request for a batch.",
                )
                await asyncio.sleep(pause_s)

    async def info(self) -> dict[str, Any]:
        return await self._request_with_retry(self.client.info)

    async def wandb_info(self) -> dict[str, Any]:
        return await self._request_with_retry(self.client.wandb_info)

    async def run_status(self) -> dict[str, Any]:
        """The status of the whole run."""
        return await self._request_with_retry(self.client.run_status)

    async def status(self) -> dict[str, Any]:
        """The environment's status; registers again if the API has lost the registration."""
        while True:
            env_id = self.env_id
            assert env_id is not None, "the status is read after registering"
            try:
                return await self._request_with_retry(
                    partial(self.client.status_env, env_id), final=(404, 500)
                )
            except TrajectoryApiError as error:
                if error.status not in (404, 500):
                    raise
                # Atropos's own API responds with 500 where 404 is meant.
                logger.warning("the trajectory API has lost the registration; registering again")
                await self.register(lost_id=env_id)

    def send(self, groups: Any) -> asyncio.Task[None]:
        """Starts to send one group or a list of them. The returned task may be discarded."""
        key = new_key()
        self._unsent[key] = groups
        task = asyncio.create_task(self._deliver(key, groups))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return task

    async def drain(self) -> None:
        """Waits until every group is acknowledged or rejected. Cancelling it does not cancel sending."""
        while self._sending:
            done, _ = await asyncio.wait(self._sending, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()

    def spool(self, path: Path) -> None:
        """Appends all unsent groups to a file."""
        unsent = list(self._unsent.values())
        if not unsent:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(encode(groups) + "\n" for groups in unsent)
        self._unsent.clear()
        logger.error("%d posts could not be delivered; they are in %s", len(unsent), path)

    async def close(self, spool: Path, *, immediate: bool = False) -> None:
        """Writes all unsent groups to `spool`, and disconnects from the API unless `immediate`."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        self.spool(spool)
        if self.env_id is not None and not immediate:
            try:
                await asyncio.wait_for(self.client.disconnect_env(self.env_id), _DISCONNECT_TIMEOUT_S)
            except (TrajectoryApiError, TimeoutError) as error:
                logger.info("could not disconnect from the trajectory API: %s", error)
        await self.client.close()

    async def _deliver(self, key: str, groups: Any) -> None:
        while True:
            env_id = self.env_id
            for group in groups if isinstance(groups, list) else [groups]:
                group["env_id"] = env_id
            try:
                response = await self._request_with_retry(lambda: self.client.post_groups(groups, key))
            except TrajectoryApiError as error:
                if error.status == 404 and env_id is not None:
                    await self.register(lost_id=env_id)
                    continue
                logger.error("the trajectory API rejected a group for good: %s", error.message)
                self.rejected[error.status or 0] += 1
            else:
                self.sent += len(groups) if isinstance(groups, list) else 1
                if reason := response.get("reason"):
                    logger.warning("a group was accepted with a warning: %s", reason)
            del self._unsent[key]
            return

    def _registration_body(self) -> dict[str, Any]:
        return {
            "max_token_length": self.config.max_token_length,
            "desired_name": self.name,
            "weight": self.config.inference_weight,
            "min_batch_allocation": self.config.min_batch_allocation,
            "group_size": self.config.group_size,
        }

    async def _request_with_retry(
        self, request: Callable[[], Awaitable[dict[str, Any]]], final: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        """Sends the request until the API responds, or the time that the settings allow is up.

        A response with a status in `final` is raised even though another attempt might succeed.
        """
        timeout_s = self.config.outage_patience_s if self._reached else self.config.start_patience_s
        wait = LoggedWait(timeout_s, _OUTAGE_PAUSES)

        def pause_after(error: Exception, attempts: int) -> float | None:
            if not isinstance(error, TrajectoryApiError):
                return None
            self._reached = self._reached or error.status is not None
            if not error.retryable or error.status in final:
                return None
            message = error.message.rstrip(".") + f", for {timeout_s:g} s."
            return wait.next_pause_s(message, error.hint, error.retry_after_s)

        response, _ = await retry(request, pause_after)
        self._reached = True
        return response


class LoggedWait:
    """A wait for another service that is logged, and that ends with an error if the time is up."""

    def __init__(self, patience_s: float, policy: RetryPolicy) -> None:
        self._wait = OutageWait(patience_s, policy)
        self._warned_s = time.monotonic()

    def next_pause_s(self, message: str, hint: str, retry_after_s: float | None = None) -> float:
        """The next pause; EnvironmentRunError with the message if the time is up."""
        pause_s = self._wait.next_pause_s(retry_after_s)
        if pause_s is None:
            raise EnvironmentRunError(message, hint)
        if time.monotonic() - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = time.monotonic()
            logger.warning("still waiting: %s", message)
        return pause_s


_MIN_COMPRESSED_BYTES = 1024


class TrajectoryClient:
    """A client of one API, Hermes's own or Atropos's."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._session: httpx2.AsyncClient | None = None

    async def register_env(self, registration: dict[str, Any]) -> dict[str, Any]:
        return await self._request("POST", "/register-env", registration)

    async def disconnect_env(self, env_id: int) -> None:
        await self._request("POST", "/disconnect-env", {"env_id": env_id})

    async def info(self) -> dict[str, Any]:
        return await self._request("GET", "/info")

    async def wandb_info(self) -> dict[str, Any]:
        return await self._request("GET", "/wandb_info")

    async def status_env(self, env_id: int) -> dict[str, Any]:
        return await self._request("GET", "/status-env", {"env_id": env_id})

    async def run_status(self) -> dict[str, Any]:
        return await self._request("GET", "/status")

    async def post_groups(self, groups: Any, key: str) -> dict[str, Any]:
        """Posts one group or a list of them. The server stores posts with the same key once."""
        path = "/scored_data_list" if isinstance(groups, list) else "/scored_data"
        return await self._request("POST", path, groups, {"Idempotency-Key": key})

    async def close(self) -> None:
        if self._session is not None:
            await self._session.aclose()
            self._session = None

    async def _request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        import asyncio

        content, all_headers = b"", dict(headers or {})
        if body is not None:
            content, encoding = await asyncio.to_thread(_encode_body, body)
            all_headers |= {"Content-Type": "application/json", **encoding}
        with translated_errors(self.url):
            response = await self._connect().request(
                method, self.url + path, content=content, headers=all_headers
            )
        return parse_response(self.url, path, response)

    def _connect(self) -> httpx2.AsyncClient:
        if self._session is None:
            import httpx2

            self._session = httpx2.AsyncClient(headers=auth_headers(), timeout=TIMEOUT_S, trust_env=False)
        return self._session


def new_key() -> str:
    return uuid4().hex


def _encode_body(body: Any) -> tuple[bytes, dict[str, str]]:
    content = encode(body).encode()
    if len(content) < _MIN_COMPRESSED_BYTES:
        return content, {}
    return gzip.compress(content, compresslevel=1), {"Content-Encoding": "gzip"}
