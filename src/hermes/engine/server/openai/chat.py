"""POST /v1/chat/completions.

The conversation is written by the model's own template, tools are offered and read in the dialect of the
server's tool-call parser, and thinking comes apart as `reasoning_content`. Logprobs are those of the
distribution that each token was drawn from; a stream that asks for alternatives comes in one go at the end.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hermes.core.ids import new_id
from hermes.engine.server.openai.backend import OpenAIBackend
from hermes.engine.server.openai.messages import call_to_wire, read_messages, read_tools
from hermes.engine.server.openai.output_parser import DeltaStreamer, OutputParser, ParsedOutput
from hermes.engine.server.openai.sampling import (
    SampledToken,
    ending_of,
    params_of,
    sample,
    sample_live,
    sample_request,
    weights_of,
)
from hermes.engine.server.openai.schema import ChatCompletions, read_asked
from hermes.engine.server.openai.stream import event_stream
from hermes.engine.server.openai.text import (
    Detokenizer,
    IncrementalDetokenizer,
    RenderedPrompt,
    StopCondition,
    alternatives,
)
from hermes.engine.server.openai.usage import usage_of
from hermes.engine.server.responses import as_json
from hermes.engine.types import SampledSequence, SampleRequest


@dataclass(frozen=True)
class ChatExchange:
    """One request, read."""

    asked: ChatCompletions
    speaker: Detokenizer
    prompt: RenderedPrompt
    ending: StopCondition
    splitter: OutputParser
    request: SampleRequest
    header: dict[str, Any]

    def envelope(self, kind: str, version: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        metadata = {"weight_version": version}
        return {**self.header, "object": kind, "choices": choices, "metadata": metadata}

    def prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": self.prompt.ids} if self.asked.return_token_ids else {}

    def logprobs(self, sequence: SampledSequence, start: int = 0) -> dict[str, Any] | None:
        """Of the tokens from `start` on, if they were asked for."""
        if not self.asked.logprobs:
            return None
        return {
            "content": [self._entry(sequence, at) for at in range(start, len(sequence.tokens))],
            "refusal": None,
        }

    def _entry(self, sequence: SampledSequence, at: int) -> dict[str, Any]:
        likeliest = alternatives(sequence, at, self.asked.top_logprobs or 0)
        top = [self.speaker.entry(token, logprob) for token, logprob in likeliest]
        entry = self.speaker.entry(int(sequence.tokens[at]), float(sequence.logprobs[at]))
        return {**entry, "top_logprobs": top}


class Chat:
    def __init__(self, state: OpenAIBackend, speaker: Detokenizer) -> None:
        self._state = state
        self._engine = state.engine
        self._speaker = speaker

    async def complete(self, request: Request) -> Response:
        exchange = self._read(await read_asked(request, ChatCompletions))
        if exchange.asked.stream:
            return await event_stream(request, self._chunks(exchange))
        async with weights_of(self._state, exchange.asked.model) as weights:
            (result,) = await sample(request, self._engine, weights.policy_id, [exchange.request])
        choices = [_choice(exchange, index, one) for index, one in enumerate(result.sequences)]
        answer = exchange.envelope("chat.completion", weights.version, choices) | exchange.prompt_ids()
        return as_json({**answer, "usage": usage_of([exchange.request], [result])})

    def _read(self, asked: ChatCompletions) -> ChatExchange:
        tools = read_tools(asked.tools, asked.tool_choice)
        settings = asked.chat_template_kwargs or {}
        prompt = self._speaker.chat_prompt(read_messages(asked.messages), tools, settings)
        spec = self._engine.spec
        ending = ending_of(asked, spec.eos_ids)
        longest = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
        params = params_of(asked, ending, longest, asked.seed)
        topk = (asked.top_logprobs or 0) if asked.logprobs else 0
        request = sample_request(prompt.ids, params, asked.n or 1, topk, spec.max_length)
        splitter = OutputParser(self._speaker.speech.parser, tools, prompt.thinking)
        header = {"id": f"chatcmpl-{new_id()}", "created": int(time.time()), "model": asked.model}
        return ChatExchange(asked, self._speaker, prompt, ending, splitter, request, header)

    async def _chunks(self, exchange: ChatExchange) -> AsyncGenerator[dict[str, Any]]:
        streams = [_ChatChoiceStream(exchange, index) for index in range(exchange.request.num_samples)]
        async with weights_of(self._state, exchange.asked.model) as weights:
            events = sample_live(self._engine, weights.policy_id, [exchange.request])

            def chunk(choices: list[dict[str, Any]]) -> dict[str, Any]:
                return exchange.envelope("chat.completion.chunk", weights.version, choices)

            async with aclosing(events):
                begun = False
                async for event in events:
                    if not begun:
                        begun = True
                        yield chunk([stream.opening() for stream in streams]) | exchange.prompt_ids()
                    if isinstance(event, SampledToken):
                        if piece := streams[event.sample].push(event.id, event.logprob):
                            yield chunk([piece])
                        continue
                    for stream, sequence in zip(streams, event.result.sequences, strict=True):
                        yield chunk([stream.end(sequence)])
                    if exchange.asked.stream_options and exchange.asked.stream_options.include_usage:
                        yield chunk([]) | {"usage": usage_of([exchange.request], [event.result])}


def _choice(exchange: ChatExchange, index: int, sequence: SampledSequence) -> dict[str, Any]:
    said = exchange.splitter.whole(
        exchange.speaker.text(sequence.tokens.tolist(), exchange.ending, special=True)
    )
    message: dict[str, Any] = {"role": "assistant", "content": said.content or (None if said.calls else "")}
    if said.reasoning:
        message["reasoning_content"] = said.reasoning
    if said.calls:
        message["tool_calls"] = [call_to_wire(call) for call in said.calls]
    choice = {
        "index": index,
        "message": message,
        "logprobs": exchange.logprobs(sequence),
        "finish_reason": _finish_reason(sequence, said),
    }
    return choice | _token_ids(exchange, sequence.tokens.tolist())


def _finish_reason(sequence: SampledSequence, said: ParsedOutput) -> str:
    return "tool_calls" if said.calls and sequence.stop_reason == "stop" else sequence.stop_reason


def _token_ids(exchange: ChatExchange, tokens: Sequence[int]) -> dict[str, Any]:
    return {"token_ids": list(tokens)} if exchange.asked.return_token_ids else {}


class _ChatChoiceStream:
    """One choice as it grows, in the pieces that a client puts together again."""

    def __init__(self, exchange: ChatExchange, index: int) -> None:
        self._exchange = exchange
        self._index = index
        self._text = IncrementalDetokenizer(exchange.speaker.tokenizer, exchange.ending, special=True)
        self._teller = DeltaStreamer(exchange.splitter)
        self._told = 0
        """Tokens that have been heard of."""

    def opening(self) -> dict[str, Any]:
        return self._piece({"role": "assistant", "content": ""})

    def push(self, token: int, logprob: float) -> dict[str, Any] | None:
        """What a token adds that can be told already; None: nothing."""
        self._told += 1
        delta = _delta(self._teller.so_far(self._text.push(token)))
        asked = self._exchange.asked
        if not delta and not asked.logprobs and not asked.return_token_ids:
            return None
        logprobs = None
        if asked.logprobs:
            entry = self._exchange.speaker.entry(token, logprob)
            logprobs = {"content": [{**entry, "top_logprobs": []}], "refusal": None}
        return self._piece(delta, logprobs) | _token_ids(self._exchange, [token])

    def end(self, sequence: SampledSequence) -> dict[str, Any]:
        exchange = self._exchange
        said = self._teller.end(
            exchange.speaker.text(sequence.tokens.tolist(), exchange.ending, special=True)
        )
        delta = _delta(said)
        if said.calls:
            delta["tool_calls"] = [{"index": at, **call_to_wire(call)} for at, call in enumerate(said.calls)]
        piece = self._piece(delta, exchange.logprobs(sequence, self._told))
        piece["finish_reason"] = _finish_reason(sequence, said)
        return piece | _token_ids(exchange, sequence.tokens[self._told :].tolist())

    def _piece(self, delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


def _delta(said: ParsedOutput) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    if said.content:
        delta["content"] = said.content
    if said.reasoning:
        delta["reasoning_content"] = said.reasoning
    return delta
