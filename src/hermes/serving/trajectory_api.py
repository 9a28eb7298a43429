"""Every client of the trajectory API shares this: its token, its responses and its errors.

The environment's client is asynchronous (`envs.modes.api_session`), the trainer's is not
(`training.data.api`). Both call the same HTTP library through these functions, so that a failure has one
type and one text. Not here: retries, which differ between the two.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError

if TYPE_CHECKING:
    import httpx2

DEFAULT_URL = "http://127.0.0.1:8000"
TOKEN_VARIABLE = "HERMES_API_TOKEN"
TIMEOUT_S = 60.0
_HINT = (
    "start it with: hermes api; another address is set by RL_API_URL, by --api-url of a trainer, or by "
    "--env.rollout_server_url of an environment"
)


class TrajectoryApiError(HermesError):
    """The trajectory API cannot be reached, or refused a request."""

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


def auth_headers() -> dict[str, str]:
    token = os.environ.get(TOKEN_VARIABLE)
    return {"Authorization": f"Bearer {token}"} if token else {}


@contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """Raises TrajectoryApiError instead of the HTTP library's errors."""
    import httpx2

    try:
        yield
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        raise TrajectoryApiError(
            f"'{url}' is not an http URL: {error}",
            f"write it like {DEFAULT_URL}, where 'hermes api' listens",
            status=400,
        ) from error
    except httpx2.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise TrajectoryApiError(f"no response from the trajectory API at {url}: {reason}", _HINT) from error


def parse_response(url: str, path: str, response: httpx2.Response) -> dict[str, Any]:
    """The JSON object that the API returned. TrajectoryApiError: an error status, or another server."""
    if response.status_code >= 400:
        is_auth_error = response.status_code in (401, 403)
        raise TrajectoryApiError(
            f"the trajectory API at {url} returned {response.status_code} for {path}: {response.text[:500]}",
            f"it requires a token: set {TOKEN_VARIABLE}" if is_auth_error else "",
            status=response.status_code,
            retry_after_s=_parse_seconds(response.headers.get("retry-after")),
        )
    try:
        content = response.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise TrajectoryApiError(f"the server at {url} is not a trajectory API", _HINT, status=400)
    return content


def _parse_seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None
