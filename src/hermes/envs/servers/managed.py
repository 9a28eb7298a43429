"""A server that keeps the exact tokens of what it was asked and what it answered.

A conversation grows only by appending: the ids that were sampled, as they were sampled, then the template's
own tokens for what was said since. Nothing sampled is decoded and encoded again, so no end token is doubled
and no word is split another way. Mask and logprobs of earlier turns are carried along. Where the template
would write the history differently (dropping old thinking, say), the prompt no longer begins with what was
seen before, and a new sequence starts instead of one that the model never saw.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import BaseModel, Field

from hermes.core.sequence import MASKED, MASKED_LOGPROB
from hermes.envs.servers import rendering
from hermes.envs.servers.base import APIServer
from hermes.envs.servers.engines import TokenServer
from hermes.envs.servers.wire import finish_reason

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion
    from openai.types.completion import Completion
    from transformers import PreTrainedTokenizerBase

_THINK, _HELD_THINK = ("<think>", "</think>"), ("\ue001think\ue001", "\ue001/think\ue001")


class SequenceNode(BaseModel):
    """A sequence; its three arrays are of one length."""

    full_text: str
    tokens: list[int]
    masked_tokens: list[int] = Field(default_factory=list)
    """The id where it was sampled, -100 elsewhere."""
    logprobs: list[float] = Field(default_factory=list)
    """Of sampled tokens; 1.0 elsewhere."""
    metadata: dict[str, Any] = Field(default_factory=dict)


class ManagedServer:
    """Wraps a server that samples tokens. Its state is what `get_state` gives until `reset`."""

    def __init__(
        self,
        server: APIServer,
        tokenizer: PreTrainedTokenizerBase | None = None,
        track_tree: bool = False,
        tool_parser: str | None = None,
        preserve_think_blocks: bool = False,
    ) -> None:
        self.server = server
        if tokenizer is None and not isinstance(server, TokenServer):
            raise NotImplementedError("a managed server needs a tokenizer, or a server that has one.")
        self.tokenizer: PreTrainedTokenizerBase = tokenizer or server.tokenizer  # type: ignore[attr-defined]
        self.track_tree = track_tree
        self._tool_parser_name = tool_parser
        self._preserve_think_blocks = preserve_think_blocks
        self.reset()

    def reset(self) -> None:
        self.current_nodes: list[SequenceNode] = []
        self.sequences: dict[str, SequenceNode] = {}
        """Every sequence so far by its text: what a prompt may extend."""
        self._answers: dict[str, int] = {}
        """How many answers there are in each of them."""
        self._said: dict[str, str] = {}
        """An answer as it was given → as it was sampled, without its end token."""

    def get_state(self) -> dict[str, Any]:
        """`nodes`: the sequences, each as long as it has grown. With `track_tree`: all there ever were."""
        if self.track_tree:
            return {"sequences": dict(self.sequences), "tree": dict(self.sequences)}
        return {"nodes": list(self.current_nodes)}

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        from openai.types.chat import ChatCompletion

        messages, tools = kwargs.pop("messages", []), kwargs.pop("tools", None)
        if kwargs.pop("tool_choice", "auto") == "none":
            tools = None
        prompt, told = self._render(messages, tools)
        nodes, sampled = await self._sample(prompt, kwargs, told)
        choices = []
        for index, (node, ids) in enumerate(zip(nodes, sampled, strict=True)):
            message, reason = self._message(ids, tools, node.metadata["finish_reason"])
            choices.append({"index": index, "finish_reason": reason, "message": message})
        return ChatCompletion.model_validate(self._answer("chat.completion", choices, nodes, sampled))

    async def completion(self, **kwargs: Any) -> Completion:
        from openai.types.completion import Completion

        prompt = rendering.PromptPieces(((kwargs.pop("prompt"), False),))
        nodes, sampled = await self._sample(prompt, kwargs, told=0)
        choices = [
            {
                "index": index,
                "finish_reason": node.metadata["finish_reason"],
                "text": self.tokenizer.decode(ids, skip_special_tokens=True),
            }
            for index, (node, ids) in enumerate(zip(nodes, sampled, strict=True))
        ]
        return Completion.model_validate(self._answer("text_completion", choices, nodes, sampled))

    async def get_logprobs(self, **kwargs: Any) -> dict[str, Any]:
        return await self.server.get_logprobs(**kwargs)

    async def tokens_and_logprobs_completion(self, **kwargs: Any) -> Any:
        return await self.server.tokens_and_logprobs_completion(**kwargs)

    async def _sample(
        self, prompt: rendering.PromptPieces, kwargs: dict[str, Any], told: int
    ) -> tuple[list[SequenceNode], list[list[int]]]:
        """The new sequences, and what was sampled for each. `told`: earlier answers in the prompt."""
        text = prompt.text
        before = self._extended_by(text, told)
        if before is None:
            before, new = _masked(SequenceNode(full_text="", tokens=[])), self._first_ids(prompt)
        else:
            new = prompt.after(len(before.full_text)).encode(self.tokenizer)
        kwargs.pop("model", None)
        _, sampled, logprobs, reasons = await self.server.tokens_and_logprobs_completion(
            **kwargs, input_ids=before.tokens + new
        )
        nodes = [
            SequenceNode(
                full_text=text + self._decoded(ids),
                tokens=[*before.tokens, *new, *ids],
                masked_tokens=[*before.masked_tokens, *[MASKED] * len(new), *ids],
                logprobs=[*before.logprobs, *[MASKED_LOGPROB] * len(new), *values],
                metadata={"finish_reason": finish_reason(reason)},
            )
            for ids, values, reason in zip(sampled, logprobs, reasons, strict=True)
        ]
        self._keep(before, nodes, told + 1)
        return nodes, sampled

    def _keep(self, before: SequenceNode, nodes: list[SequenceNode], answers: int) -> None:
        place = next((at for at, node in enumerate(self.current_nodes) if node is before), None)
        if place is None:
            self.current_nodes += nodes
        else:
            self.current_nodes[place : place + 1] = nodes
        for node in nodes:
            self.sequences[node.full_text] = node
            self._answers[node.full_text] = answers

    def _extended_by(self, text: str, told: int) -> SequenceNode | None:
        """The longest sequence that the prompt begins with. One that has grown since can still be extended:
        that is a second branch of the conversation.

        If the prompt repeats more answers than that sequence has, the template wrote the others differently.
        They are trained on where they were sampled; here everything but the new answer is masked.
        """
        fitting = [node for node in self.sequences.values() if text.startswith(node.full_text)]
        node = max(fitting, key=lambda node: len(node.full_text), default=None)
        if node is not None and told > self._answers[node.full_text]:
            return _masked(node)
        return node

    def _first_ids(self, prompt: rendering.PromptPieces) -> list[int]:
        """A begin token comes first if the tokenizer wants one, and not twice if the template wrote it."""
        ids = prompt.encode(self.tokenizer)
        begin = self.tokenizer.bos_token_id
        wanted = begin is not None and self.tokenizer("")["input_ids"][:1] == [begin]
        return [begin, *ids] if wanted and ids[:1] != [begin] else ids

    def _decoded(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _render(
        self, messages: Sequence[Mapping[str, Any]], tools: Any
    ) -> tuple[rendering.PromptPieces, int]:
        """The prompt, and how many earlier answers it repeats."""
        shown, trusted = [], set()
        for place, message in enumerate(messages):
            sampled = self._said.get(_key(message)) if message.get("role") == "assistant" else None
            if sampled is not None:
                trusted.add(place)
                message = {"role": "assistant", "content": sampled}
            shown.append(self._thinking_held(message) if self._preserve_think_blocks else message)
        prompt = rendering.render(self.tokenizer, shown, tools, frozenset(trusted))
        if self._preserve_think_blocks:
            pieces = ((_replaced(text, _HELD_THINK, _THINK), spelled) for text, spelled in prompt.pieces)
            prompt = rendering.PromptPieces(tuple(pieces))
        return prompt, len(trusted)

    @staticmethod
    def _thinking_held(message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Templates that drop old thinking do not recognise it like this."""
        if message.get("role") != "assistant" or not isinstance(message.get("content"), str):
            return message
        return {**message, "content": _replaced(message["content"], _THINK, _HELD_THINK)}

    def _message(self, ids: list[int], tools: Any, reason: str) -> tuple[dict[str, Any], str]:
        """The answer as a chat message, and its finish reason."""
        body = ids[:-1] if ids and ids[-1] in self.tokenizer.all_special_ids else ids
        sampled = self._decoded(body)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": str(self.tokenizer.decode(body, skip_special_tokens=True)),
        }
        if tools and self._tool_parser_name:
            from hermes.models.parsers import get_parser

            parsed = get_parser(self._tool_parser_name).parse(sampled, tools)
            if parsed.tool_calls and not any(call.error for call in parsed.tool_calls):
                message |= {
                    "content": parsed.content or None,
                    "tool_calls": [
                        {
                            "id": call.id,
                            "type": "function",
                            "function": {"name": call.name, "arguments": call.arguments},
                        }
                        for call in parsed.tool_calls
                    ],
                }
                reason = "tool_calls"
        self._said[_key(message)] = sampled
        return message, reason if reason in ("stop", "length", "tool_calls", "content_filter") else "stop"

    def _answer(
        self, kind: str, choices: list[dict[str, Any]], nodes: list[SequenceNode], sampled: list[list[int]]
    ) -> dict[str, Any]:
        made = sum(map(len, sampled))
        asked = len(nodes[0].tokens) - len(sampled[0]) if nodes else 0
        return {
            "id": uuid4().hex,
            "object": kind,
            "created": int(time.time()),
            "model": self.server.config.model_name,
            "choices": choices,
            "usage": {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made},
        }


def _masked(node: SequenceNode) -> SequenceNode:
    """The same tokens, of which none is trained on."""
    length = len(node.tokens)
    return SequenceNode(
        full_text=node.full_text,
        tokens=node.tokens,
        masked_tokens=[MASKED] * length,
        logprobs=[MASKED_LOGPROB] * length,
    )


def _key(message: Mapping[str, Any]) -> str:
    """Tells answers apart; the form in which a caller hands tool calls back may vary, their content not."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call["function"] if isinstance(call, Mapping) else call.function
        named = function if isinstance(function, Mapping) else vars(function)
        calls.append([named["name"], named["arguments"]])
    return json.dumps([message.get("content") or "", calls])


def _replaced(text: str, old: tuple[str, ...], new: tuple[str, ...]) -> str:
    for from_, to in zip(old, new, strict=True):
        text = text.replace(from_, to)
    return text
