"""Servers that return token ids: SGLang (and Hermes's own engine) and vLLM.

Chat and completions go to their OpenAI endpoints, tokens and logprobs to `/generate`, or at vLLM to
`/v1/completions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hermes.envs.servers import wire
from hermes.envs.servers.base import APIServer, Sampled
from hermes.envs.servers.config import APIServerConfig, ReasoningConfig
from hermes.errors import ProviderError

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion
    from openai.types.completion import Completion
    from transformers import PreTrainedTokenizerBase


class OpenAIServer(APIServer):
    def __init__(self, config: APIServerConfig, reasoning_config: ReasoningConfig | None = None) -> None:
        super().__init__(config, reasoning_config)
        self._client: AsyncOpenAI | None = None

    @property
    def openai(self) -> AsyncOpenAI:
        """The SDK's client; it does not retry by itself."""
        if self._client is None:
            import openai

            self._client = openai.AsyncOpenAI(
                api_key=self.config.api_key or "none",
                base_url=self.config.base_url or None,
                timeout=self.config.timeout,
                max_retries=0,
            )
        return self._client

    @property
    def health_url(self) -> str:
        return f"{(self.config.base_url or 'https://api.openai.com/v1').rstrip('/')}/models"

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _chat_completion_wrapper(self, **kwargs: Any) -> ChatCompletion:
        completion: ChatCompletion = await self._create(self.openai.chat.completions.create, kwargs)
        return completion

    async def _completion_wrapper(self, **kwargs: Any) -> Completion:
        completion: Completion = await self._create(self.openai.completions.create, kwargs)
        return completion

    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> Sampled:
        raise NotImplementedError(
            "a server of type openai returns no token ids and logprobs; "
            "use an SGLang or vLLM server and set --openai.server_type to sglang or vllm."
        )

    async def _create(self, create: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        """A completion with n choices, also from a server that ignores n."""
        n = kwargs.pop("n", None) or 1
        if n == 1:
            return await create(**kwargs)
        if self.config.n_kwarg_is_ignored:
            return join_choices(await asyncio.gather(*(create(**kwargs) for _ in range(n))))
        completions = [await create(**kwargs, n=n)]
        if missing := n - len(completions[0].choices):
            self.config.n_kwarg_is_ignored = True
            completions += await asyncio.gather(*(create(**kwargs) for _ in range(missing)))
        return join_choices(completions)


def join_choices(completions: Sequence[Any]) -> Any:
    """The first completion with the choices of all, numbered from 0."""
    first, *rest = completions
    for completion in rest:
        first.choices.extend(completion.choices)
    for index, choice in enumerate(first.choices):
        choice.index = index
    return first


class TokenServer(OpenAIServer):
    """The base of the engines: their tokenizer, and requests to `/generate`."""

    def __init__(self, config: APIServerConfig, reasoning_config: ReasoningConfig | None = None) -> None:
        super().__init__(config, reasoning_config)
        self._http: httpx2.AsyncClient | None = None

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        if "_tokenizer" not in vars(self):
            from hermes.envs.tokenise import load_tokenizer

            name = self.config.tokenizer_name
            self._tokenizer = load_tokenizer(name if name != "none" else self.config.model_name)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    @property
    def health_url(self) -> str:
        return f"{self.root}/health"

    async def close(self) -> None:
        await super().close()
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def _generate(self, body: dict[str, Any], path: str = "/generate") -> Any:
        import httpx2

        if self._http is None:
            self._http = httpx2.AsyncClient(timeout=self.config.timeout, trust_env=False)
        headers = {"Authorization": f"Bearer {self.config.api_key}"} if self.config.api_key else {}
        response = await self._http.post(self.root + path, json=body, headers=headers)
        if response.status_code >= 400:
            status = response.status_code
            raise ProviderError(
                f"{self.root}{path} returned {status}: {response.text[:500]}",
                retryable=status in (408, 429) or status >= 500,
                status=status,
            )
        return response.json()

    def prompt_ids(self, kwargs: dict[str, Any]) -> list[int]:
        """`input_ids`, or `prompt` encoded, without a second begin token if the text begins with one."""
        input_ids = kwargs.pop("input_ids", None)
        text = kwargs.pop("prompt", None)
        if input_ids is not None:
            return list(input_ids)
        ids = list(self.tokenizer.encode(text))
        return ids[1:] if len(ids) > 1 and ids[0] == ids[1] == self.tokenizer.bos_token_id else ids


class SGLangServer(TokenServer):
    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> Sampled:
        ids = self.prompt_ids(kwargs)
        return ids, *wire.sglang_completions(await self._generate(wire.sglang_body(ids, kwargs)))

    async def _get_logprobs_wrapper(self, **kwargs: Any) -> dict[str, Any]:
        ids = self.prompt_ids(kwargs)
        response = await self._generate(wire.sglang_prompt_body(ids, _top_k(kwargs)))
        return _prompt_logprobs(ids, *wire.sglang_prompt_logprobs(response))


class VLLMServer(TokenServer):
    """`vllm serve`, or Atropos's server around vLLM, which is recognised by its `/generate`."""

    def __init__(self, config: APIServerConfig, reasoning_config: ReasoningConfig | None = None) -> None:
        super().__init__(config, reasoning_config)
        self._has_generate = True

    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> Sampled:
        ids = self.prompt_ids(kwargs)
        response = await self._atropos_generate(wire.atropos_vllm_body(ids, kwargs))
        if response is not None:
            return ids, *wire.atropos_vllm_completions(response)
        body = wire.vllm_body(self.config.model_name, ids, kwargs)
        return ids, *wire.vllm_completions(await self._generate(body, "/v1/completions"))

    async def _get_logprobs_wrapper(self, **kwargs: Any) -> dict[str, Any]:
        ids, top_k = self.prompt_ids(kwargs), _top_k(kwargs)
        response = await self._atropos_generate(wire.atropos_vllm_prompt_body(ids, top_k))
        if response is not None:
            return _prompt_logprobs(ids, *wire.atropos_vllm_prompt_logprobs(response))
        body = wire.vllm_prompt_body(self.config.model_name, ids, top_k)
        response = await self._generate(body, "/v1/completions")
        return _prompt_logprobs(ids, *wire.vllm_prompt_logprobs(response, top_k))

    async def _atropos_generate(self, body: dict[str, Any]) -> Any:
        """None: the server has no `/generate`."""
        if not self._has_generate:
            return None
        try:
            return await self._generate(body)
        except ProviderError as error:
            if error.status not in (404, 405):
                raise
            self._has_generate = False
            return None


def _top_k(kwargs: dict[str, Any]) -> int:
    return int(kwargs.get("top_k") or kwargs.get("top_logprobs") or 1)


def _prompt_logprobs(
    ids: list[int], topk_ids: list[list[int]], logprobs: list[list[float]]
) -> dict[str, Any]:
    return {
        "prompt_tokens": ids,
        "prompt_topk_token_ids": topk_ids,
        "prompt_topk_logprobs": logprobs,
    }


SERVER_TYPES: dict[str, type[OpenAIServer]] = {
    "openai": OpenAIServer,
    "sglang": SGLangServer,
    "vllm": VLLMServer,
}
