"""`hermes record serve`: tokens, sessions that are stored while it goes on, and their continuation."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hermes.config.load import Config
from hermes.core import Relation
from tests.gateway.conftest import serving, stored
from tests.gateway.requests import body_of, post
from tests.gateway.scripted import ScriptedProvider
from tests.waiting import wait_until

TOKEN = "local-token-0123456789"


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider() as scripted:
        yield scripted


def test_elsewhere_than_on_loopback_a_token_and_a_key_of_its_own(
    config: Config, provider: ScriptedProvider
) -> None:
    where = ("--host", "0.0.0.0", "--base-url", provider.base_url, "--model", "custom/model-1")
    keys = {"HERMES_RECORD_TOKEN": TOKEN, "OPENAI_API_KEY": "sk-configured-0123456789"}
    with serving(config, *where, **keys) as url:
        url = url.replace("0.0.0.0", "127.0.0.1")
        assert post(f"{url}/v1/chat/completions", body_of("chat"))[0] == 401
        assert post(f"{url}/r/name/v1/chat/completions", body_of("chat"))[0] == 401
        assert post(f"{url}/v1/chat/completions", body_of("chat"), x_api_key=TOKEN)[0] == 200
        assert post(f"{url}/v1/chat/completions", body_of("chat"), authorization=f"Bearer {TOKEN}")[0] == 200
    for request in provider.requests:
        assert request.headers["authorization"] == "Bearer sk-configured-0123456789"
        assert TOKEN not in str(request.headers)


def test_more_sessions_than_a_process_may_open_files(config: Config, provider: ScriptedProvider) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, limits[1]))
    try:
        with serving(config, "--base-url", provider.base_url, "--model", "custom/model-1") as url:
            for round_name in ("first", "second"):
                for number in range(150):
                    body = body_of("chat", f"{round_name} of {number}")
                    assert post(f"{url}/r/key{number}/v1/chat/completions", body)[0] == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert sum(trajectory.turns for trajectory in stored(config)) == 300


def test_without_a_token_it_does_not_listen_elsewhere(config: Config, provider: ScriptedProvider) -> None:
    words = ["record", "serve", "--host", "0.0.0.0", "--port", "0", "--base-url", provider.base_url]
    environ = {**os.environ, "HERMES_HOME": str(config.home)}
    for variables in ({}, {"HERMES_RECORD_TOKEN": TOKEN}):
        done = subprocess.run(
            [sys.executable, "-m", "hermes", *words],
            env={**environ, **variables},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2 and "error: " in done.stderr


def test_a_session_is_stored_when_it_rests_and_continued_later(
    config: Config, provider: ScriptedProvider
) -> None:
    body = body_of("messages", "first 1")
    with serving(config, "--base-url", provider.base_url, "--protocol", "messages", "--idle", "0.2") as url:
        post(f"{url}/v1/messages", body, x_session_id="s1")
        wait_until(lambda: (config.home / "hermes.db").exists() and stored(config))
        body["messages"] += [
            {"role": "assistant", "content": "answer 1"},
            {"role": "user", "content": "then 2"},
        ]
        post(f"{url}/v1/messages", body, x_session_id="s1")
    first, second = stored(config)
    assert second.header.parent_id == first.header.id and second.header.relation is Relation.CONTINUED
    assert [step.kind.value for step in second.steps] == ["input", "input", "input", "model"]
    assert first.turns == second.turns == 1 and first.header.session_id == second.header.session_id == "s1"
