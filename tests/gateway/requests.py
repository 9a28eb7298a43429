"""Requests in the three protocols, as plain HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from tests.gateway.scripted import Json

ROUTES = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}
KEY = "sk-client-0123456789abcdef"


def body_of(protocol: str, text: str = "go 1", **fields: Any) -> Json:
    message = {"role": "user", "content": text}
    prompt = {"input": [message]} if protocol == "responses" else {"messages": [message]}
    return {"model": "model-1", **prompt, **fields}


def post(url: str, body: Json | bytes, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, {"content-type": "application/json", **names})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read(), dict(response.headers.items())
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers.items())
