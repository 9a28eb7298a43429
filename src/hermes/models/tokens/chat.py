"""A chat model that speaks tokens: every context grows by appending, and every reply carries its exact ids.

A conversation goes on from the very ids that were sampled; only what is new (the template's own marks, tool
results, user text) is encoded and appended. Nothing sampled is decoded and encoded again. Where the template
would write the history differently from what was said (it drops old thinking, trims white space, closes a
turn with another mark), the prompt is written anew from the template, and the two contexts are separate
training sequences; `envs.sequences` finds that from the recorded ids.

Tools. With the `hermes` parser they are offered and answered as text, the dialect that the rest of Hermes
prompts, parses and trains in. Any other parser names a model's own dialect, so the model's template has to
offer the tools; one that cannot is an error when the model is opened, not a guess.

One instance follows one rollout, its sub-agents included. Tokens are asked of a `TokenSource`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from hermes.core import JSONObject, Message, ModelCall, Role, Sampling
from hermes.errors import ConfigError, ContextOverflowError, ProviderError
from hermes.models.base import ChatReply, ChatRequest, OnDelta, StreamDelta
from hermes.models.parsers import get_parser
from hermes.models.render.prompting import assistant_text, with_tools
from hermes.models.render.template import Rendered, encode, render, result_role, spelled_out

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hermes.models.parsers import ToolCallParser
    from hermes.models.tokens.completions import TokenReply

OWN_DIALECT = "hermes"
_PROBE_TOOL: JSONObject = {
    "name": "probe_tool",
    "description": "Probes.",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer", "description": "A number."}}},
}


class TokenSource(Protocol):
    """Continues a sequence of tokens: a completion endpoint."""

    @property
    def name(self) -> str: ...
    @property
    def base_url(self) -> str: ...
    async def complete_tokens(
        self, prompt_ids: Sequence[int], sampling: Sampling, timeout_s: float | None = None
    ) -> TokenReply: ...
    async def close(self) -> None: ...


@dataclass(frozen=True)
class ChatRenderer:
    """How a model is spoken to: the same for all its rollouts, so found out once."""

    tokenizer: PreTrainedTokenizerBase
    parser: ToolCallParser
    result_role: Role
    native: bool
    """True if the template offers the tools and words their results."""
    context_tokens: int
    """Longest sequence, prompt and answer together."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, parser: str, context_tokens: int) -> ChatRenderer:
        """ConfigError if the tokenizer has no chat template, or one that does not fit the parser."""
        if not tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer {tokenizer.name_or_path} has no chat template.", "Use a model made for chat."
            )
        native = get_parser(parser).name != OWN_DIALECT
        if native and not _offers_tools(tokenizer):
            raise ConfigError(
                f"the template of {tokenizer.name_or_path} does not offer tools, and the parser '{parser}' "
                "reads calls in a model's own form.",
                f"Set tool_call_parser to {OWN_DIALECT}: then tools are offered as text.",
            )
        return cls(tokenizer, get_parser(parser), result_role(tokenizer), native, context_tokens)

    def render(
        self, request: ChatRequest, spoken: Mapping[int, str], settings: JSONObject | None = None
    ) -> Rendered:
        """The prompt; `spoken` is what the model itself said, word for word, by the message's index.

        `settings` are variables of the model's own template, such as enable_thinking.
        """
        messages = [
            Message.assistant(spoken[index]) if index in spoken else message
            for index, message in enumerate(request.messages)
        ]
        if self.native:
            tools = [{"type": "function", "function": tool} for tool in request.tools]
            turns = [self._turn(message) for message in messages]
            return render(self.tokenizer, turns, tools, settings)
        plain = with_tools(messages, request.tools, self.parser, self.result_role)
        turns = [{"role": each.role.value, "content": each.content} for each in plain]
        return render(self.tokenizer, turns, (), settings)

    def _turn(self, message: Message) -> JSONObject:
        turn: JSONObject = {"role": message.role.value, "content": message.content}
        if message.role is Role.ASSISTANT:
            turn["content"] = assistant_text(message, self.parser)
        if message.role is Role.TOOL:
            turn |= {"name": message.name, "tool_call_id": message.tool_call_id}
        return turn

    def decode(self, ids: Sequence[int]) -> str:
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)


@dataclass(frozen=True, slots=True)
class _Context:
    """A conversation up to some point."""

    ids: tuple[int, ...]
    rendered: Rendered
    """The same as text."""
    spoken: Mapping[int, str] = field(default_factory=dict)


class TokenChat:
    """A `ChatModel`; see the module."""

    def __init__(self, source: TokenSource, speech: ChatRenderer) -> None:
        self._source = source
        self._speech = speech
        self._contexts: dict[tuple[Message, ...], _Context] = {}
        """Conversations that end with an answer of ours, by their messages."""

    @property
    def name(self) -> str:
        return self._source.name

    async def complete(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        """Answers once; see `ChatModel`. The answer is reported in one piece."""
        if any(message.images for message in request.messages):
            raise ProviderError(
                f"{self.name} is spoken to in tokens, which hold no images.", "Leave the images out."
            )
        before, prompt = self._prompt(request)
        sampling = replace(request.sampling, max_tokens=self._longest(request.sampling, prompt))
        started_at = time.perf_counter()
        reply = await self._source.complete_tokens(prompt.ids, sampling, request.timeout_s)
        latency_ms = (time.perf_counter() - started_at) * 1000
        text, closing = self._taken_apart(reply.sampled_ids)
        message, finish_reason = self._read(text, reply.finish_reason, request)
        # A conversation that went on is not needed any more as it was.
        self._contexts = {key: value for key, value in self._contexts.items() if value is not before}
        self._contexts[(*request.messages, message)] = _Context(
            ids=(*prompt.ids, *reply.sampled_ids),
            rendered=prompt.rendered + spelled_out(self._speech.tokenizer, text) + Rendered(closing),
            spoken={**prompt.spoken, len(request.messages): text},
        )
        if on_delta:
            on_delta(StreamDelta(text=message.content, reasoning=message.reasoning or ""))
        call = ModelCall(
            model=self.name,
            endpoint=self._source.base_url,
            sampling=sampling,
            finish_reason=finish_reason,
            usage=reply.usage,
            latency_ms=latency_ms,
            cost_usd=reply.cost_usd,
            attempts=reply.attempts,
            raw=reply.raw,
            tokens=reply.trace(prompt.ids),
            parser=self._speech.parser.name if message.tool_calls else None,
        )
        return ChatReply(message, call)

    async def close(self) -> None:
        """The source is shared by many rollouts; whoever opened it closes it."""

    def _prompt(self, request: ChatRequest) -> tuple[_Context | None, _Context]:
        """The context that this request goes on from, if there is one, and the prompt."""
        before = self._latest(request.messages)
        spoken = before.spoken if before else {}
        rendered = self._speech.render(request, spoken)
        tokenizer = self._speech.tokenizer
        if before is not None and rendered.continues(before.rendered):
            new = encode(tokenizer, rendered, len(before.rendered.text))
            return before, _Context((*before.ids, *new), rendered, spoken)
        return before, _Context(tuple(encode(tokenizer, rendered)), rendered, spoken)

    def _latest(self, messages: tuple[Message, ...]) -> _Context | None:
        for end in range(len(messages), 0, -1):
            if messages[end - 1].role is Role.ASSISTANT and messages[:end] in self._contexts:
                return self._contexts[messages[:end]]
        return None

    def _longest(self, sampling: Sampling, prompt: _Context) -> int:
        used, limit = len(prompt.ids), self._speech.context_tokens
        if used >= limit:
            raise ContextOverflowError(
                f"the conversation has {used} tokens, and a sequence may have {limit} with its answer.",
                "Raise max_token_length if the model and the trainer take longer sequences.",
            )
        return min(sampling.max_tokens or limit, limit - used)

    def _taken_apart(self, sampled_ids: Sequence[int]) -> tuple[str, str]:
        """What was said, and the control token that closed it, if one did."""
        last = self._speech.tokenizer.added_tokens_decoder.get(sampled_ids[-1]) if sampled_ids else None
        if last is not None and last.special:
            return self._speech.decode(sampled_ids[:-1]), str(last.content)
        return self._speech.decode(sampled_ids), ""

    def _read(self, text: str, finish_reason: str, request: ChatRequest) -> tuple[Message, str]:
        stops = [place for stop in request.sampling.stop if stop and (place := text.find(stop)) >= 0]
        parsed = self._speech.parser.parse(text[: min(stops)] if stops else text, request.tools)
        message = Message.assistant(parsed.content, reasoning=parsed.reasoning, tool_calls=parsed.tool_calls)
        asks = finish_reason == "stop" and parsed.tool_calls
        return message, "tool_calls" if asks else finish_reason


def _offers_tools(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if the template shows tools and tool results, and leaves the assistant's own words alone."""
    turns: list[JSONObject] = [
        {"role": "user", "content": "probe question"},
        {"role": "assistant", "content": "probe <words> of mine"},
        {"role": "tool", "content": "probe result", "name": "probe_tool", "tool_call_id": "a1B2c3D4e"},
    ]
    try:
        text = render(tokenizer, turns, [{"type": "function", "function": _PROBE_TOOL}]).text
    except ProviderError:
        return False
    return all(words in text for words in ("probe_tool", "probe <words> of mine", "probe result"))
