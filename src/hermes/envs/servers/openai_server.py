"""A server with OpenAI's chat and completions endpoints. They return no token ids: nothing is token-exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hermes.envs.servers.base import APIServer, Sampled
from hermes.envs.servers.config import APIServerConfig, ReasoningConfig

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion
    from openai.types.completion import Completion


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
