"""An environment of ours served for OpenEnv clients, and played by our own client over a real WebSocket."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from pathlib import Path

import pytest

from hermes.envs.openenv.serve import open_environment
from hermes.envs.openenv.wire import NoFreeSessionError, open_episode
from hermes.errors import ConfigError, SandboxError, UsageError
from tests.envs.openenv.world import FOLDER, call, opened, served
from tests.envs.world import stored

pytest.importorskip("websockets", reason="the package websockets of the extra 'envs' is not installed")
pytestmark = pytest.mark.usefixtures("home")
WORDS = FOLDER / "words.py"
PLAY = (call("look"), call("submit_answer", answer="word1"))


async def test_an_episode_ends_with_its_reward_and_both_sides_record_it(home: Path) -> None:
    with served(WORDS) as (url, _):
        env = await opened(home, *PLAY, url=url, shuffle=False)
        rollout = await env.run_item(await env.get_next_item())
        assert (rollout.reward.value, rollout.reward.detail) == (1.0, "step rewards: - 1")
        texts = [message["content"] for message in rollout.result.messages]
        assert texts == [
            "The policy says the word that a tool shows.\n\nTask w1: look, and say the word.",
            "",
            "word1",
            "",
            "The episode is over.",
        ]
        assert rollout.result.turns_used == 2, "the model is not asked once the episode is over"
        env._policy().turns = (call("look"), call("submit_answer", answer="no"))  # type: ignore[attr-defined]
        wrong = await env.run_item(await env.get_next_item())
        assert wrong.reward.value == 0.0
        await env.close()
    models = [row.header.model for row in stored(home) if row.answer or row.steps[-1].message.role == "tool"]
    assert sorted(models) == ["openenv/client"] * 2 + ["scripted/policy"] * 2


async def test_rollouts_wait_for_a_session(home: Path) -> None:
    with served(WORDS, "--sessions", "1", "--tasks", "1") as (url, _):
        env = await opened(home, *PLAY, url=url)
        items = [await env.get_next_item() for _ in range(3)]
        rollouts = await asyncio.gather(*(env.run_item(item) for item in items))
        assert [rollout.reward.value for rollout in rollouts] == [1.0, 1.0, 1.0]
        session, _ = await open_episode([url], {}, answer_s=30, patience_s=0)
        with pytest.raises(NoFreeSessionError, match="all 1 sessions are taken"):
            await open_episode([url], {}, answer_s=30, patience_s=0)
        await session.close()
        await env.close()


async def test_a_grader_that_fails_is_no_reward(home: Path) -> None:
    with served(WORDS) as (url, _):
        env = await opened(home, *PLAY, url=url)
        task = [await env.get_next_item() for _ in range(4)][3]
        with pytest.raises(SandboxError, match="the grader's service is gone"):
            await env.run_item(task)
        await env.close()


@pytest.mark.parametrize(("number", "problem"), [(signal.SIGKILL, "lost"), (signal.SIGSTOP, "no answer")])
async def test_a_server_that_dies_or_hangs_is_no_score(
    home: Path, number: signal.Signals, problem: str
) -> None:
    with served(WORDS) as (url, process):
        session, _ = await open_episode([url], {}, answer_s=2, patience_s=0)
        process.send_signal(number)
        with pytest.raises(SandboxError, match=problem):
            await session.step({"type": "call_tool", "tool_name": "look", "arguments": {}})
        await session.close()


async def test_a_rollout_whose_server_is_gone_is_no_score(home: Path) -> None:
    with served(WORDS) as (url, process):
        env = await opened(home, *PLAY, url=url)
        process.kill()
        process.wait()
        with pytest.raises(SandboxError, match="cannot be reached"):
            await env.run_item(await env.get_next_item())
        await env.close()
    with pytest.raises(ConfigError, match="no OpenEnv server answers"):
        await opened(home, url=url, start_patience_s=0)


async def test_what_is_no_action_is_refused_and_the_session_goes_on(home: Path) -> None:
    from hermes.errors import ToolError

    with served(WORDS) as (url, _):
        session, first = await open_episode([url], {"seed": 1}, answer_s=30, patience_s=0)
        assert first.data["prompt"] == "Task w2: look, and say the word."
        with pytest.raises(ToolError, match="an action is"):
            await session.step({"word": 1})
        names = [tool["name"] for tool in await session.list_tools()]
        assert names == ["look", "submit_answer"]
        assert not first.done
        with pytest.raises(SandboxError, match="seed"):
            await session.reset({"seed": -1})
        await session.close()


def test_an_environment_that_samples_by_itself_is_refused(tmp_path: Path) -> None:
    from hermes.envs.base import BaseEnv

    with pytest.raises(UsageError, match="samples its answers itself"):
        open_environment(BaseEnv, [])


async def test_settings_that_name_no_server_are_refused(home: Path) -> None:
    for settings in ({}, {"url": "ws://h", "package": "p"}):
        with pytest.raises(ConfigError, match="a server or a package"):
            await opened(home, **settings)
    with pytest.raises(ConfigError, match="no interpreter"):
        await opened(home, package="p", python="/no/python")


UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
STRANGERS = {
    "Host: evil.example\r\n": 403,
    "Host: localhost\r\nHost: evil.example\r\n": 400,
    **{
        f"Host: localhost\r\n{header}\r\n": 403
        for header in (
            "Origin: http://evil.example",
            "Origin: null",
            "Referer: http://evil.example/page",
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Site: same-site",
        )
    },
}


def upgraded(url: str, headers: str, first: str = "") -> list[int]:
    """The statuses of the replies to a request for a WebSocket, after a `first` request."""
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        replies = b""
        if first:
            client.sendall(first.encode())
            replies = client.recv(65_536)
        client.sendall(f"GET /ws HTTP/1.1\r\n{UPGRADE}{headers}\r\n".encode())
        while chunk := client.recv(65_536):
            replies += chunk
            if b" 101 " in replies:
                break
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", replies)]


def test_a_websocket_of_a_stranger_is_refused_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    first = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(WORDS) as (url, _):
        assert upgraded(url, "Host: localhost\r\n") == [101]
        for headers, status in STRANGERS.items():
            assert upgraded(url, headers) == [status], headers
            assert upgraded(url, headers, first) == [200, status], headers
    assert "Traceback" not in capfd.readouterr().err


async def test_a_message_that_is_no_text_is_answered(capfd: pytest.CaptureFixture[str]) -> None:
    from websockets.asyncio.client import connect

    with served(WORDS) as (url, _):
        async with connect(f"{url.replace('http', 'ws')}/ws", proxy=None) as session:
            for message in (b"\x00\xff", b"[]", "[" * 100_000, '{"type": ["reset"]}'):
                await session.send(message)
                assert '"type": "error"' in str(await session.recv())
            await session.send(b'{"type": "reset"}')
            assert "look, and say the word" in str(await session.recv())
    assert "Traceback" not in capfd.readouterr().err
