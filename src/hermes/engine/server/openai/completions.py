"""POST /v1/completions: prompts as text or as token ids, one or many.

Ids go in as they are and come out as they were sampled (`return_token_ids`). `echo` is not offered. Logprobs
are those of the distribution that each token was drawn from; a stream that asks for alternatives comes in one
go at the end.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hermes.core.ids import new_id
from hermes.engine.server.openai.backend import OpenAIBackend
from hermes.engine.server.openai.errors import wrong
from hermes.engine.server.openai.sampling import (
    SampledToken,
    ending_of,
    params_of,
    sample,
    sample_live,
    sample_request,
    weights_of,
)
from hermes.engine.server.openai.schema import Completions, read_asked
from hermes.engine.server.openai.stream import event_stream
from hermes.engine.server.openai.text import (
    Detokenizer,
    IncrementalDetokenizer,
    StopCondition,
    alternatives,
    finite,
    finite_all,
)
from hermes.engine.server.openai.usage import usage_of
from hermes.engine.server.responses import as_json
from hermes.engine.types import SampledSequence, SampleRequest, SampleResult

DEFAULT_MAX_TOKENS = 16
"""OpenAI's own."""
MOST_PROMPTS = 2048


def read_prompts(
    speaker: Detokenizer, prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
) -> tuple[list[list[int]], bool]:
    """As token ids; and whether it was one prompt rather than a list of them. Problem: none, or too many."""
    if isinstance(prompt, str):
        return [speaker.encode(prompt)], True
    if prompt and isinstance(prompt[0], int):
        return [list(prompt)], True  # type: ignore[arg-type]
    if not 1 <= len(prompt) <= MOST_PROMPTS:
        raise wrong(f"{len(prompt)} prompts: from 1 to {MOST_PROMPTS} are taken at once", "prompt")
    return [speaker.encode(one) if isinstance(one, str) else list(one) for one in prompt], False  # type: ignore[arg-type]


@dataclass(frozen=True)
class _CompletionExchange:
    """One request, read."""

    asked: Completions
    speaker: Detokenizer
    ending: StopCondition
    requests: list[SampleRequest]
    header: dict[str, Any]

    def envelope(self, version: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self.header, "choices": choices, "metadata": {"weight_version": version}}

    def index(self, prompt: int, sample: int) -> int:
        return prompt * self.requests[0].num_samples + sample

    def prompt_ids(self, prompt: int) -> dict[str, Any]:
        ids = self.requests[prompt].prompt
        return {"prompt_token_ids": ids.tolist()} if self.asked.return_token_ids else {}

    def token_ids(self, tokens: Sequence[int]) -> dict[str, Any]:
        return {"token_ids": list(tokens)} if self.asked.return_token_ids else {}

    def choice(self, prompt: int, sample: int, sequence: SampledSequence) -> dict[str, Any]:
        choice = {
            "index": self.index(prompt, sample),
            "text": self.speaker.text(sequence.tokens.tolist(), self.ending, special=False),
            "logprobs": self.logprobs(sequence, 0),
            "finish_reason": sequence.stop_reason,
        }
        return choice | self.prompt_ids(prompt) | self.token_ids(sequence.tokens.tolist())

    def logprobs(self, sequence: SampledSequence, start: int) -> dict[str, Any] | None:
        """Of the tokens from `start` on, if they were asked for."""
        if self.asked.logprobs is None:
            return None
        pieces = [self.speaker.piece(int(token)) for token in sequence.tokens]
        offsets = list(accumulate(map(len, pieces), initial=0))[:-1]
        told = finite_all(sequence.logprobs)
        return {
            "tokens": pieces[start:],
            "token_logprobs": told[start:],
            "top_logprobs": [self._top(sequence, at) for at in range(start, len(pieces))],
            "text_offset": offsets[start:],
        }

    def _top(self, sequence: SampledSequence, at: int) -> dict[str, float]:
        """The likeliest tokens and the drawn one, as other servers have it."""
        likeliest = alternatives(sequence, at, self.asked.logprobs or 0)
        top = {self.speaker.piece(token): finite(logprob) for token, logprob in likeliest}
        return {**top, self.speaker.piece(int(sequence.tokens[at])): finite(sequence.logprobs[at])}


class TextCompletions:
    def __init__(self, state: OpenAIBackend, speaker: Detokenizer) -> None:
        self._state = state
        self._engine = state.engine
        self._speaker = speaker

    async def complete(self, request: Request) -> Response:
        exchange = self._read(await read_asked(request, Completions))
        if exchange.asked.stream:
            return await event_stream(request, self._chunks(exchange))
        async with weights_of(self._state, exchange.asked.model) as weights:
            results = await sample(request, self._engine, weights.policy_id, exchange.requests)
        choices = [
            exchange.choice(prompt, index, sequence)
            for prompt, result in enumerate(results)
            for index, sequence in enumerate(result.sequences)
        ]
        usage = usage_of(exchange.requests, results)
        return as_json({**exchange.envelope(weights.version, choices), "usage": usage})

    def _read(self, asked: Completions) -> _CompletionExchange:
        prompts, _ = read_prompts(self._speaker, asked.prompt)
        spec = self._engine.spec
        ending = ending_of(asked, spec.eos_ids)
        longest = DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
        params = params_of(asked, ending, longest, asked.seed)
        requests = [
            sample_request(prompt, params, asked.n or 1, asked.logprobs or 0, spec.max_length)
            for prompt in prompts
        ]
        header = {
            "id": f"cmpl-{new_id()}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": asked.model,
        }
        return _CompletionExchange(asked, self._speaker, ending, requests, header)

    async def _chunks(self, exchange: _CompletionExchange) -> AsyncGenerator[dict[str, Any]]:
        streams = {
            (prompt, index): _CompletionChoiceStream(exchange, prompt, index)
            for prompt, request in enumerate(exchange.requests)
            for index in range(request.num_samples)
        }
        results: dict[int, SampleResult] = {}
        async with weights_of(self._state, exchange.asked.model) as weights:
            events = sample_live(self._engine, weights.policy_id, exchange.requests)
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, SampledToken):
                        piece = streams[event.prompt, event.sample].push(event.id, event.logprob)
                        if piece is not None:
                            yield exchange.envelope(weights.version, [piece])
                        continue
                    results[event.prompt] = event.result
                    for index, sequence in enumerate(event.result.sequences):
                        choice = streams[event.prompt, index].end(sequence)
                        yield exchange.envelope(weights.version, [choice])
            if exchange.asked.stream_options and exchange.asked.stream_options.include_usage:
                usage = usage_of(exchange.requests, list(results.values()))
                yield {**exchange.envelope(weights.version, []), "usage": usage}


class _CompletionChoiceStream:
    """One choice as it grows, in the pieces that a client puts together again."""

    def __init__(self, exchange: _CompletionExchange, prompt: int, sample: int) -> None:
        self._exchange = exchange
        self._prompt, self._sample = prompt, sample
        self._text = IncrementalDetokenizer(exchange.speaker.tokenizer, exchange.ending, special=False)
        self._shown = 0
        self._told = 0
        self._offset = 0

    def push(self, token: int, logprob: float) -> dict[str, Any] | None:
        """What a token adds that can be told already; None: nothing."""
        exchange = self._exchange
        text = self._text.push(token)
        if (
            len(text) == self._shown
            and exchange.asked.logprobs is None
            and not exchange.asked.return_token_ids
        ):
            self._told += 1
            return None
        logprobs = None
        if exchange.asked.logprobs is not None:
            name, said = exchange.speaker.piece(token), finite(logprob)
            logprobs = {
                "tokens": [name],
                "token_logprobs": [said],
                "top_logprobs": [{name: said}],
                "text_offset": [self._offset],
            }
            self._offset += len(name)
        return self._piece(text, logprobs, [token], None)

    def end(self, sequence: SampledSequence) -> dict[str, Any]:
        text = self._exchange.speaker.text(sequence.tokens.tolist(), self._exchange.ending, special=False)
        logprobs = self._exchange.logprobs(sequence, self._told)
        return self._piece(text, logprobs, sequence.tokens[self._told :].tolist(), sequence.stop_reason)

    def _piece(
        self, text: str, logprobs: dict[str, Any] | None, tokens: Sequence[int], reason: str | None
    ) -> dict[str, Any]:
        piece = {
            "index": self._exchange.index(self._prompt, self._sample),
            "text": text[self._shown :],
            "logprobs": logprobs,
            "finish_reason": reason,
        }
        first = self._exchange.prompt_ids(self._prompt) if not self._told else {}
        self._shown = len(text)
        self._told += len(tokens)
        return piece | first | self._exchange.token_ids(tokens)
