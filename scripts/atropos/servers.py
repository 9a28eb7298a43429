"""What both sides meet: a model that answers by a rule, and a trajectory API that records what is sent.

The answer to a request depends on its messages or prompt and on how often the same one came before: not on
its other parameters, on the order of different requests, or on whether several answers come from one request
(`n`) or from several. So the same environment gets the same answers from both libraries, and the requests
themselves can be compared.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from answers import ANSWERS

Tokens = Callable[[str], list[int]]


class LocalServices:
    """Both services on one loopback port. `groups_wanted`: after so many groups the trainer is done.

    `answers` come after the usual ones.
    """

    def __init__(
        self,
        encode: Tokens,
        end_token: int,
        groups_wanted: int,
        group_size: int,
        answers: tuple[str, ...] = (),
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.groups: list[dict[str, Any]] = []
        self.done = threading.Event()
        """All groups have arrived."""
        self._encode, self._end_token = encode, end_token
        self._wanted, self._group_size = groups_wanted, group_size
        self._answers = (*ANSWERS, *answers)
        self._counts: Counter[int] = Counter()
        self._lock = threading.Lock()
        services = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._reply(services.get(self.path.partition("?")[0]))

            def do_POST(self) -> None:
                self._reply(services.post(self.path.partition("?")[0], self._body()))

            do_DELETE = do_POST

            def _body(self) -> Any:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Content-Encoding") == "gzip":
                    raw = zlib.decompress(raw, 31)
                return json.loads(raw or b"{}")

            def _reply(self, answer: Any) -> None:
                # GET /status-env has a body in the original.
                if self.command == "GET" and (length := int(self.headers.get("Content-Length") or 0)):
                    self.rfile.read(length)
                raw = json.dumps({"detail": "no such path"} if answer is None else answer).encode()
                self.send_response(404 if answer is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, format: str, *args: Any) -> None:
                """Prints nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.root = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def get(self, path: str) -> Any:
        if path in ("/health", "/v1/models", "/get_server_info", "/health_generate"):
            return {"object": "list", "data": [{"id": "scripted", "object": "model"}]}
        if path == "/status-env":
            step = 10**6 if self.done.is_set() else 0
            sizes = {"queue_size": 0, "self_queue_size": 0, "max_group_size": self._group_size}
            return {"current_step": step, **sizes, "env_weight": 1.0, "unallocated_fraction": 1.0}
        if path == "/info":
            return {"batch_size": self._wanted * self._group_size, "max_token_len": -1}
        if path == "/wandb_info":
            return {"group": None, "project": None}
        return {"message": "AtroposLib API"} if path == "/" else None

    def post(self, path: str, body: Any) -> Any:
        if path == "/v1/chat/completions":
            return self._chat(body)
        if path == "/v1/completions":
            return self._completion(body)
        if path == "/generate":
            return self._generate(body)
        if path == "/register-env":
            names = {"wandb_name": "compared_0", "checkpoint_dir": "", "starting_step": 0}
            return {"status": "success", "env_id": 0, **names, "checkpoint_interval": -1, "num_steps": 10}
        if path in ("/scored_data", "/scored_data_list"):
            with self._lock:
                self.groups += body if isinstance(body, list) else [body]
                if len(self.groups) >= self._wanted:
                    self.done.set()
            return {"status": "received", "groups_processed": len(body) if isinstance(body, list) else 1}
        return {"status": "success"} if path == "/disconnect-env" else None

    def _texts(self, body: dict[str, Any], beginning: Any, count: int) -> list[str]:
        key = zlib.crc32(json.dumps(beginning, sort_keys=True).encode())
        with self._lock:
            self.requests.append(body)
            first = self._counts[key]
            self._counts[key] += count
        texts = [self._answers[(key + first + index) % len(self._answers)] for index in range(count)]
        stops = body.get("stop") or body.get("sampling_params", {}).get("stop") or []
        return [_before(text, [stops] if isinstance(stops, str) else stops) for text in texts]

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        texts = self._texts(body, body["messages"], body.get("n") or 1)
        choices = [
            {"index": index, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            for index, text in enumerate(texts)
        ]
        return self._envelope("chat.completion", choices)

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        beginning = body.get("prompt", body.get("messages"))  # the original's probe has messages here
        texts = self._texts(body, beginning, body.get("n") or 1)
        choices = [
            {"index": index, "finish_reason": "stop", "text": text} for index, text in enumerate(texts)
        ]
        return self._envelope("text_completion", choices)

    def _generate(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        params = body.get("sampling_params") or {}
        if body.get("top_logprobs_num"):
            return [self._scored(body["input_ids"])]
        return [self._sampled(text) for text in self._texts(body, body["input_ids"], params.get("n") or 1)]

    def _sampled(self, text: str) -> dict[str, Any]:
        ids = [*self._encode(text), self._end_token]
        logprobs = [[-0.25, token, None] for token in ids]
        meta = {"output_token_logprobs": logprobs, "finish_reason": {"type": "stop"}}
        return {"text": text, "output_ids": ids, "meta_info": meta}

    def _scored(self, ids: list[int]) -> dict[str, Any]:
        entries = [[[-0.5, token, None]] for token in ids]
        return {"text": "", "meta_info": {"input_top_logprobs": entries, "output_token_logprobs": []}}

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
        head = {"id": "scripted", "object": kind, "created": 0, "model": "scripted"}
        return {**head, "choices": choices, "usage": usage}


def _before(text: str, stops: list[Any]) -> str:
    """The text up to the first stop string; stops that are token ids are no part of it."""
    ends = [text.find(stop) for stop in stops if isinstance(stop, str) and stop in text]
    return text[: min(ends)] if ends else text
