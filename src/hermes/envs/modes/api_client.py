"""The trajectory API as an environment asks it: one HTTP session, cheap compression, typed failures.

One request is one try. Whether to try again is for the caller to decide, by what `ApiRequestError` says.
"""

from __future__ import annotations

import gzip
import json
import os
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from hermes.envs.groups import encode
from hermes.errors import HermesError

if TYPE_CHECKING:
    import httpx2

TOKEN_VARIABLE = "HERMES_API_TOKEN"
_TIMEOUT_S = 60.0
_WORTH_COMPRESSING_BYTES = 1024


class ApiRequestError(HermesError):
    """The trajectory API did not do what was asked."""

    def __init__(
        self, message: str, hint: str = "", *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        """None: nothing answered."""
        self.retry_after_s = retry_after_s

    @property
    def passing(self) -> bool:
        """It may go away by itself: nobody there, or a server that is full or broken for the moment."""
        return self.status is None or self.status == 429 or self.status >= 500


class TrajectoryClient:
    """Speaks to one API, ours or the original."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._session: httpx2.AsyncClient | None = None

    async def register_env(self, registration: dict[str, Any]) -> dict[str, Any]:
        return await self._ask("POST", "/register-env", registration)

    async def disconnect_env(self, env_id: int) -> None:
        await self._ask("POST", "/disconnect-env", {"env_id": env_id})

    async def info(self) -> dict[str, Any]:
        return await self._ask("GET", "/info")

    async def wandb_info(self) -> dict[str, Any]:
        return await self._ask("GET", "/wandb_info")

    async def status_env(self, env_id: int) -> dict[str, Any]:
        return await self._ask("GET", "/status-env", {"env_id": env_id})

    async def post_groups(self, groups: Any, key: str) -> dict[str, Any]:
        """One group or a list of them. The same key again is taken by the server as the same post."""
        path = "/scored_data_list" if isinstance(groups, list) else "/scored_data"
        return await self._ask("POST", path, groups, {"Idempotency-Key": key})

    async def close(self) -> None:
        if self._session is not None:
            await self._session.aclose()
            self._session = None

    async def _ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        import asyncio

        import httpx2

        content, sent = b"", dict(headers or {})
        if body is not None:
            content, encoding = await asyncio.to_thread(_encoded, body)
            sent |= {"Content-Type": "application/json", **encoding}
        try:
            response = await self._open().request(method, self.url + path, content=content, headers=sent)
        except httpx2.InvalidURL as error:
            raise ApiRequestError(f"'{self.url}' is no URL: {error}.", _HINT, status=400) from error
        except httpx2.UnsupportedProtocol as error:
            raise ApiRequestError(f"'{self.url}' is no http URL.", _HINT, status=400) from error
        except httpx2.HTTPError as error:
            why = str(error) or type(error).__name__
            raise ApiRequestError(
                f"no answer from the trajectory API at {self.url}: {why}.", _HINT
            ) from error
        return self._read(path, response)

    def _open(self) -> httpx2.AsyncClient:
        if self._session is None:
            import httpx2

            token = os.environ.get(TOKEN_VARIABLE)
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            self._session = httpx2.AsyncClient(headers=headers, timeout=_TIMEOUT_S, trust_env=False)
        return self._session

    def _read(self, path: str, response: httpx2.Response) -> dict[str, Any]:
        if response.status_code >= 400:
            raise ApiRequestError(
                f"the trajectory API at {self.url} answered {response.status_code} to {path}: "
                f"{response.text[:500]}",
                f"It wants its token: set {TOKEN_VARIABLE}." if response.status_code == 401 else "",
                status=response.status_code,
                retry_after_s=_seconds(response.headers.get("retry-after")),
            )
        try:
            answer = json.loads(response.content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ApiRequestError(
                f"what answers at {self.url}{path} is not a trajectory API.",
                _HINT,
                status=response.status_code,
            )
        return answer


_HINT = "Start it with 'hermes api', or set --env.rollout_server_url or RL_API_URL to where it is."


def new_key() -> str:
    return uuid4().hex


def _encoded(body: Any) -> tuple[bytes, dict[str, str]]:
    content = encode(body).encode()
    if len(content) < _WORTH_COMPRESSING_BYTES:
        return content, {}
    return gzip.compress(content, compresslevel=1), {"Content-Encoding": "gzip"}


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None
