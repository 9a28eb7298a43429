"""The interface of a managed server over a server that returns no token ids, for trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hermes.compat.atropos.servers.sequences import SequenceNode
from hermes.envs.servers.base import APIServer

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion
    from openai.types.completion import Completion
    from transformers import PreTrainedTokenizerBase


class DummyManagedServer:
    """Records sequences that cannot be trained on: all tokens are masked, `metadata["trainable"]` is False.

    The token ids are those of the text encoded again; without a tokenizer a single 0.
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
        response = await self.server.chat_completion(**kwargs)
        prompt = "\n\n".join(f"{message['role']}:{message.get('content')}" for message in kwargs["messages"])
        for choice in response.choices:
            self._record(f"{prompt}\n\nassistant:{choice.message.content}", choice.finish_reason)
        return response

    async def completion(self, **kwargs: Any) -> Completion:
        response = await self.server.completion(**kwargs)
        for choice in response.choices:
            self._record(kwargs["prompt"] + choice.text, choice.finish_reason)
        return response

    def _record(self, text: str, finish_reason: str | None) -> None:
        ids = list(self.tokenizer.encode(text)) if self.tokenizer else [0]
        node = SequenceNode(full_text=text, tokens=ids).masked()
        node.metadata = {"finish_reason": finish_reason, "dummy_tokens": True, "trainable": False}
        self.current_nodes.append(node)
