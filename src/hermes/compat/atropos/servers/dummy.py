"""The interface of a managed server over a server that returns no token ids, for trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hermes.compat.atropos.servers.sequences import SequenceNode
from hermes.core.sequence import MASKED, MASKED_LOGPROB
from hermes.envs.servers.base import APIServer

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion
    from openai.types.completion import Completion
    from transformers import PreTrainedTokenizerBase


class DummyManagedServer:
    """Records sequences that environments can work with and that no trainer of ours takes.

    The token ids are those of the text encoded again (without a tokenizer, its bytes). The answer is
    unmasked, because environments drop a rollout that trains nothing. No token has a logprob, so that
    `core.sequence` rejects the sequence, and `metadata["trainable"]` is False.
    """

    def __init__(
        self,
        server: APIServer,
        tokenizer: PreTrainedTokenizerBase | None = None,
        track_tree: bool = False,
    ) -> None:
        self.server = server
        self.tokenizer = tokenizer
        self.track_tree = track_tree
        self.current_nodes: list[SequenceNode] = []

    @property
    def sequences(self) -> dict[str, SequenceNode]:
        """Every sequence so far, by its text."""
        return {node.full_text: node for node in self.current_nodes}

    def reset(self) -> None:
        self.current_nodes = []

    def get_state(self) -> dict[str, Any]:
        if self.track_tree:
            return {"sequences": self.sequences, "tree": self.sequences}
        return {"nodes": list(self.current_nodes)}

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        response = await self.server.chat_completion(**kwargs)
        prompt = "\n\n".join(f"{message['role']}:{message.get('content')}" for message in kwargs["messages"])
        for choice in response.choices:
            self._record(f"{prompt}\n\nassistant:", choice.message.content or "", choice.finish_reason)
        return response

    async def completion(self, **kwargs: Any) -> Completion:
        response = await self.server.completion(**kwargs)
        for choice in response.choices:
            self._record(kwargs["prompt"], choice.text or "", choice.finish_reason)
        return response

    async def get_logprobs(self, **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError("a server of type openai returns no prompt logprobs.")

    def _record(self, prompt: str, answer: str, finish_reason: str | None) -> None:
        prompt_ids, answer_ids = self._encode(prompt), self._encode(answer)
        node = SequenceNode(
            full_text=prompt + answer,
            tokens=[*prompt_ids, *answer_ids],
            masked_tokens=[*[MASKED] * len(prompt_ids), *answer_ids],
            logprobs=[MASKED_LOGPROB] * (len(prompt_ids) + len(answer_ids)),
            metadata={"finish_reason": finish_reason or "stop", "dummy_tokens": True, "trainable": False},
        )
        self.current_nodes.append(node)

    def _encode(self, text: str) -> list[int]:
        if self.tokenizer is None:
            return list(text.encode())
        return list(self.tokenizer.encode(text, add_special_tokens=False))
