"""An environment's standing with the trajectory API, over outages and restarts of it.

Promises: a finished group is sent until it is acknowledged or refused for good, and a retry is never taken
twice; an API that forgot the environment is told again who it is; nobody is waited for longer than the
settings allow, and the error then says who was missing. Groups that could not be delivered are written to a
file that the error names.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.envs.failures import EnvironmentRunError
from hermes.envs.groups import encode
from hermes.envs.modes.api_client import ApiRequestError, TrajectoryClient, new_key

if TYPE_CHECKING:
    from hermes.envs.config import BaseEnvConfig

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_SAY_EVERY_S = 30.0


class ApiSession:
    """Registers, asks for the status, sends groups."""

    def __init__(self, config: BaseEnvConfig, name: str) -> None:
        self.config = config
        self.name = name
        self.client = TrajectoryClient(config.rollout_server_url)
        self.registration: dict[str, Any] = {}
        """The API's answer to the registration that counts now."""
        self.sent = 0
        """Groups acknowledged."""
        self.refused: Counter[int] = Counter()
        """Status → posts that the API will never take."""
        self._unsent: dict[str, Any] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._registering = asyncio.Lock()
        self._heard_s: float | None = None

    @property
    def env_id(self) -> int | None:
        return self.registration.get("env_id")

    async def register(self, forgotten: int | None = None) -> dict[str, Any]:
        """Waits for the API and for its trainer. `forgotten` is the id that the API no longer knows."""
        async with self._registering:
            if forgotten is not None and self.env_id != forgotten:
                return self.registration
            patience = _Backoff(self.config.trainer_patience_s)
            while True:
                answer = await self._insist(lambda: self.client.register_env(self._registration()))
                if answer.get("status") == "success":
                    self.registration = answer
                    return answer
                logger.info("registered with no trainer yet: %s", answer.get("status"))
                await patience.wait(
                    f"no trainer has asked {self.client.url} for a batch within "
                    f"{self.config.trainer_patience_s:g} s.",
                    "Start the trainer; environments are admitted once it asks for its first batch.",
                    longest_s=1.0,
                )

    async def info(self) -> dict[str, Any]:
        return await self._insist(self.client.info)

    async def wandb_info(self) -> dict[str, Any]:
        return await self._insist(self.client.wandb_info)

    async def status(self) -> dict[str, Any]:
        """The environment's status; registers anew if the API does not know it any more."""
        while True:
            asked = self.env_id
            assert asked is not None, "status is asked for after registering"
            try:
                return await self._insist(partial(self.client.status_env, asked), final=(404, 500))
            except ApiRequestError as error:
                if error.status not in (404, 500):
                    raise
                # The original answers 500 where it means 404.
                logger.warning("the trajectory API does not know this environment any more; registering anew")
                await self.register(forgotten=asked)

    def send(self, groups: Any) -> asyncio.Task[None]:
        """Begins to send one group or a list of them. The task may be abandoned; the sending goes on."""
        key = new_key()
        self._unsent[key] = groups
        task = asyncio.create_task(self._deliver(key, groups))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return task

    async def drain(self) -> None:
        """Until everything given to `send` is acknowledged or refused. Leaving does not end the sending."""
        while self._sending:
            done, _ = await asyncio.wait(self._sending, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()

    def spool(self, path: Path) -> None:
        """Writes what is still unsent to a file."""
        unsent = list(self._unsent.values())
        if not unsent:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(encode(groups) + "\n" for groups in unsent)
        self._unsent.clear()
        logger.error("%d posts could not be delivered; they are in %s", len(unsent), path)

    async def close(self, spool: Path, *, at_once: bool = False) -> None:
        """Takes leave, unless that has to be quick. What is still unsent is written to `spool`."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        self.spool(spool)
        if self.env_id is not None and not at_once:
            try:
                await asyncio.wait_for(self.client.disconnect_env(self.env_id), 5)
            except (ApiRequestError, TimeoutError) as error:
                logger.info("could not take leave of the trajectory API: %s", error)
        await self.client.close()

    async def _deliver(self, key: str, groups: Any) -> None:
        while True:
            asked = self.env_id
            for group in groups if isinstance(groups, list) else [groups]:
                group["env_id"] = asked
            try:
                answer = await self._insist(lambda: self.client.post_groups(groups, key))
            except ApiRequestError as error:
                if error.status == 404 and asked is not None:
                    await self.register(forgotten=asked)
                    continue
                logger.error("the trajectory API refused a group for good: %s", error.message)
                self.refused[error.status or 0] += 1
            else:
                self.sent += len(groups) if isinstance(groups, list) else 1
                if reason := answer.get("reason"):
                    logger.warning("a group was taken, but: %s", reason)
            del self._unsent[key]
            return

    def _registration(self) -> dict[str, Any]:
        return {
            "max_token_length": self.config.max_token_length,
            "desired_name": self.name,
            "weight": self.config.inference_weight,
            "min_batch_allocation": self.config.min_batch_allocation,
            "group_size": self.config.group_size,
        }

    async def _insist(self, request: Any, final: tuple[int, ...] = ()) -> dict[str, Any]:
        """Tries until the API answers, or it has not for as long as the settings allow."""
        met = self._heard_s is not None
        allowed_s = self.config.outage_patience_s if met else self.config.start_patience_s
        patience = _Backoff(allowed_s)
        while True:
            try:
                answer: dict[str, Any] = await request()
            except ApiRequestError as error:
                if error.status is not None:
                    self._heard_s = time.monotonic()
                if not error.passing or error.status in final:
                    raise
                await patience.wait(
                    error.message.rstrip(".") + f", for {allowed_s:g} s.",
                    error.hint,
                    longest_s=error.retry_after_s or _LONGEST_PAUSE_S,
                )
            else:
                self._heard_s = time.monotonic()
                return answer


class _Backoff:
    """Pauses that grow, and an end."""

    def __init__(self, allowed_s: float) -> None:
        self._until_s = time.monotonic() + allowed_s
        self._pause_s = _FIRST_PAUSE_S
        self._said_s = time.monotonic()

    async def wait(self, message: str, hint: str, longest_s: float) -> None:
        now_s = time.monotonic()
        if now_s >= self._until_s:
            raise EnvironmentRunError(message, hint)
        if now_s - self._said_s >= _SAY_EVERY_S:
            self._said_s = now_s
            logger.warning("still waiting: %s", message)
        await asyncio.sleep(min(self._pause_s, longest_s, max(0.0, self._until_s - now_s)))
        self._pause_s *= 2
