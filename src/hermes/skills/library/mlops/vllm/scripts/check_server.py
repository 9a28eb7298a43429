"""Check an OpenAI-compatible server: models, an answer, a tool call as a field, log-probabilities.

Works with vLLM, SGLang, llama-server, Ollama and `hermes engine serve`. Standard library only. The exit
code is 1 when a needed part fails; log-probabilities are optional, and the tool call unless --tools is given.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def call(url: str, key: str | None, timeout_s: float, body: dict[str, Any] | None = None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=timeout_s) as reply:
        return json.load(reply)


def ask(options: argparse.Namespace, model: str, **fields: Any) -> dict[str, Any]:
    body = {"model": model, "max_tokens": options.max_tokens, "temperature": 0, **fields}
    key = os.environ.get(options.key_variable)
    return call(f"{options.base_url}/chat/completions", key, options.timeout_s, body)["choices"][0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base_url", help="Ends with /v1, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="Default: the first one that the server lists")
    parser.add_argument("--tools", action="store_true", help="Fail unless a tool call comes as a field")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--timeout-s", type=float, default=120)
    parser.add_argument("--key-variable", default="OPENAI_API_KEY", help="Environment variable with the key")
    options = parser.parse_args()
    try:
        key = os.environ.get(options.key_variable)
        models = [row["id"] for row in call(f"{options.base_url}/models", key, options.timeout_s)["data"]]
        model = options.model or models[0]
        print(f"models: {', '.join(models)}")
        question = [{"role": "user", "content": "Say hello in three words."}]
        choice = ask(options, model, messages=question, logprobs=True)
        print(f"answer: {choice['message']['content']!r} ({choice['finish_reason']})")
        rows = (choice.get("logprobs") or {}).get("content") or []
        print(f"log-probabilities: {len(rows)} tokens" if rows else "log-probabilities: none")
        weather = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
        message = ask(options, model, messages=weather, tools=[TOOL])["message"]
    except urllib.error.HTTPError as error:
        print(f"the server answered {error.code}: {error.read().decode(errors='replace')[:500]}")
        return 1
    except (urllib.error.URLError, TimeoutError, KeyError, IndexError, ValueError) as error:
        print(f"the check failed: {type(error).__name__}: {error}")
        return 1
    calls = message.get("tool_calls") or []
    for item in calls:
        print(f"tool call: {item['function']['name']}({item['function']['arguments']})")
    if not calls:
        print(f"no tool call as a field; the text is {message.get('content')!r}")
    return 1 if options.tools and not calls else 0


if __name__ == "__main__":
    sys.exit(main())
