"""Rewards over HTTP: the status of a server that the policy built, and the score of a reward model.

For `http_status` a server that does not listen, or does not speak HTTP, is the policy's failure: the task was
to build one. A name that does not resolve, or a timeout, is a failure of the grader. So is every failed
request to a reward model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermes.core import JSON, JSONObject
from hermes.envs.rewards.result import GraderError, RewardResult, failed, passed

if TYPE_CHECKING:
    import httpx2

_CONNECT_S = 30.0
_SCORE_KEYS = ("data", "score")


async def http_status(url: str, expected: int = 200, *, timeout_s: float = 10.0) -> RewardResult:
    """1 if a GET of the URL returns the expected status. Redirects are not followed."""
    import httpx2

    try:
        async with (
            httpx2.AsyncClient(timeout=timeout_s, trust_env=False) as client,
            client.stream("GET", url) as response,
        ):
            status = response.status_code
    except httpx2.RemoteProtocolError as error:
        return failed(f"{url} does not speak HTTP: {error}")
    except (httpx2.ConnectError, httpx2.ReadError) as error:
        if _nothing_listens(error):
            return failed(f"nothing listens at {url}")
        raise GraderError(f"the request to {url} failed: {error}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise GraderError(f"the request to {url} failed: {type(error).__name__} {error}") from error
    return passed() if status == expected else failed(f"{url} returned {status}, not {expected}")


def _nothing_listens(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ConnectionRefusedError | ConnectionResetError):
            return True
        error = error.__cause__ or error.__context__
    return False


class RewardModel:
    """A client of a reward model behind vLLM's pooling API: a conversation in, one score out.

    A score may take long: the model may share slow cores with everything that asks for one at the same time.
    """

    def __init__(self, base_url: str, model: str, api_key: str = "", timeout_s: float = 600.0) -> None:
        self._url = f"{base_url.rstrip('/')}/pooling"
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._client: httpx2.AsyncClient | None = None

    async def grade(self, messages: Sequence[JSONObject]) -> RewardResult:
        """The sigmoid of the model's score, between 0 and 1; the part `raw` is the score itself."""
        raw = await self._score(messages)
        return RewardResult(_sigmoid(raw), {"raw": raw, "success": float(raw > 0)})

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _score(self, messages: Sequence[JSONObject]) -> float:
        import httpx2

        if self._client is None:
            timeout = httpx2.Timeout(self._timeout_s, connect=_CONNECT_S)
            self._client = httpx2.AsyncClient(timeout=timeout, headers=self._headers)
        try:
            response = await self._client.post(
                self._url, json={"model": self._model, "messages": list(messages)}
            )
            response.raise_for_status()
            return _number(response.json())
        except httpx2.HTTPError as error:
            raise GraderError(
                f"the reward model at {self._url} failed: {type(error).__name__} {error}",
                "start it, or set --env.reward_model_url",
            ) from error
        except ValueError as error:
            raise GraderError(f"the reward model at {self._url} returned no score: {error}") from error


def _number(reply: JSON) -> float:
    """The one number of {"data": [{"data": [x]}]}, however deep; ValueError if there is not exactly one."""
    value = reply
    while isinstance(value, dict | list):
        if isinstance(value, list):
            if len(value) != 1:
                raise ValueError(f"expected one number, found a list of {len(value)}")
            value = value[0]
        else:
            value = next((value[key] for key in _SCORE_KEYS if key in value), None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected one number, found {value!r}")
    return float(value)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
