"""On-policy distillation: a teacher model gives the logprob of every token that the policy sampled.

The teacher is any endpoint that scores a prompt: the Tinker API (a Hermes engine, the managed service) or
SGLang's `/generate`. It must have the policy's tokenizer, because sequences are sent as token ids. A group in
which the environment sent the teacher's logprobs (`distill_token_ids`, `distill_logprobs`) is not scored
again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from hermes.core.json import JSONObject
from hermes.errors import ProviderError
from hermes.models.remote.failures import retry_after_s
from hermes.models.remote.retry import RetryPolicy, with_retries
from hermes.training.service.client import ServiceConnection

if TYPE_CHECKING:
    import httpx2

KEY_VARIABLE = "HERMES_TEACHER_KEY"
"""For a teacher behind `/generate`."""
GENERATE = "/generate"
_PATIENCE_S = 300.0
_CONCURRENCY = 16
"""Sequences that are scored at the same time."""
_RETRIES = RetryPolicy(max_retries=100, cap_s=10.0)
"""More than the patience allows, which is the limit that counts."""


class Teacher(Protocol):
    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Logprobs by token, 0 for the first, which nothing predicts."""
        ...


class TinkerTeacher:
    """A base model or checkpoint behind the Tinker API."""

    def __init__(self, connection: ServiceConnection, model: str) -> None:
        import tinker

        self._url = connection.url
        service = tinker.ServiceClient(base_url=connection.base_url, api_key=connection.key)
        path = model.startswith("tinker://")
        try:
            self._sampler = service.create_sampling_client(
                model_path=model if path else None, base_model=None if path else model
            )
        except tinker.TinkerError as error:
            raise ProviderError(f"the teacher at {self._url} refused: {error}", "check its model") from error

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        import tinker

        try:
            futures = [
                self._sampler.compute_logprobs(tinker.ModelInput.from_ints(list(tokens)))
                for tokens in sequences
            ]
            return [[logprob or 0.0 for logprob in future.result()] for future in futures]
        except tinker.TinkerError as error:
            raise ProviderError(f"the teacher at {self._url} failed: {error}") from error


class GenerateTeacher:
    """A server with SGLang's `/generate`. Transient failures are retried until the patience is spent."""

    def __init__(
        self, url: str, key: str | None = None, model: str | None = None, patience_s: float = _PATIENCE_S
    ) -> None:
        """`model`: an adapter of that server; None: its default."""
        self._url = url.rstrip("/").removesuffix(GENERATE).removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._model = model
        self._patience_s = patience_s

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return asyncio.run(self._score(sequences))

    async def _score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        import httpx2

        slots = asyncio.Semaphore(_CONCURRENCY)
        async with httpx2.AsyncClient(
            headers=self._headers, timeout=self._patience_s, trust_env=False
        ) as session:

            async def score_one(tokens: Sequence[int]) -> list[float]:
                async with slots:
                    return await self._score_with_retries(session, tokens)

            return list(await asyncio.gather(*map(score_one, sequences)))

    async def _score_with_retries(self, session: httpx2.AsyncClient, tokens: Sequence[int]) -> list[float]:
        try:
            async with asyncio.timeout(self._patience_s) as scope:
                logprobs, _ = await with_retries(
                    lambda: self._request(session, tokens), _RETRIES, scope, random.Random()
                )
                return logprobs
        except TimeoutError as error:
            raise ProviderError(
                f"the teacher at {self._url} did not respond within {self._patience_s:g} s"
            ) from error

    async def _request(self, session: httpx2.AsyncClient, tokens: Sequence[int]) -> list[float]:
        import httpx2

        try:
            response = await session.post(f"{self._url}{GENERATE}", json=_body(tokens, self._model))
        except httpx2.HTTPError as error:
            reason = f"{error or type(error).__name__}"
            raise ProviderError(
                f"the teacher at {self._url} does not respond: {reason}", retryable=True
            ) from error
        status = response.status_code
        if status >= 400:
            raise ProviderError(
                f"the teacher at {self._url} returned {status}: {response.text[:300]}",
                f"its key is read from {KEY_VARIABLE}" if status in (401, 403) else "",
                status=status,
                retryable=status in (408, 409, 429) or status >= 500,
                retry_after_s=retry_after_s(response.headers, time.time()),
            )
        return self._parse(tokens, response)

    def _parse(self, tokens: Sequence[int], response: httpx2.Response) -> list[float]:
        content = response.json()
        completion = content[0] if isinstance(content, list) else content
        entries = (completion.get("meta_info") or {}).get("input_token_logprobs")
        if entries is None or len(entries) != len(tokens):
            raise ProviderError(
                f"the teacher at {self._url} returned no logprobs of the prompt",
                "use an SGLang server or a Hermes engine",
            )
        return [0.0, *(float(entry[0]) for entry in entries[1:])]


def _body(tokens: Sequence[int], model: str | None) -> JSONObject:
    return {
        "input_ids": list(tokens),
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": 0,
        **({"lora_path": model} if model else {}),
    }


def add_teacher_logprobs(teacher: Teacher, served: Sequence[JSONObject]) -> list[JSONObject]:
    """The groups with the teacher's logprobs, in the format in which environments send them."""
    unscored = [group for group in served if group.get("distill_logprobs") is None]
    sequences = [tokens for group in unscored for tokens in group["tokens"] if len(tokens) > 1]
    logprobs = iter(teacher.score(sequences)) if sequences else iter(())
    return [
        group if group.get("distill_logprobs") is not None else _with_logprobs(group, logprobs)
        for group in served
    ]


def _with_logprobs(group: JSONObject, logprobs: Iterator[list[float]]) -> JSONObject:
    scores = [next(logprobs) if len(tokens) > 1 else [0.0] * len(tokens) for tokens in group["tokens"]]
    return {
        **group,
        "distill_token_ids": [[[token] for token in tokens] for tokens in group["tokens"]],
        "distill_logprobs": [[[logprob] for logprob in row] for row in scores],
    }
