"""Recordings that are damaged, of another version or odd: what can be read is stored, the rest is named."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes.config.load import Config
from hermes.core import StepKind
from hermes.gateway.journal import CallEnd, Group, Journal, RecordedCall, Recording
from hermes.gateway.service import Settling, recordings_dir
from hermes.gateway.wire import Protocol
from tests.gateway import client_requests
from tests.gateway.conftest import hermes, stored
from tests.gateway.requests import body_of
from tests.gateway.scripted import Call, Reply, chat, messages, responses

ANSWERS = {"chat": chat, "messages": messages, "responses": responses}
ODD: list[Any] = [None, 7, "", [], {}, [None], {"a": 1}, "x", True, -1, 1e300, ["x"], [[]], "\ud800", "\0"]


def recorded(name: str, protocol: str, body: Any, answer: Any) -> RecordedCall:
    sent, received = json.dumps(body).encode(), json.dumps(answer).encode()
    place = ("http://127.0.0.1:1/v1", "scripted", {"user-agent": "pi/1.0"})
    return RecordedCall(
        name, Protocol(protocol), 1_795_000_000_000, 5.0, 1.0, 200, CallEnd.COMPLETE, *place, sent, received
    )


def left_by_a_killed_process(config: Config, calls: list[RecordedCall]) -> Path:
    """A recording that nobody has settled, in a folder that nobody holds."""
    journal = Journal(recordings_dir(config), {})
    journal.note(Group("key"))
    for call in calls:
        journal.append("key", call).result()
    path = journal.rotate("key")
    assert path is not None
    journal.close()
    return path


def answers(config: Config) -> list[str]:
    steps = [step for trajectory in stored(config) for step in trajectory.steps]
    return sorted(step.message.content for step in steps if step.kind is StepKind.MODEL)


def test_lines_that_cannot_be_read_are_named_and_the_others_are_stored(config: Config) -> None:
    calls = []
    for number in range(7):
        body = body_of("chat", f"say {number}")
        calls.append(recorded(f"c{number}", "chat", body, chat(body, Reply(f"said {number}"), number)[0]))
    path = left_by_a_killed_process(config, calls)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 8  # the first one has the facts of the group
    lines[2] = lines[2][: len(lines[2]) // 2] + b"\n"
    lines[4] = lines[4].replace(b'"protocol":"chat"', b'"protocol":"telepathy"')
    lines[6] = (
        json.dumps({**json.loads(lines[6]), "request": ["AAAA"]}, separators=(",", ":")).encode() + b"\n"
    )
    newer = json.loads(lines[7])
    newer["call"]["from_the_future"] = newer["from_the_future"] = {"a": 1}
    lines[7] = json.dumps(newer, separators=(",", ":")).encode() + b"\n"
    lines.insert(5, b"\xff\xfe\x00 no text\n")
    torn = lines[1][:100]  # the end of a write that was never acknowledged
    path.write_bytes(b"".join([*lines, torn]))
    done = hermes(config, config.home, "record", "--", "true")
    assert done.returncode == 0, done.stderr
    kept = recordings_dir(config) / f"{path.name}.damaged"
    named = [line.partition(f"{kept}: line ")[2].partition(" ")[0] for line in done.stderr.splitlines()]
    assert list(filter(None, named)) == ["3", "5", "6", "8"]
    assert kept.read_bytes().startswith(b"".join(lines)) and not path.exists()
    assert answers(config) == ["said 0", "said 2", "said 4", "said 6"]
    again = hermes(config, config.home, "record", "--", "true")
    assert "cannot be read" not in again.stderr and len(answers(config)) == 4


@pytest.mark.parametrize("seed", range(12))
def test_no_damage_ends_a_recording(config: Config, seed: int) -> None:
    """Values of requests, answers and lines are replaced by others: every whole line has its place."""
    draw = random.Random(seed)

    def damage(value: Any) -> Any:
        if draw.random() < 0.02:
            return draw.choice(ODD)
        if isinstance(value, dict):
            return {name: damage(item) for name, item in value.items() if draw.random() > 0.01}
        return [damage(item) for item in value] if isinstance(value, list) else value

    calls = []
    for name in sorted(path.stem for path in client_requests.FOLDER.glob("*.json")):
        for number, exchange in enumerate(client_requests.read(name)):
            protocol = next(word for word in ("messages", "responses", "chat") if word in exchange.path)
            body = exchange.body if draw.random() < 0.3 else damage(exchange.body)
            answer = damage(ANSWERS[protocol](exchange.body, exchange.reply, number)[0])
            calls.append(recorded(f"{name}-{number}", protocol, body, answer))
    path = left_by_a_killed_process(config, calls)
    lines = path.read_bytes().splitlines()
    for at in draw.sample(range(1, len(lines)), 4):
        fields = json.loads(lines[at])
        lines[at] = json.dumps(
            {**fields, "call": damage(damage(fields["call"]))}, separators=(",", ":")
        ).encode()
    path.write_bytes(b"\n".join([*lines, b""]))
    recording = Recording(path)
    readable = {call.id for _, call in recording.calls()}
    assert len(readable) + len(recording.damage) == len(calls)
    Settling(config).recover()
    trajectories = stored(config)
    kept = sum(
        trajectory.turns + len(trajectory.header.config.get("failures") or ()) for trajectory in trajectories
    )
    attempts = sum(step.call.attempts - 1 for one in trajectories for step in one.steps if step.call)
    assert kept + attempts == len(readable)
    assert not path.exists()


@pytest.mark.parametrize("protocol", ANSWERS)
def test_halves_of_characters_are_stored(config: Config, protocol: str) -> None:
    """Clients that cut a text in the middle of a character spell half of it in their JSON."""
    half = "a\ud83d"
    tools = [{"name": half, "function": {"name": half}, "type": "function"}]
    body = body_of(protocol, half, model=half, tools=tools, prompt_cache_key=half)
    reply = Reply(f"said {half}", half, (Call(half, json.dumps({half: half}), half),))
    call = recorded("c1", protocol, body, ANSWERS[protocol](body, reply, 1)[0])
    left_by_a_killed_process(config, [call])
    Settling(config).recover()
    (trajectory,) = stored(config)
    assert trajectory.turns == 1 and not list(recordings_dir(config).glob("*.damaged"))


_SETTLED_IN_A_CHILD = r"""
import re
from hermes.config.load import load
from hermes.gateway.service import Settling
def most_kb():
    return int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
before = most_kb()
assert Settling(load()).recover().calls
print(most_kb() - before >> 10)
"""


@pytest.mark.parametrize(
    ("turns", "most_mb"),
    [(150, 25), pytest.param(780, 150, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_memory_does_not_grow_with_a_session(config: Config, turns: int, most_mb: int) -> None:
    """17 MB (500 MB) of requests, of which each has the history of the one before."""
    journal = Journal(recordings_dir(config), {})
    history: list[Any] = [{"role": "user", "content": "go on " * 300}]
    size_bytes = 0
    for number in range(turns):
        body = {"model": "m", "messages": history, "tools": [{"name": "bash", "input_schema": {}}]}
        reply = Reply(f"a{number}", calls=(Call("bash", "{}", f"t{number}"),))
        whole = messages(body, reply, number)[0]
        call = recorded(f"{number:05}", "messages", body, whole)
        size_bytes += len(call.request)
        journal.append("key", call).result()
        history.append({"role": "assistant", "content": whole["content"]})
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"{number} " * 400}
        history.append({"role": "user", "content": [result]})
    path = journal.rotate("key")
    journal.close()
    assert path is not None and size_bytes > turns * turns * 700
    done = subprocess.run([sys.executable, "-c", _SETTLED_IN_A_CHILD], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < most_mb
    assert sum(trajectory.turns for trajectory in stored(config)) == turns
