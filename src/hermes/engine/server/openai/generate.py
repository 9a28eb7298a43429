"""POST /generate in SGLang's form: token ids or text in; token ids, text and logprobs out.

One prompt with one sample gets one object; a list of prompts, or n samples, get a list. A request without a
model (`model`, or SGLang's `lora_path`) samples the policy that was published last, like a server whose
weights are updated in place, and the base model before there is one. `meta_info.weight_version` names the
weights that were sampled.

With `return_logprob` and a `logprob_start_len` of 0 or more, `meta_info.input_token_logprobs` has the
logprobs of the prompt from that token on, at temperature 1. The first entry has no logprob, as in SGLang.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hermes.core import JSONObject
from hermes.core.ids import new_id
from hermes.engine.server.openai.backend import PolicyNameList
from hermes.engine.server.openai.errors import invalid_request
from hermes.engine.server.openai.exchange import ChoiceStream, Exchange, ServedModel
from hermes.engine.server.openai.sampling import (
    check_samples,
    sample_request,
    sampling_params,
    stop_condition,
)
from hermes.engine.server.openai.schema import Generate, GenerateParams
from hermes.engine.server.openai.text import finite_logprobs, is_single_prompt
from hermes.engine.server.policies import LATEST_POLICY
from hermes.engine.types import SampledSequence, SampleRequest, SampleResult

DEFAULT_MAX_TOKENS = 128
"""As SGLang has it."""


def read_generate(model: ServedModel, body: Generate) -> GenerateExchange:
    fields = body.sampling_params or GenerateParams()
    fields.check()
    inputs = [prompt for prompt in (body.input_ids, body.text) if prompt is not None]
    if len(inputs) != 1:
        raise invalid_request("give either input_ids or text")
    spec = model.backend.engine.spec
    prompts = model.detokenizer.encode_prompts(inputs[0])
    stop = stop_condition(fields, spec.eos_ids)
    max_tokens = DEFAULT_MAX_TOKENS if fields.max_new_tokens is None else fields.max_new_tokens
    params = sampling_params(fields, stop, max_tokens, fields.sampling_seed)
    samples = fields.n or 1
    check_samples(len(prompts), samples)
    requests = [sample_request(prompt, params, samples, 0, spec.max_length) for prompt in prompts]
    scored_from = body.logprob_start_len if body.return_logprob else None
    if scored_from is not None and scored_from >= 0:
        requests = [_with_prompt_logprobs(request, scored_from) for request in requests]
    else:
        scored_from = None
    return GenerateExchange(
        model=body.model or body.lora_path or _default_model(model.backend.names),
        stream=bool(body.stream),
        requests=requests,
        detokenizer=model.detokenizer,
        stop=stop,
        return_logprob=bool(body.return_logprob),
        scored_from=scored_from,
        special=not fields.skip_special_tokens,
        single=is_single_prompt(inputs[0]) and samples == 1,
        id=new_id(),
        started_s=time.perf_counter(),
    )


def _default_model(names: PolicyNameList) -> str:
    listed = names.names()
    return LATEST_POLICY if LATEST_POLICY in listed else listed[0]


def _with_prompt_logprobs(request: SampleRequest, start: int) -> SampleRequest:
    """OpenAIRequestError: the prompt is shorter."""
    scored = len(request.prompt) - 1 - start
    if scored < 0:
        raise invalid_request(
            f"logprob_start_len is {start}, but the prompt has {len(request.prompt)} tokens",
            "logprob_start_len",
        )
    if scored == 0:
        return request
    return replace(request, prompt_logprobs=True, prompt_logprobs_last_n=scored if start else None)


@dataclass(frozen=True, kw_only=True)
class GenerateExchange(Exchange):
    return_logprob: bool
    scored_from: int | None
    """The first token of the prompts whose logprob is returned; None: none is."""
    special: bool
    """Special tokens are part of the text."""
    single: bool
    """The response is one object, not a list."""
    id: str
    started_s: float

    def response(self, results: Sequence[SampleResult], version: str) -> Any:
        outputs = [
            self.output(prompt, sequence, result, version)
            for prompt, result in enumerate(results)
            for sequence in result.sequences
        ]
        return outputs[0] if self.single else outputs

    def choice_stream(self, prompt: int, sample: int, version: str) -> ChoiceStream:
        return _GenerateStream(self, prompt, sample, version)

    def chunk(self, choice: JSONObject, version: str) -> JSONObject:
        return choice

    def output(
        self, prompt: int, sequence: SampledSequence, result: SampleResult, version: str
    ) -> JSONObject:
        request, ids = self.requests[prompt], sequence.tokens.tolist()
        text = ""
        if self.detokenizer.has_tokenizer:
            text = self.detokenizer.decode(ids, self.stop, special=self.special)
        meta: JSONObject = {
            "id": f"{self.id}-{prompt}",
            "finish_reason": {"type": "stop", "matched": self.stop.matched(sequence, text)}
            if sequence.stop_reason == "stop"
            else {"type": "length", "length": len(ids)},
            "prompt_tokens": len(request.prompt),
            "completion_tokens": len(ids),
            "cached_tokens": result.cached_tokens,
            "weight_version": version,
            "e2e_latency": time.perf_counter() - self.started_s,
        }
        if self.return_logprob:
            meta["output_token_logprobs"] = _logprob_triples(finite_logprobs(sequence.logprobs), ids)
        if self.scored_from is not None:
            meta["input_token_logprobs"] = _input_logprobs(request, result, self.scored_from)
        return {"text": self.stop.cut(text), "output_ids": ids, "meta_info": meta}


def _input_logprobs(request: SampleRequest, result: SampleResult, start: int) -> list[list[Any]]:
    logprobs: list[float] = []
    if result.prompt_logprobs is not None:
        logprobs = finite_logprobs(result.prompt_logprobs[start + 1 :])
    return _logprob_triples([None, *logprobs], request.prompt[start:].tolist())


def _logprob_triples(logprobs: Sequence[float | None], ids: Sequence[int]) -> list[list[Any]]:
    """SGLang's [logprob, token id, text], without the text."""
    return [[logprob, token, None] for logprob, token in zip(logprobs, ids, strict=True)]


class _GenerateStream(ChoiceStream):
    """Each event repeats the whole output so far; the last one has the finish reason."""

    def __init__(self, exchange: GenerateExchange, prompt: int, sample: int, version: str) -> None:
        detokenizer = exchange.detokenizer
        self._exchange, self._prompt, self._version = exchange, prompt, version
        self._index = exchange.index(prompt, sample)
        self._text = (
            detokenizer.incremental(exchange.stop, special=exchange.special)
            if detokenizer.has_tokenizer
            else None
        )
        self._ids: list[int] = []

    def push(self, token: int, logprob: float) -> JSONObject:
        self._ids.append(token)
        text = "" if self._text is None else self._text.push(token)
        meta = {"finish_reason": None, "completion_tokens": len(self._ids), "weight_version": self._version}
        return {"text": text, "output_ids": list(self._ids), "meta_info": meta, "index": self._index}

    def end(self, sequence: SampledSequence, result: SampleResult) -> JSONObject:
        output = self._exchange.output(self._prompt, sequence, result, self._version)
        return output | {"index": self._index}
