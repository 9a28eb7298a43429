"""An HTTP client for the trajectory API as environments use it: one connection pool, gzip, typed errors.

Requests are not retried. The caller decides about a retry by the fields of `TrajectoryApiError`.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from hermes.envs.groups import encode
from hermes.serving.trajectory_api import TIMEOUT_S, auth_headers, parse_response, translated_errors

if TYPE_CHECKING:
    import httpx2

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
