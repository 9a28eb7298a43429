"""POST /v1/completions: prompts as text or as token ids, one or many.

Token ids are used as they are and returned as they were sampled (`return_token_ids`). With `echo` the prompt
precedes the completion, in the text and in the logprobs; those of the prompt are at temperature 1, the first
token has none. `echo` cannot be streamed. Logprobs are those of the distribution that each token was sampled
from. A streamed request for alternatives (`logprobs` above 0) gets all events at the end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from hermes.core import JSONObject
from hermes.core.ids import new_id
from hermes.engine.server.openai.errors import invalid_request
from hermes.engine.server.openai.exchange import ChoiceStream, CompletionExchange, ServedModel
from hermes.engine.server.openai.sampling import (
    check_samples,
    sample_request,
    sampling_params,
    stop_condition,
)
from hermes.engine.server.openai.schema import Completions
from hermes.engine.server.openai.text import StopCondition, finite_logprob, finite_logprobs, top_of
from hermes.engine.types import SampledSequence, SampleResult, TopK

DEFAULT_MAX_TOKENS = 16
"""As OpenAI has it."""
_NO_STOP = StopCondition((), frozenset())


def read_completion(model: ServedModel, body: Completions) -> TextCompletionExchange:
    spec = model.backend.engine.spec
    prompts = model.detokenizer.encode_prompts(body.prompt)
    check_samples(len(prompts), body.n or 1)
    stop = stop_condition(body, spec.eos_ids)
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    params = sampling_params(body, stop, max_tokens, body.seed)
    if body.echo and body.stream:
        raise invalid_request("'echo' is not supported in a stream: leave one of them out", "echo")
    requests = [
        sample_request(prompt, params, body.n or 1, body.logprobs or 0, spec.max_length) for prompt in prompts
    ]
    if body.echo and body.logprobs is not None:
        requests = [
            replace(request, prompt_logprobs=True, topk_prompt_logprobs=body.logprobs) for request in requests
        ]
    return TextCompletionExchange(
        model=body.model,
        stream=bool(body.stream),
        requests=requests,
        detokenizer=model.detokenizer,
        stop=stop,
        body=body,
        id=f"cmpl-{new_id()}",
        created_s=int(time.time()),
    )


@dataclass(frozen=True, kw_only=True)
class TextCompletionExchange(CompletionExchange):
    object_name = chunk_name = "text_completion"

    body: Completions

    @property
    def with_logprobs(self) -> bool:
        return self.body.logprobs is not None

    def response(self, results: Sequence[SampleResult], version: str) -> JSONObject:
        response = super().response(results, version)
        if self.body.echo:
            samples = self.requests[0].num_samples
            for number, choice in enumerate(response["choices"]):
                self._add_prompt(choice, number // samples, results[number // samples])
        return response

    def _add_prompt(self, choice: JSONObject, prompt: int, result: SampleResult) -> None:
        """Puts the prompt before the completion of a choice."""
        ids = self.requests[prompt].prompt.tolist()
        text = self.detokenizer.decode(ids, _NO_STOP, special=True)
        choice["text"] = text + choice["text"]
        if (logprobs := choice["logprobs"]) is None:
            return
        texts = [self.detokenizer.token_text(token) for token in ids]
        offsets = list(accumulate(map(len, texts), initial=0))
        values = [] if result.prompt_logprobs is None else finite_logprobs(result.prompt_logprobs[1:])
        top = [
            {**self._likeliest(result.topk_prompt, position), texts[position]: values[position - 1]}
            for position in range(1, len(ids))
        ]
        choice["logprobs"] = {
            "tokens": texts + logprobs["tokens"],
            "token_logprobs": [None, *values, *logprobs["token_logprobs"]],
            "top_logprobs": [None, *top, *logprobs["top_logprobs"]],
            "text_offset": offsets[:-1] + [offsets[-1] + offset for offset in logprobs["text_offset"]],
        }

    def _likeliest(self, topk: TopK | None, position: int) -> dict[str, float]:
        pairs = top_of(topk, position, self.body.logprobs or 0)
        return {self.detokenizer.token_text(token): finite_logprob(logprob) for token, logprob in pairs}

    def choice_stream(self, prompt: int, sample: int, version: str) -> ChoiceStream:
        return _TextCompletionStream(self, prompt, sample)

    def choice(self, prompt: int, sample: int, sequence: SampledSequence) -> JSONObject:
        return {
            "index": self.index(prompt, sample),
            "text": self.text(sequence),
            "logprobs": self.logprobs(sequence, 0),
            "finish_reason": sequence.stop_reason,
            **self.prompt_token_ids(prompt),
            **self.token_ids(sequence.tokens.tolist()),
        }

    def text(self, sequence: SampledSequence) -> str:
        return self.detokenizer.text(sequence.tokens.tolist(), self.stop, special=False)

    def logprobs(self, sequence: SampledSequence, start: int) -> JSONObject | None:
        """The logprobs of the tokens from `start` on; None if the request has no `logprobs`."""
        if not self.with_logprobs:
            return None
        texts = [self.detokenizer.token_text(int(token)) for token in sequence.tokens]
        offsets = list(accumulate(map(len, texts), initial=0))[:-1]
        return {
            "tokens": texts[start:],
            "token_logprobs": finite_logprobs(sequence.logprobs)[start:],
            "top_logprobs": [self._top(sequence, position) for position in range(start, len(texts))],
            "text_offset": offsets[start:],
        }

    def _top(self, sequence: SampledSequence, position: int) -> dict[str, float]:
        """The likeliest tokens and the sampled one, as other servers have it."""
        top = self._likeliest(sequence.topk, position)
        sampled = self.detokenizer.token_text(int(sequence.tokens[position]))
        return {**top, sampled: finite_logprob(sequence.logprobs[position])}


class _TextCompletionStream(ChoiceStream):
    def __init__(self, exchange: TextCompletionExchange, prompt: int, sample: int) -> None:
        self._exchange = exchange
        self._prompt, self._sample = prompt, sample
        self._text = exchange.detokenizer.incremental(exchange.stop, special=False)
        self._sent_chars = 0
        self._pushed_tokens = 0
        self._text_offset = 0

    def push(self, token: int, logprob: float) -> JSONObject | None:
        exchange = self._exchange
        text = self._text.push(token)
        if (
            len(text) == self._sent_chars
            and not exchange.with_logprobs
            and not exchange.body.return_token_ids
        ):
            self._pushed_tokens += 1
            return None
        logprobs = self._logprobs(token, logprob) if exchange.with_logprobs else None
        return self._choice(text, logprobs, [token], None)

    def end(self, sequence: SampledSequence, result: SampleResult) -> JSONObject:
        start = self._pushed_tokens
        return self._choice(
            self._exchange.text(sequence),
            self._exchange.logprobs(sequence, start),
            sequence.tokens[start:].tolist(),
            sequence.stop_reason,
        )

    def _logprobs(self, token: int, logprob: float) -> JSONObject:
        text, finite = self._exchange.detokenizer.token_text(token), finite_logprob(logprob)
        offset = self._text_offset
        self._text_offset += len(text)
        return {
            "tokens": [text],
            "token_logprobs": [finite],
            "top_logprobs": [{text: finite}],
            "text_offset": [offset],
        }

    def _choice(
        self, text: str, logprobs: JSONObject | None, tokens: Sequence[int], finish_reason: str | None
    ) -> JSONObject:
        choice = {
            "index": self._exchange.index(self._prompt, self._sample),
            "text": text[self._sent_chars :],
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            **({} if self._pushed_tokens else self._exchange.prompt_token_ids(self._prompt)),
            **self._exchange.token_ids(tokens),
        }
        self._sent_chars = len(text)
        self._pushed_tokens += len(tokens)
        return choice
