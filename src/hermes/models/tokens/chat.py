"""A chat model that samples tokens: every context grows by appending, and every reply carries its exact ids.

A conversation continues from the ids that were sampled; only what is new (the template's special tokens, tool
results, user text) is encoded and appended. Sampled ids are never decoded and encoded again. Where the
template renders the history differently from what was sampled (it drops old thinking, trims white space,
closes a turn with another token), the prompt is encoded anew, and the two contexts are separate training
sequences; `envs.agent.sequences` detects that from the recorded ids.

An answer that comes back is recognised as `core.history` says, so a client may reorder the keys of arguments,
repair broken ones, trim text and drop thinking, and the model still sees what it sampled. A client that sends
other arguments than the model wrote begins a context of its own; so does one that offers other tools. A
history can be continued any number of times: by a retry, a fork, a sub-agent's twin.

One `TokenChat` follows one rollout, its sub-agents included. It samples from a `TokenSource`, which rollouts
share.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from hermes.core import Message, ModelCall, Role, Sampling, ToolCall, ordered_json
from hermes.core.history import Echo, compare, digest, extend, message_key
from hermes.errors import ContextOverflowError, ProviderError
from hermes.models.base import ChatReply, ChatRequest, OnDelta, StreamDelta
from hermes.models.render.escape import Rendered
from hermes.models.render.template import encode, render_content, seen_thinking

if TYPE_CHECKING:
    from hermes.models.render.chat import ChatRenderer
    from hermes.models.tokens.completions import TokenReply


class TokenSource(Protocol):
    """A completion endpoint that continues a sequence of token ids."""

    @property
    def name(self) -> str: ...
    @property
    def base_url(self) -> str: ...
    async def complete_tokens(
        self, prompt_ids: Sequence[int], sampling: Sampling, timeout_s: float | None = None
    ) -> TokenReply: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Prompt:
    """The prompt as the model is shown it."""

    ids: tuple[int, ...]
    rendered: Rendered
    """The same as text."""
    anchor: _Answer | None
    """The answer that the ids continue."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """A sampled answer with the context that it was sampled in, as an addition to an earlier one's."""

    previous: _Answer | None
    new_ids: tuple[int, ...]
    new_rendered: Rendered
    position: int
    """The index of the message in its conversation."""
    message: Message
    text: str
    """As it was sampled."""
    history: _Answer | None
    """The answer before it in the conversation, whether or not the context continues it."""

    def context(self) -> tuple[tuple[int, ...], Rendered]:
        """The ids and the text up to the end of the answer."""
        additions: list[_Answer] = []
        answer: _Answer | None = self
        while answer is not None:
            additions.append(answer)
            answer = answer.previous
        ids: list[int] = []
        rendered = Rendered("")
        for addition in reversed(additions):
            ids += addition.new_ids
            rendered += addition.new_rendered
        return tuple(ids), rendered

    def with_earlier(self) -> Iterator[_Answer]:
        """The answers of the conversation that were sampled here, the latest first."""
        answer: _Answer | None = self
        while answer is not None:
            yield answer
            answer = answer.history


@dataclass
class EchoCounts:
    """Counts how the answers that were sent back compare; each answer counts once for each form."""

    counts: Counter[Echo] = field(default_factory=Counter)
    foreign: int = 0
    """Assistant messages that no model sampled here."""
    _seen: set[tuple[int, Echo]] = field(default_factory=set)
    _foreign_seen: set[bytes] = field(default_factory=set)

    def count(self, answer: _Answer, echo: Echo) -> None:
        if (id(answer), echo) not in self._seen:
            self._seen.add((id(answer), echo))
            self.counts[echo] += 1

    def count_foreign(self, path: bytes) -> None:
        if path not in self._foreign_seen:
            self._foreign_seen.add(path)
            self.foreign += 1


class TokenChat:
    """A `ChatModel`; see the module."""

    def __init__(self, source: TokenSource, renderer: ChatRenderer) -> None:
        self._source = source
        self.price = getattr(source, "price", None)
        self._renderer = renderer
        self._answers: dict[bytes, _Answer] = {}
        """By the identity of the conversation that ends with them."""
        self._calls = 0
        self._issued = 0
        """Tool calls in all answers."""
        self.echoes = EchoCounts()

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def context_tokens(self) -> int:
        """Longest sequence, prompt and answer together."""
        return self._renderer.context_tokens

    async def complete(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        """One answer; see `ChatModel`. `on_delta` receives it in one piece."""
        if any(message.images for message in request.messages):
            raise ProviderError(
                f"{self.name} is sampled by token ids, which cannot hold images.", "Leave the images out."
            )
        anchor, path = self._known_history(request)
        prompt = self._prompt(request, anchor)
        call_number, self._calls = self._calls, self._calls + 1
        sampling = replace(
            request.sampling,
            max_tokens=self._max_tokens(request.sampling, prompt),
            seed=_seed(request.sampling.seed, call_number),
        )
        started_at = time.perf_counter()
        reply = await self._source.complete_tokens(prompt.ids, sampling, request.timeout_s)
        latency_ms = (time.perf_counter() - started_at) * 1000
        message, finish_reason = self._keep(request, reply, prompt, anchor, path)
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
            tokens=reply.tokens,
            parser=self._renderer.parser.name if message.tool_calls else None,
        )
        input_messages = seen_thinking(
            request.messages, lambda messages: self._renderer.render(replace(request, messages=messages), {})
        )
        return ChatReply(message, call, input_messages)

    def count_tokens(self, request: ChatRequest) -> int:
        """The length of the prompt that this request would have now."""
        anchor, _ = self._known_history(request)
        return len(self._prompt(request, anchor).ids)

    async def close(self) -> None:
        """Does nothing: the source is shared by many rollouts, and is closed by the code that opened it."""

    def _known_history(self, request: ChatRequest) -> tuple[_Answer | None, bytes]:
        """The last of the answers sampled here that the conversation has, and the conversation's identity.

        An answer that the client edited is text of the client's.
        """
        path = digest("tools", ordered_json(list(request.tools)))
        anchor: _Answer | None = None
        for message in request.messages:
            path = extend(path, message_key(message))
            if message.role is not Role.ASSISTANT:
                continue
            answer = self._answers.get(path)
            if answer is None:
                self.echoes.count_foreign(path)
                continue
            echo = compare(answer.message, message)
            self.echoes.count(answer, echo)
            if echo is Echo.EDITED:
                path = extend(path, digest("edited", *(call.arguments for call in message.tool_calls)))
            else:
                anchor = answer
        return anchor, path

    def _prompt(self, request: ChatRequest, anchor: _Answer | None) -> _Prompt:
        answers = anchor.with_earlier() if anchor else ()
        sampled_texts = {answer.position: answer.text for answer in answers}
        rendered = self._renderer.render(request, sampled_texts)
        tokenizer = self._renderer.tokenizer
        if anchor is not None:
            ids, before = anchor.context()
            if rendered.continues(before):
                return _Prompt((*ids, *encode(tokenizer, rendered, len(before.text))), rendered, anchor)
        return _Prompt(tuple(encode(tokenizer, rendered)), rendered, None)

    def _keep(
        self, request: ChatRequest, reply: TokenReply, prompt: _Prompt, anchor: _Answer | None, path: bytes
    ) -> tuple[Message, str]:
        """The answer as a message, from which the conversation can go on."""
        sampled_ids = reply.tokens.sampled_ids
        text, end_token = self._split_end_token(sampled_ids)
        message, finish_reason = self._parse(text, reply.finish_reason, request)
        sampled = render_content(self._renderer.tokenizer, text) + Rendered(end_token)
        prefix = 0, 0
        if prompt.anchor is not None:
            ids, before = prompt.anchor.context()
            prefix = len(ids), len(before.text)
        self._answers[extend(path, message_key(message))] = _Answer(
            prompt.anchor,
            (*prompt.ids[prefix[0] :], *sampled_ids),
            prompt.rendered.after(prefix[1]) + sampled,
            len(request.messages),
            message,
            text,
            anchor,
        )
        return message, finish_reason

    def _max_tokens(self, sampling: Sampling, prompt: _Prompt) -> int:
        used, limit = len(prompt.ids), self._renderer.context_tokens
        if used >= limit:
            raise ContextOverflowError(
                f"the conversation has {used} tokens; the limit is {limit}, including the answer.",
                "Raise max_token_length if the model and the trainer accept longer sequences.",
            )
        return min(sampling.max_tokens or limit, limit - used)

    def _split_end_token(self, sampled_ids: Sequence[int]) -> tuple[str, str]:
        """The sampled text, and the special token that ended it, if one did."""
        last = self._renderer.tokenizer.added_tokens_decoder.get(sampled_ids[-1]) if sampled_ids else None
        if last is not None and last.special:
            return self._renderer.decode(sampled_ids[:-1]), str(last.content)
        return self._renderer.decode(sampled_ids), ""

    def _parse(self, text: str, finish_reason: str, request: ChatRequest) -> tuple[Message, str]:
        stops = [index for stop in request.sampling.stop if stop and (index := text.find(stop)) >= 0]
        parsed = self._renderer.parser.parse(text[: min(stops)] if stops else text, request.tools)
        calls = self._numbered(parsed.tool_calls)
        message = Message.assistant(parsed.content, reasoning=parsed.reasoning, tool_calls=calls)
        calls_tools = finish_reason == "stop" and parsed.tool_calls
        return message, "tool_calls" if calls_tools else finish_reason

    def _numbered(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """The calls with ids that count those of the rollout, where the model's format has none.

        No two calls of a rollout have one id: clients send answers back in other words, but with their ids.
        The model reads the ids with the results. Drawn at random they made equal rollouts differ, so that
        neither the sampler nor the trainer could compute what they share once.
        """
        if self._renderer.native:
            return tuple(calls)
        first, self._issued = self._issued, self._issued + len(calls)
        return tuple(replace(call, id=f"call_{number}") for number, call in enumerate(calls, start=first))


def _seed(seed: int | None, call_number: int) -> int | None:
    """The seed of a call: the request's for the first of a rollout, one made of it for each later one.

    With the same seed a call would draw the same numbers as the one before, and twins would be one answer.
    """
    if seed is None or not call_number:
        return seed
    hashed = blake2b(f"{seed}:{call_number}".encode(), digest_size=4).digest()
    return int.from_bytes(hashed, "big") >> 1
