"""An HTTP client for the trajectory API as environments use it: one connection pool, gzip, typed errors.

Requests are not retried. The caller decides about a retry by the fields of `ApiRequestError`.
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
_MIN_COMPRESSED_BYTES = 1024


class ApiRequestError(HermesError):
    """A request to the trajectory API failed."""

    def __init__(
        self, message: str, hint: str = "", *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        """The HTTP status; None: there was no response."""
        self.retry_after_s = retry_after_s

    @property
    def retryable(self) -> bool:
        """Whether a later attempt may succeed: the API is not reachable, busy, or failed internally."""
        return self.status is None or self.status == 429 or self.status >= 500


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

        import httpx2

        content, all_headers = b"", dict(headers or {})
        if body is not None:
            content, encoding = await asyncio.to_thread(_encode_body, body)
            all_headers |= {"Content-Type": "application/json", **encoding}
        try:
            response = await self._connect().request(
                method, self.url + path, content=content, headers=all_headers
            )
        except httpx2.InvalidURL as error:
            raise ApiRequestError(f"'{self.url}' is not a URL: {error}.", _HINT, status=400) from error
        except httpx2.UnsupportedProtocol as error:
            raise ApiRequestError(f"'{self.url}' is not an http URL.", _HINT, status=400) from error
        except httpx2.HTTPError as error:
            cause = str(error) or type(error).__name__
            raise ApiRequestError(
                f"no response from the trajectory API at {self.url}: {cause}.", _HINT
            ) from error
        return self._parse(path, response)

    def _connect(self) -> httpx2.AsyncClient:
        if self._session is None:
            import httpx2

            token = os.environ.get(TOKEN_VARIABLE)
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            self._session = httpx2.AsyncClient(headers=headers, timeout=_TIMEOUT_S, trust_env=False)
        return self._session

    def _parse(self, path: str, response: httpx2.Response) -> dict[str, Any]:
        if response.status_code >= 400:
            raise ApiRequestError(
                f"the trajectory API at {self.url} responded to {path} with {response.status_code}: "
                f"{response.text[:500]}",
                f"It requires a token: set {TOKEN_VARIABLE}." if response.status_code == 401 else "",
                status=response.status_code,
                retry_after_s=_parse_seconds(response.headers.get("retry-after")),
            )
        try:
            body = json.loads(response.content)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise ApiRequestError(
                f"the server at {self.url}{path} is not a trajectory API.", _HINT, status=response.status_code
            )
        return body


_HINT = "Start it with 'hermes api', or set --env.rollout_server_url or RL_API_URL to its address."


def new_key() -> str:
    return uuid4().hex


def _encode_body(body: Any) -> tuple[bytes, dict[str, str]]:
    content = encode(body).encode()
    if len(content) < _MIN_COMPRESSED_BYTES:
        return content, {}
    return gzip.compress(content, compresslevel=1), {"Content-Encoding": "gzip"}


def _parse_seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None
