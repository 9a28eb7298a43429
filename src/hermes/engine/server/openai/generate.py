"""POST /generate in SGLang's form: ids or text in, ids, text and logprobs out.

One prompt gives one object, a list of prompts or n samples give a list. Without a model (`model`, or SGLang's
`lora_path`) the policy that was handed over last answers, as a server whose weights are updated in place
would; before there is one, the base model does. `meta_info.weight_version` says which weights it were.

With `return_logprob` and a `logprob_start_len` from 0 on, `meta_info.input_token_logprobs` scores the prompt
from that token on, at temperature 1; its first entry has no logprob, as SGLang has it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hermes.core.ids import new_id
from hermes.engine.server.openai.backend import OpenAIBackend
from hermes.engine.server.openai.completions import read_prompts
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
from hermes.engine.server.openai.schema import Generate, GenerateParams, read_asked
from hermes.engine.server.openai.stream import event_stream
from hermes.engine.server.openai.text import Detokenizer, StopCondition, finite_all
from hermes.engine.server.policies import MOVING
from hermes.engine.server.responses import as_json
from hermes.engine.types import SampledSequence, SampleRequest, SampleResult

DEFAULT_MAX_TOKENS = 128
"""SGLang's own."""


@dataclass(frozen=True)
class _GenerateExchange:
    """One request, read."""

    asked: Generate
    params: GenerateParams
    speaker: Detokenizer
    ending: StopCondition
    requests: list[SampleRequest]
    scored_from: int | None
    """The first token of the prompts whose logprob is asked for; None: none is."""
    single: bool
    """One prompt with one sample: the answer is no list."""
    id: str
    began_s: float

    def answers(self, prompt: int, result: SampleResult, version: str) -> list[dict[str, Any]]:
        """One for each sample."""
        return [self._answer(prompt, sequence, result, version) for sequence in result.sequences]

    def _answer(
        self, prompt: int, sequence: SampledSequence, result: SampleResult, version: str
    ) -> dict[str, Any]:
        ids = sequence.tokens.tolist()
        whole = self.speaker.words(ids, self.ending, special=not self.params.skip_special_tokens)
        matched = self.ending.matched(sequence, whole)
        stopped = {"type": "stop", "matched": matched}
        meta: dict[str, Any] = {
            "id": f"{self.id}-{prompt}",
            "finish_reason": stopped
            if sequence.stop_reason == "stop"
            else {"type": "length", "length": len(ids)},
            "prompt_tokens": len(self.requests[prompt].prompt),
            "completion_tokens": len(ids),
            "cached_tokens": result.cached_tokens,
            "weight_version": version,
            "e2e_latency": time.perf_counter() - self.began_s,
        }
        if self.asked.return_logprob:
            pairs = zip(finite_all(sequence.logprobs), ids, strict=True)
            meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in pairs]
        if self.scored_from is not None:
            meta["input_token_logprobs"] = _scored(self.requests[prompt], result, self.scored_from)
        return {"text": self.ending.cut(whole), "output_ids": ids, "meta_info": meta}


def _scored_from(asked: Generate) -> int | None:
    start = asked.logprob_start_len
    return start if asked.return_logprob and start is not None and start >= 0 else None


def _with_scores(request: SampleRequest, start: int) -> SampleRequest:
    """Problem: the prompt has no such token."""
    after = len(request.prompt) - 1 - start
    if after < 0:
        raise wrong(f"it is {start}, and the prompt has {len(request.prompt)} tokens", "logprob_start_len")
    if after == 0:
        return request
    return replace(request, prompt_logprobs=True, prompt_logprobs_last_n=after if start else None)


def _scored(request: SampleRequest, result: SampleResult, start: int) -> list[list[float | int | None]]:
    ids = request.prompt[start:].tolist()
    told = [] if result.prompt_logprobs is None else finite_all(result.prompt_logprobs[start + 1 :])
    return [[logprob, token, None] for logprob, token in zip((None, *told), ids, strict=True)]


class Generation:
    def __init__(self, state: OpenAIBackend, speaker: Detokenizer) -> None:
        self._state = state
        self._engine = state.engine
        self._speaker = speaker
        self._name = new_id()
        self._numbers = itertools.count(1)

    async def generate(self, request: Request) -> Response:
        asked = await read_asked(request, Generate)
        exchange = self._read(asked)
        if asked.stream:
            return await event_stream(request, self._chunks(exchange))
        async with weights_of(self._state, self._model(asked)) as weights:
            results = await sample(request, self._engine, weights.policy_id, exchange.requests)
        answers = [
            answer
            for prompt, result in enumerate(results)
            for answer in exchange.answers(prompt, result, weights.version)
        ]
        return as_json(answers[0] if exchange.single else answers)

    def _model(self, asked: Generate) -> str:
        names = self._state.names
        return asked.model or asked.lora_path or (MOVING if MOVING in names.names() else names.base_names[0])

    def _read(self, asked: Generate) -> _GenerateExchange:
        params = asked.sampling_params or GenerateParams()
        params.check()
        given = [one for one in (asked.input_ids, asked.text) if one is not None]
        if len(given) != 1:
            raise wrong("give either input_ids or text")
        prompts, single = read_prompts(self._speaker, given[0])
        spec = self._engine.spec
        ending = ending_of(params, spec.eos_ids)
        longest = DEFAULT_MAX_TOKENS if params.max_new_tokens is None else params.max_new_tokens
        sampling = params_of(params, ending, longest, params.sampling_seed)
        samples = params.n or 1
        requests = [sample_request(prompt, sampling, samples, 0, spec.max_length) for prompt in prompts]
        start = _scored_from(asked)
        if start is not None:
            requests = [_with_scores(request, start) for request in requests]
        single = single and samples == 1
        request_id = f"{self._name}-{next(self._numbers)}"
        return _GenerateExchange(
            asked, params, self._speaker, ending, requests, start, single, request_id, time.perf_counter()
        )

    async def _chunks(self, exchange: _GenerateExchange) -> AsyncGenerator[dict[str, Any]]:
        """Each event repeats all of its answer so far; the last one of an answer says why it ended."""
        samples = exchange.requests[0].num_samples
        growing = [_GenerateStream(exchange) for _ in range(len(exchange.requests) * samples)]
        async with weights_of(self._state, self._model(exchange.asked)) as weights:
            events = sample_live(self._engine, weights.policy_id, exchange.requests)
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, SampledToken):
                        index = event.prompt * samples + event.sample
                        yield {**growing[index].push(event.id, weights.version), "index": index}
                        continue
                    answers = exchange.answers(event.prompt, event.result, weights.version)
                    for sample, answer in enumerate(answers):
                        yield {**answer, "index": event.prompt * samples + sample}


class _GenerateStream:
    """One answer in the making."""

    def __init__(self, exchange: _GenerateExchange) -> None:
        self._text = exchange.speaker.text_so_far(
            exchange.ending, special=not exchange.params.skip_special_tokens
        )
        self._ids: list[int] = []

    def push(self, token: int, version: str) -> dict[str, Any]:
        self._ids.append(token)
        text = "" if self._text is None else self._text.push(token)
        meta = {"finish_reason": None, "completion_tokens": len(self._ids), "weight_version": version}
        return {"text": text, "output_ids": list(self._ids), "meta_info": meta}
