"""A server with vLLM's or SGLang's endpoints for adapters, in front of a real engine that samples.

The requests and answers have the form of vLLM 0.33's and SGLang's sources. Adapters are read from the folder
that a request names, by the engine's own import, so the tokens are those of the weights in the files.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hermes.engine.server.client import import_adapter


class LoraServer:
    def __init__(self, engine_url: str, base_model: str, dialect: str = "vllm") -> None:
        self._engine_url, self._base_model = engine_url, base_model
        self._prefix = "/v1" if dialect == "vllm" else ""
        self._sample_path = "/v1/completions" if dialect == "vllm" else "/generate"
        self.adapters: list[str] = []
        self._imports: dict[str, str] = {}
        """Adapter → its name at the engine, which several servers may share."""
        self.unloaded: list[str] = []
        self.sampled: list[str] = []
        """Which weights each request named, in order."""
        self.key: str | None = None
        """The API key that it requires for the list of its models."""
        self.refuses_to_load: str | None = None
        """The reason, if it does not load adapters any more."""
        self.answers_as: str | None = None
        """A model name that answers have instead of the right one."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.get(self)

            def do_POST(self) -> None:
                server.post(self)

            def log_message(self, *arguments: Any) -> None:
                """Silent."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.path != "/v1/models":
            return _reply(handler, 404, {"detail": "Not Found"})
        if self.key is not None and handler.headers["Authorization"] != f"Bearer {self.key}":
            return _reply(handler, 401, {"error": "Unauthorized"})
        cards = [{"id": name, "object": "model"} for name in (self._base_model, *self.adapters)]
        return _reply(handler, 200, {"object": "list", "data": cards})

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        if handler.path == f"{self._prefix}/load_lora_adapter":
            return self._load(handler, body)
        if handler.path == f"{self._prefix}/unload_lora_adapter":
            self.adapters.remove(body["lora_name"])
            self.unloaded.append(body["lora_name"])
            return _reply(handler, 200, {})
        if handler.path == self._sample_path:
            return self._sample(handler, body)
        return _reply(handler, 404, {"detail": "Not Found"})

    def _load(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if not {"lora_name", "lora_path"} <= body.keys():
            return _reply(handler, 400, _error("Both 'lora_name' and 'lora_path' must be provided."))
        if self.refuses_to_load:
            return _reply(handler, 400, _error(self.refuses_to_load))
        if body["lora_name"] in self.adapters:
            return _reply(handler, 400, _error(f"{body['lora_name']} has already been loaded."))
        if not Path(body["lora_path"]).is_dir():
            return _reply(handler, 404, _error(f"No adapter found for {body['lora_path']}"))
        if body["lora_name"] not in self._imports:
            name = f"port-{self._http.server_port}-{body['lora_name']}"
            import_adapter(self._engine_url, Path(body["lora_path"]), name)
            self._imports[body["lora_name"]] = name
        self.adapters.append(body["lora_name"])
        return _reply(handler, 200, {"success": True})

    def _sample(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        name = body["model"] if self._prefix else body.pop("lora_path", self._base_model)
        if name not in (self._base_model, *self.adapters):
            return _reply(
                handler, 404 if self._prefix else 400, _error(f"The model `{name}` does not exist.")
            )
        self.sampled.append(name)
        data = json.dumps({**body, "model": self._imports.get(name, name)}).encode()
        request = urllib.request.Request(
            f"{self._engine_url}{self._sample_path}", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            return _reply(handler, error.code, json.loads(error.read()))
        # Neither server reports the version of an adapter.
        if self._prefix:
            answer.pop("metadata", None)
            answer["model"] = self.answers_as or name
        else:
            for sample in answer if isinstance(answer, list) else [answer]:
                sample["meta_info"]["weight_version"] = "default"
        return _reply(handler, 200, answer)


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError"}}


def _reply(handler: BaseHTTPRequestHandler, status: int, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
