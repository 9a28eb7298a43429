"""A managed server records the exact tokens of its prompts and of the sampled answers.

A conversation grows by appending: the sampled ids as they were sampled, then the template's tokens for the
messages since. Sampled tokens are never decoded and encoded again, so no end token is doubled and no word is
split in another way. Masks and logprobs of earlier turns are carried along. Where the template renders the
history differently (it drops old thinking, say), the prompt does not continue the recorded sequence, and a
new sequence starts.

The recorded sequences are a tree: a child continues the text of its parent.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import BaseModel, Field

from hermes.core.sequence import MASKED, MASKED_LOGPROB
from hermes.envs.servers.base import APIServer
from hermes.envs.servers.config import APIServerConfig
from hermes.envs.servers.engines import TokenServer
from hermes.envs.servers.wire import finish_reason
from hermes.models.render.escape import Rendered
from hermes.models.render.template import encode, render

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion
    from openai.types.completion import Completion
    from transformers import PreTrainedTokenizerBase

ALLOW_DUMMY = "ATROPOS_ALLOW_DUMMY_MANAGED_SERVER"
_THINK, _ESCAPED_THINK = ("<think>", "</think>"), ("\ue001think\ue001", "\ue001/think\ue001")
_FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter")


def open_managed(server: Any, **options: Any) -> ManagedServer | DummyManagedServer:
    """A managed server over the environment's server; NotImplementedError if that returns no token ids."""
    config: APIServerConfig | None = getattr(server, "config", None)
    if config is None or config.server_type != "openai":
        return ManagedServer(server, **options)
    if os.environ.get(ALLOW_DUMMY) != "1":
        raise NotImplementedError(
            "a server of type openai returns no token ids, so nothing it answers can be trained on; set "
            f"--openai.server_type to sglang or vllm, or {ALLOW_DUMMY}=1 to run without training."
        )
    return DummyManagedServer(server, options.get("tokenizer"), bool(options.get("track_tree")))


class ManagedServer:
    """Wraps a server that samples tokens and records every sequence until `reset`."""

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
        self._tree = SequenceTree()
        self._sampled_texts: dict[str, str] = {}
        """Key of a returned message → its text as it was sampled, without the end token."""

    @property
    def sequences(self) -> dict[str, SequenceNode]:
        """Every sequence so far, by its text."""
        return self._tree.nodes()

    def get_state(self) -> dict[str, Any]:
        """`nodes`: the sequences at their full length. With `track_tree`: also those they grew from."""
        if self.track_tree:
            return {"sequences": self.sequences, "tree": self.sequences}
        return {"nodes": list(self.current_nodes)}

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        from openai.types.chat import ChatCompletion

        messages, tools = kwargs.pop("messages", []), kwargs.pop("tools", None)
        if kwargs.pop("tool_choice", "auto") == "none":
            tools = None
        prompt, answer_count = self._render(messages, tools)
        nodes, sampled = await self._sample(prompt, kwargs, answer_count)
        choices = []
        for index, (node, ids) in enumerate(zip(nodes, sampled, strict=True)):
            message, reason = self._message(ids, tools, node.metadata["finish_reason"])
            choices.append({"index": index, "finish_reason": reason, "message": message})
        response = self._response("chat.completion", choices, nodes, sampled)
        completion = ChatCompletion.model_validate(response)
        for choice in completion.choices:
            if choice.message.tool_calls:
                calls: list[Any] = [CallFields(call.model_dump()) for call in choice.message.tool_calls]
                choice.message.tool_calls = calls
        return completion

    async def completion(self, **kwargs: Any) -> Completion:
        from openai.types.completion import Completion

        prompt = Rendered(kwargs.pop("prompt"))
        nodes, sampled = await self._sample(prompt, kwargs, answer_count=0)
        choices = [
            {
                "index": index,
                "finish_reason": node.metadata["finish_reason"],
                "text": self.tokenizer.decode(ids, skip_special_tokens=True),
            }
            for index, (node, ids) in enumerate(zip(nodes, sampled, strict=True))
        ]
        return Completion.model_validate(self._response("text_completion", choices, nodes, sampled))

    async def get_logprobs(self, **kwargs: Any) -> dict[str, Any]:
        return await self.server.get_logprobs(**kwargs)

    async def tokens_and_logprobs_completion(self, **kwargs: Any) -> Any:
        return await self.server.tokens_and_logprobs_completion(**kwargs)

    async def _sample(
        self, prompt: Rendered, kwargs: dict[str, Any], answer_count: int
    ) -> tuple[list[SequenceNode], list[list[int]]]:
        """The new sequences and the ids sampled for each. `answer_count`: earlier answers in the prompt.

        The prompt extends the longest recorded sequence that it begins with. A sequence that was extended
        before can be extended again: that is a second branch of the conversation. If the prompt contains more
        answers than that sequence, the template rendered the later ones differently. Those are trained on in
        the sequence they were sampled in, so here everything but the new answer is masked.
        """
        parent = self._tree.longest_prefix(prompt.text)
        if parent is self._tree.root:
            new_ids = self._first_ids(prompt)
        else:
            new_ids = encode(self.tokenizer, prompt, len(parent.node.full_text))
        prefix = parent.node.masked() if answer_count > parent.answer_count else parent.node
        kwargs.pop("model", None)
        _, sampled, logprobs, reasons = await self.server.tokens_and_logprobs_completion(
            **kwargs, input_ids=prefix.tokens + new_ids
        )
        nodes = []
        for ids, values, reason in zip(sampled, logprobs, reasons, strict=True):
            node = prefix.extended(prompt.text + self._decode(ids), new_ids, ids, values)
            node.metadata["finish_reason"] = finish_reason(reason)
            nodes.append(node)
        self._replace_current(prefix, nodes)
        for node in nodes:
            self._tree.add(parent, node, answer_count + 1)
        return nodes, sampled

    def _replace_current(self, prefix: SequenceNode, nodes: list[SequenceNode]) -> None:
        """Puts the nodes in the place of the sequence they extend; at the end if that was extended before."""
        end = len(self.current_nodes)
        index = next((index for index, node in enumerate(self.current_nodes) if node is prefix), end)
        self.current_nodes[index : index + 1] = nodes

    def _first_ids(self, prompt: Rendered) -> list[int]:
        """The prompt of a new sequence, with the tokenizer's begin token unless the template wrote it."""
        ids = encode(self.tokenizer, prompt)
        begin = self.tokenizer.bos_token_id
        adds_begin = begin is not None and self.tokenizer("")["input_ids"][:1] == [begin]
        return [begin, *ids] if adds_begin and ids[:1] != [begin] else ids

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> tuple[Rendered, int]:
        """The prompt, and the number of sampled answers in it."""
        turns, trusted = [], set()
        for index, message in enumerate(messages):
            sampled = self._sampled_texts.get(_key(message)) if message.get("role") == "assistant" else None
            if sampled is not None:
                trusted.add(index)
                message = {"role": "assistant", "content": sampled}
            turns.append(_escape_thinking(message) if self._preserve_think_blocks else message)
        ends_with_answer = bool(turns) and turns[-1].get("role") == "assistant"
        prompt = render(
            self.tokenizer, turns, tools, trusted=trusted, add_generation_prompt=not ends_with_answer
        )
        if self._preserve_think_blocks:
            prompt = Rendered.join(
                (_replace_all(text, _ESCAPED_THINK, _THINK), literal) for text, literal in prompt.pieces()
            )
        return prompt, len(trusted)

    def _message(self, ids: list[int], tools: Any, reason: str) -> tuple[dict[str, Any], str]:
        """The sampled answer as a chat message, and its finish reason."""
        body = ids[:-1] if ids and ids[-1] in self.tokenizer.all_special_ids else ids
        sampled = self._decode(body)
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
        self._sampled_texts[_key(message)] = sampled
        return message, reason if reason in _FINISH_REASONS else "stop"

    def _response(
        self, kind: str, choices: list[dict[str, Any]], nodes: list[SequenceNode], sampled: list[list[int]]
    ) -> dict[str, Any]:
        completion_tokens = sum(map(len, sampled))
        prompt_tokens = len(nodes[0].tokens) - len(sampled[0]) if nodes else 0
        return {
            "id": uuid4().hex,
            "object": kind,
            "created": int(time.time()),
            "model": self.server.config.model_name,
            "choices": choices,
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
        }


class CallFields(dict[str, Any]):
    """A tool call as a dict, as the original has it; its fields are attributes too, as in OpenAI's client."""

    def __getattr__(self, name: str) -> Any:
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(f"a tool call has no field '{name}'") from None
        return CallFields(value) if isinstance(value, dict) else value

    def model_dump(self, **options: Any) -> dict[str, Any]:
        return dict(self)


class ManagedServerAdapter:
    """A managed server in the shape of an AsyncOpenAI client, for libraries that take one.

    It has `chat.completions.create`, `completions.create` and `base_url`.
    """

    def __init__(self, managed_server: ManagedServer, base_url: str) -> None:
        self.base_url = base_url
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=managed_server.chat_completion))
        self.completions = SimpleNamespace(create=managed_server.completion)

    async def post(self, path: str, body: dict[str, Any], cast_to: type) -> Any:
        raise NotImplementedError(f"a managed server cannot post to '{path}'; use chat completions.")

    def copy(self, **kwargs: Any) -> ManagedServerAdapter:
        raise NotImplementedError("a managed server's client cannot be copied.")


def _key(message: Mapping[str, Any]) -> str:
    """Identifies an answer by its content and calls: callers return tool calls in various forms."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call["function"] if isinstance(call, Mapping) else call.function
        fields = function if isinstance(function, Mapping) else vars(function)
        calls.append([fields["name"], fields["arguments"]])
    return json.dumps([message.get("content") or "", calls])


def _escape_thinking(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Hides thinking from templates that would drop it."""
    if message.get("role") != "assistant" or not isinstance(message.get("content"), str):
        return message
    return {**message, "content": _replace_all(message["content"], _THINK, _ESCAPED_THINK)}


def _replace_all(text: str, olds: tuple[str, ...], news: tuple[str, ...]) -> str:
    for old, new in zip(olds, news, strict=True):
        text = text.replace(old, new)
    return text


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


class SequenceNode(BaseModel):
    """A recorded sequence. `tokens`, `masked_tokens` and `logprobs` have the same length."""

    full_text: str
    tokens: list[int]
    masked_tokens: list[int] = Field(default_factory=list)
    """The token id where it was sampled, -100 elsewhere."""
    logprobs: list[float] = Field(default_factory=list)
    """The logprob where it was sampled, 1.0 elsewhere."""
    metadata: dict[str, Any] = Field(default_factory=dict)

    def masked(self) -> SequenceNode:
        """The same tokens, none of them trained on."""
        return SequenceNode(
            full_text=self.full_text,
            tokens=self.tokens,
            masked_tokens=[MASKED] * len(self.tokens),
            logprobs=[MASKED_LOGPROB] * len(self.tokens),
        )

    def extended(
        self, text: str, prompt_ids: Sequence[int], sampled_ids: Sequence[int], logprobs: Sequence[float]
    ) -> SequenceNode:
        """This sequence, then new prompt tokens, then sampled tokens; `text` is the text of all of it."""
        return SequenceNode(
            full_text=text,
            tokens=[*self.tokens, *prompt_ids, *sampled_ids],
            masked_tokens=[*self.masked_tokens, *[MASKED] * len(prompt_ids), *sampled_ids],
            logprobs=[*self.logprobs, *[MASKED_LOGPROB] * len(prompt_ids), *logprobs],
        )


@dataclass(slots=True, eq=False)
class Branch:
    """A sequence and the sequences that continue it."""

    node: SequenceNode
    answer_count: int
    """Number of sampled answers in the sequence."""
    children: dict[str, Branch] = field(default_factory=dict)
    """By the text that each adds."""


class SequenceTree:
    """All sequences of a managed server. `root` is the empty sequence."""

    def __init__(self) -> None:
        self.root = Branch(SequenceNode(full_text="", tokens=[]), answer_count=0)
        self._branches: dict[str, Branch] = {}

    def nodes(self) -> dict[str, SequenceNode]:
        """The sequences by their text."""
        return {text: branch.node for text, branch in self._branches.items()}

    def longest_prefix(self, text: str) -> Branch:
        """The longest sequence that the text begins with. Only the branches that match are followed."""
        longest, pending = self.root, [self.root]
        while pending:
            branch = pending.pop()
            length = len(branch.node.full_text)
            if length >= len(longest.node.full_text):
                longest = branch
            pending += [child for suffix, child in branch.children.items() if text.startswith(suffix, length)]
        return longest

    def add(self, parent: Branch, node: SequenceNode, answer_count: int) -> None:
        """Adds a sequence that continues `parent`; it replaces a sequence of the same text."""
        branch = self._branches.get(node.full_text)
        if branch is None:
            suffix = node.full_text[len(parent.node.full_text) :]
            self._branches[node.full_text] = parent.children[suffix] = Branch(node, answer_count)
        else:
            branch.node, branch.answer_count = node, answer_count
