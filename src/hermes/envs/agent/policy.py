"""The model that an environment's rollouts run on, from the server settings Atropos has for it.

With `sglang` (SGLang, the Hermes engine) and `vllm` requests carry token ids, so rollouts are token-exact.
`openai` is any chat API; a rollout there is exact only if the server returns its tokens. A model in this
process (`hermes/smollm2`, or a folder, at the address `local`) needs no server and returns exact tokens.

A rollout uses one server, the one with most free slots when it began. Each of its calls takes one of that
server's slots, so that weights, and slots reserved for evaluation, apply to agents too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from hermes.config.environment import RL_POLICY_VARIABLE
from hermes.config.providers import CUSTOM, ModelTarget
from hermes.config.settings import LOCAL, ProviderSettings, http_url
from hermes.envs.servers.config import APIServerConfig, ServerBaseline
from hermes.errors import ConfigError
from hermes.models.base import ChatModel, ChatReply, ChatRequest, OnDelta
from hermes.models.usage import price_at

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hermes.config.load import Config
    from hermes.envs.servers.base import APIServer
    from hermes.models.render.chat import ChatRenderer
    from hermes.models.tokens.chat import TokenSource

Chat = Callable[[int | None], ChatModel]
"""A model for one rollout, given the trainer's limit on the length of a sequence, in tokens."""
_POLICY = "policy"
"""The engine's name of the newest weights of a run."""
_LONGEST_TOKENS = 1 << 20
"""Above this a tokenizer's stated length is a placeholder for 'no limit'."""


class RolloutPolicy(Protocol):
    """Creates the model of each rollout."""

    def rollout_model(self, limit_tokens: int | None) -> ChatModel: ...
    async def close(self) -> None: ...


class PolicyServers:
    """All servers of an environment; connections are shared by all rollouts."""

    def __init__(
        self,
        config: Config,
        servers: Sequence[APIServer],
        parser: str,
        tokenizer: Callable[[], PreTrainedTokenizerBase],
    ) -> None:
        if not servers:
            raise ConfigError("the environment has no model server.", "Give one with --openai.base_url.")
        self._config = config
        self._parser = parser
        self._tokenizer = tokenizer
        self._renderer: ChatRenderer | None = None
        self._open: list[TokenSource | ChatModel] = []
        self._chats = [(server, self._chat(server.config)) for server in servers]

    def rollout_model(self, limit_tokens: int | None) -> ChatModel:
        """The model for one rollout; closing it is not needed."""
        server, chat = max(self._chats, key=lambda pair: pair[0].slots(None).free)
        return SlottedChat(chat(limit_tokens), server)

    async def close(self) -> None:
        for model in self._open:
            await model.close()
        self._open.clear()

    def _chat(self, server: APIServerConfig) -> Chat:
        if server.base_url == LOCAL:
            return self._shared(self._local(server))
        target = _target(server)
        price = price_at(self._config.settings, target)
        if server.server_type == "openai":
            from hermes.models.remote.openai_chat import OpenAIChat

            return self._shared(OpenAIChat(target, price))
        from hermes.models.tokens.completions import CompletionModel, GenerateModel

        source: TokenSource
        source = (
            GenerateModel(target, price) if server.server_type == "sglang" else CompletionModel(target, price)
        )
        self._open.append(source)
        return lambda limit_tokens: self._token_chat(source, limit_tokens)

    def _shared(self, model: ChatModel) -> Chat:
        self._open.append(model)
        return lambda limit_tokens: model

    def _local(self, server: APIServerConfig) -> ChatModel:
        from hermes.models.local.chat import LocalChat

        return LocalChat.open(server.model_name.removeprefix("hermes/"), self._config.home)

    def _token_chat(self, source: TokenSource, limit_tokens: int | None) -> ChatModel:
        from hermes.models.render.chat import ChatRenderer
        from hermes.models.tokens.chat import TokenChat

        if self._renderer is None:
            tokenizer = self._tokenizer()
            longest = int(min(tokenizer.model_max_length, _LONGEST_TOKENS))
            self._renderer = ChatRenderer.of(tokenizer, self._parser, longest)
        longest = min(limit_tokens or _LONGEST_TOKENS, self._renderer.context_tokens)
        return TokenChat(source, replace(self._renderer, context_tokens=longest))


class SlottedChat:
    """A model each call of which takes a slot of its server."""

    def __init__(self, model: ChatModel, server: APIServer) -> None:
        self.model = model
        self.price = getattr(model, "price", None)
        self._server = server

    @property
    def name(self) -> str:
        return self.model.name

    async def complete(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        async with self._server.slots(None):
            return await self.model.complete(request, on_delta)

    async def close(self) -> None:
        """Does nothing: the model is shared by rollouts, and closed by the policy."""


def without_local_probes(
    configs: ServerBaseline | list[APIServerConfig],
) -> ServerBaseline | list[APIServerConfig]:
    """The same, without health checks of models that are in this process."""
    if isinstance(configs, APIServerConfig):
        return without_local_probes([configs]) if configs.base_url == LOCAL else configs
    if isinstance(configs, ServerBaseline):
        return configs
    return [
        config.model_copy(update={"health_check": False}) if config.base_url == LOCAL else config
        for config in configs
    ]


def _target(server: APIServerConfig) -> ModelTarget:
    try:
        url = http_url(server.base_url or "")
    except ValueError as error:
        raise ConfigError(
            f"the model server's base_url is '{server.base_url}'; expected {error}.",
            "Give it with --openai.base_url.",
        ) from error
    profile = ProviderSettings(
        base_url=url,
        max_concurrency=max(1, server.num_max_requests_at_once),
        timeout_s=max(1, server.timeout),
    )
    key = (server.api_key or "").strip() or None
    label = os.environ.get(RL_POLICY_VARIABLE) if server.model_name == _POLICY else None
    return ModelTarget(CUSTOM, server.model_name, url, None, key, profile, label)
