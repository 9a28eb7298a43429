"""Where tokens come from in tests: a script, or the bundled model; in process, or behind a real server.

`TokenServer` speaks SGLang's `POST /generate`, vLLM's form of `POST /v1/completions` with ids, `GET /health`
and `GET /v1/models`, on a loopback port.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from hermes.core import Sampling, TokenTrace, Usage
from hermes.models.tokens.completions import TokenReply

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hermes.models.local.model import LocalModel


@dataclass(frozen=True)
class Answer:
    ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: str = "stop"
    status: int = 200
    """Anything else is answered with that status and nothing more."""


def said(ids: Sequence[int], finish_reason: str = "stop") -> Answer:
    """An answer whose logprobs tell its tokens apart."""
    return Answer(list(ids), [-0.001 * (1 + place) for place in range(len(ids))], finish_reason)


Answerer = Callable[[list[int], dict[str, Any]], Answer]
"""Prompt ids and sampling parameters → what is sampled."""


@dataclass
class ScriptedSource:
    """A `TokenSource` in this process."""

    answer: Answerer
    name: str = "test/scripted"
    base_url: str = "script"
    prompts: list[list[int]] = field(default_factory=list)

    async def complete_tokens(
        self, prompt_ids: Sequence[int], sampling: Sampling, timeout_s: float | None = None
    ) -> TokenReply:
        self.prompts.append(list(prompt_ids))
        answer = self.answer(list(prompt_ids), sampling.to_json())
        return TokenReply(
            TokenTrace(tuple(prompt_ids), tuple(answer.ids), tuple(answer.logprobs), "v1"),
            finish_reason=answer.finish_reason,
            usage=Usage(len(prompt_ids), output_tokens=len(answer.ids)),
            text="",
            raw={},
            cost_usd=0.0,
        )

    async def close(self) -> None:
        pass


def bundled_answers(model: LocalModel) -> Answerer:
    """The bundled model's own continuation, one at a time."""
    from hermes.models.local.model import TokenSampling

    lock = threading.Lock()

    def answer(prompt_ids: list[int], params: dict[str, Any]) -> Answer:
        longest = params.get("max_new_tokens") or params.get("max_tokens") or 16
        choice = TokenSampling(temperature=params.get("temperature", 1.0), seed=len(prompt_ids))
        ids: list[int] = []
        logprobs: list[float] = []
        with lock:
            for token in model.decoder.sample(prompt_ids, choice, lambda: False):
                ids.append(token.id)
                logprobs.append(token.logprob)
                if token.id in model.end_ids:
                    return Answer(ids, logprobs)
                if len(ids) >= longest:
                    return Answer(ids, logprobs, "length")
        raise AssertionError("the decoder samples without end")

    return answer


class Words:
    """Encodes text as a model may sample it: one word is one token, which no encoder makes of text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, word: str) -> None:
        self.tokenizer = tokenizer
        self._word = word

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for place, piece in enumerate(text.split(self._word)):
            ids += [self.tokenizer.convert_tokens_to_ids(self._word)] if place else []
            ids += self.tokenizer(piece, add_special_tokens=False)["input_ids"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids))


class TokenServer:
    """A real HTTP server around an answerer."""

    def __init__(self, answer: Answerer) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.in_flight_answer = answer
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send(200, {"data": [{"id": "policy"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.requests.append((self.path, body))
                generate = self.path == "/generate"
                ids = body["input_ids"] if generate else body["prompt"]
                answer = server.in_flight_answer(ids, body["sampling_params"] if generate else body)
                if answer.status != 200:
                    self._send(answer.status, {"error": {"message": "scripted failure"}})
                else:
                    self._send(200, _sglang(answer, len(ids)) if generate else _vllm(answer, len(ids)))

            def _send(self, status: int, data: dict[str, Any]) -> None:
                payload = json.dumps(data).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _sglang(answer: Answer, prompt_tokens: int) -> dict[str, Any]:
    pairs = [[logprob, token, None] for token, logprob in zip(answer.ids, answer.logprobs, strict=True)]
    return {
        "text": "",
        "meta_info": {
            "finish_reason": {"type": answer.finish_reason},
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(pairs),
            "output_token_logprobs": pairs,
            "weight_version": "step-7",
        },
    }


def _vllm(answer: Answer, prompt_tokens: int) -> dict[str, Any]:
    choice = {
        "text": "",
        "finish_reason": answer.finish_reason,
        "token_ids": list(answer.ids),
        "logprobs": {"tokens": [""] * len(answer.ids), "token_logprobs": list(answer.logprobs)},
    }
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(answer.ids)}
    return {"choices": [choice], "usage": usage}
