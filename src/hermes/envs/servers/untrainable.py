"""A managed server's face over a server that gives no tokens, and the choice between the two."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hermes.core.sequence import MASKED, MASKED_LOGPROB
from hermes.envs.servers.base import APIServer
from hermes.envs.servers.config import APIServerConfig
from hermes.envs.servers.managed import ManagedServer, SequenceNode

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion
    from openai.types.completion import Completion
    from transformers import PreTrainedTokenizerBase

ALLOW_UNTRAINABLE = "ATROPOS_ALLOW_DUMMY_MANAGED_SERVER"


class DummyManagedServer:
    """The same face over a server that gives no tokens, for making data and for trying things out.

    Every mask is -100 throughout: what it records cannot be trained on, and says so in its metadata.
    """

    def __init__(self, server: APIServer, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        self.server = server
        self.tokenizer = tokenizer
        self.current_nodes: list[SequenceNode] = []

    def reset(self) -> None:
        self.current_nodes = []

    def get_state(self) -> dict[str, Any]:
        return {"nodes": list(self.current_nodes)}

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        answer = await self.server.chat_completion(**kwargs)
        asked = "\n\n".join(f"{message['role']}:{message.get('content')}" for message in kwargs["messages"])
        for choice in answer.choices:
            self._keep(f"{asked}\n\nassistant:{choice.message.content}", choice.finish_reason)
        return answer

    async def completion(self, **kwargs: Any) -> Completion:
        answer = await self.server.completion(**kwargs)
        for choice in answer.choices:
            self._keep(kwargs["prompt"] + choice.text, choice.finish_reason)
        return answer

    def _keep(self, text: str, reason: str | None) -> None:
        ids = list(self.tokenizer.encode(text)) if self.tokenizer else [0]
        self.current_nodes.append(
            SequenceNode(
                full_text=text,
                tokens=ids,
                masked_tokens=[MASKED] * len(ids),
                logprobs=[MASKED_LOGPROB] * len(ids),
                metadata={"finish_reason": reason, "dummy_tokens": True, "trainable": False},
            )
        )


def open_managed(server: Any, **options: Any) -> ManagedServer | DummyManagedServer:
    """A managed server over whatever the environment has."""
    config: APIServerConfig | None = getattr(server, "config", None)
    if config is not None and config.server_type == "openai":
        if os.environ.get(ALLOW_UNTRAINABLE) != "1":
            raise NotImplementedError(
                "a server of type openai gives no token ids, so nothing it answers can be trained on; set "
                f"--openai.server_type to sglang or vllm, or {ALLOW_UNTRAINABLE}=1 to go on without training."
            )
        return DummyManagedServer(server, options.get("tokenizer"))
    return ManagedServer(server, **options)
