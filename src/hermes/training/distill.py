"""On-policy distillation: a teacher says of every token that the policy sampled how likely it finds it.

The teacher is any endpoint that scores a prompt: one that speaks Tinker (a Hermes engine, the managed
service) or one with SGLang's `/generate`. It must have the policy's tokenizer: it is asked in token ids.
Environments may bring the teacher's word along (`distill_token_ids`, `distill_logprobs`); then nobody is
asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from hermes.core.json import JSONObject
from hermes.errors import ProviderError
from hermes.training.client import Connection

if TYPE_CHECKING:
    import httpx2

_TIMEOUT_S = 300.0


class Teacher(Protocol):
    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Logprobs by token, 0 for the first, which nothing predicts."""
        ...


class TinkerTeacher:
    """A base model or checkpoint behind the Tinker API."""

    def __init__(self, connection: Connection, model: str) -> None:
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
            asked = [
                self._sampler.compute_logprobs(tinker.ModelInput.from_ints(list(tokens)))
                for tokens in sequences
            ]
            return [[one or 0.0 for one in future.result()] for future in asked]
        except tinker.TinkerError as error:
            raise ProviderError(f"the teacher at {self._url} failed: {error}") from error


class GenerateTeacher:
    """A server with SGLang's `/generate`."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        import httpx2

        with httpx2.Client(headers=self._headers, timeout=_TIMEOUT_S, trust_env=False) as session:
            try:
                return [
                    self._read(tokens, session.post(f"{self._url}/generate", json=_body(tokens)))
                    for tokens in sequences
                ]
            except httpx2.HTTPError as error:
                raise ProviderError(f"the teacher at {self._url} does not answer: {error}") from error

    def _read(self, tokens: Sequence[int], response: httpx2.Response) -> list[float]:
        status = response.status_code
        if status >= 400:
            raise ProviderError(
                f"the teacher at {self._url} answered {status}: {response.text[:300]}", status=status
            )
        answer = response.json()
        one = answer[0] if isinstance(answer, list) else answer
        told = (one.get("meta_info") or {}).get("input_token_logprobs")
        if told is None or len(told) != len(tokens):
            raise ProviderError(
                f"the teacher at {self._url} gives no logprobs of the prompt",
                "use an SGLang server or a Hermes engine",
            )
        return [0.0, *(float(entry[0]) for entry in told[1:])]


def _body(tokens: Sequence[int]) -> JSONObject:
    return {
        "input_ids": list(tokens),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }


def ask(teacher: Teacher, served: Sequence[JSONObject]) -> list[JSONObject]:
    """The groups with the teacher's word, as environments would bring it; those that have it stay."""
    told = []
    for group in served:
        if group.get("distill_logprobs") is not None:
            told.append(group)
            continue
        known = [tokens for tokens in group["tokens"] if len(tokens) > 1]
        answers = iter(teacher.score(known))
        scores = [next(answers) if len(tokens) > 1 else [0.0] * len(tokens) for tokens in group["tokens"]]
        ids = [[[token] for token in tokens] for tokens in group["tokens"]]
        told.append(
            {
                **group,
                "distill_token_ids": ids,
                "distill_logprobs": [[[one] for one in each] for each in scores],
            }
        )
    return told
