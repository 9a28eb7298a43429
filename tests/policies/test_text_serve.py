"""A policy with texts, served or in front of a recorded agent: what its model is asked, what is recorded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes.core.texts import hashes
from hermes.gateway.wire import Protocol
from hermes.gateway.wire.texts import with_texts
from hermes.store import Filter, Reader
from hermes.training.policy_registry import PolicyRecord, PolicyRegistry
from tests.cli.process import hermes
from tests.fakes.provider import FakeProvider
from tests.gateway.requests import ROUTES, body_of, post
from tests.policies.text_world import PLANTED, configured, world
from tests.policies.tiny_chat import make_tiny_chat

TEXTS = {
    "system_prompt": PLANTED,
    "examples": "For example: FIG.",
    "tool:look": "Looks a word up.",
    "file:AGENTS.md": "Be kind.",
}
QUESTION = "Write the word copper."
TOOLS = {
    "chat": {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},
    "responses": {"type": "function", "name": "look", "parameters": {"type": "object"}},
    "messages": {"name": "look", "input_schema": {"type": "object"}},
}


def promote(home: Path, base_model: str, texts: dict[str, str]) -> None:
    registry = PolicyRegistry(home)
    registry.add(PolicyRecord("TEXTS", base_model, None, None, texts=texts))
    registry.promote("TEXTS", "by hand")


@contextmanager
def served(home: Path, *words: str) -> Iterator[tuple[str, str]]:
    """The URL, and the line that announces it."""
    command = [sys.executable, "-m", "hermes", *words, "--port", "0"]
    environ = {**os.environ, "HERMES_HOME": str(home)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            url = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert url is not None, line
            yield url[0], line
        finally:
            server.terminate()


def ask(url: str, protocol: str, **fields: Any) -> Any:
    code, data, _ = post(f"{url}/v1/{ROUTES[protocol]}", body_of(protocol, QUESTION, max_tokens=20, **fields))
    assert code == 200, data
    return json.loads(data)


@pytest.mark.parametrize("protocol", sorted(ROUTES))
def test_a_served_policy_puts_its_texts_around_a_request(tmp_path: Path, protocol: str) -> None:
    with FakeProvider(world(0)) as provider:
        home = configured(tmp_path / "home", provider)
        promote(home, "fake/worker", TEXTS)
        with served(home, "policy", "serve") as (url, line):
            assert "system_prompt, examples, tool:look" in line and "AGENTS.md" not in line
            reply = ask(url, protocol, tools=[TOOLS[protocol]])
        (post_,) = provider.posts
    assert "COPPER" in json.dumps(reply) and post_.json["model"] == "worker"
    assert post_.json["messages"][0]["content"] == f"{PLANTED}\n\nFor example: FIG."
    assert post_.json["tools"][0]["function"]["description"] == "Looks a word up."
    assert not (home / "hermes.db").exists()  # serving records nothing


@pytest.mark.parametrize(
    ("protocol", "own"),
    [
        ("chat", {"messages": [{"role": "system", "content": "Mine."}, {"role": "user", "content": "hi"}]}),
        ("chat", {"messages": [{"role": "developer", "content": "Mine."}]}),
        ("responses", {"instructions": "Mine.", "input": "hi"}),
        ("messages", {"system": "Mine.", "messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_a_request_with_a_system_prompt_keeps_it(protocol: str, own: dict[str, Any]) -> None:
    assert with_texts(Protocol(protocol), own, TEXTS) == (own, {})


def test_a_recorded_agent_works_under_the_texts_of_a_policy(tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(
        "import json, os, urllib.request\n"
        "for system in ([], [{'role': 'system', 'content': 'Say it plainly.'}]):\n"
        f"    messages = [*system, {{'role': 'user', 'content': '{QUESTION}'}}]\n"
        "    body = json.dumps({'model': 'any', 'messages': messages}).encode()\n"
        "    url = os.environ['OPENAI_BASE_URL'] + '/chat/completions'\n"
        "    request = urllib.request.Request(url, body, {'content-type': 'application/json'})\n"
        "    print(json.load(urllib.request.urlopen(request))['choices'][0]['message']['content'])\n"
    )
    with FakeProvider(world(0)) as provider:
        home = configured(tmp_path / "home", provider)
        promote(home, "fake/worker", TEXTS)
        done = hermes(home, "record", "--model", "policy", "--", sys.executable, str(program))
        assert done.stdout == "COPPER\nThe word is copper.\n", done.stderr
        assert "file:AGENTS.md" in done.stderr
    with Reader(home / "hermes.db") as reader:
        both = {entry.messages[0].content: entry for entry in reader.trajectories(Filter())}
    improved = both[f"{PLANTED}\n\nFor example: FIG."]
    used = {name: TEXTS[name] for name in ("system_prompt", "examples")}
    assert improved.header.config["texts"] == hashes(used)
    assert "texts" not in both["Say it plainly."].header.config


def test_texts_around_a_model_of_this_machine_are_served_too(tmp_path: Path) -> None:
    tiny = make_tiny_chat(tmp_path / "tiny")
    promote(tmp_path, str(tiny), {"system_prompt": "word " * 30})
    with served(tmp_path, "policy", "serve") as (url, _):
        system = [{"role": "system", "content": "word"}, {"role": "user", "content": QUESTION}]
        plain = ask(url, "chat", messages=system)["usage"]["prompt_tokens"]
        assert ask(url, "chat")["usage"]["prompt_tokens"] > plain + 20
