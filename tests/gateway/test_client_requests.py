"""The requests of the real clients, replayed: passed on byte for byte or translated, and their trees."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hermes.config.load import Config
from hermes.core import Relation, StepKind, Trajectory
from hermes.gateway.wire import Protocol
from tests.gateway import client_requests
from tests.gateway.conftest import EVERYTHING, gateway, stored
from tests.gateway.requests import post
from tests.gateway.scripted import ScriptedProvider

NAMES = sorted(path.stem for path in client_requests.FOLDER.glob("*.json"))
TWO = [StepKind.MODEL, StepKind.TOOL, StepKind.TOOL, StepKind.MODEL]
DELEGATED = [StepKind.MODEL, StepKind.TOOL, StepKind.MODEL]
CHAT = frozenset({Protocol.CHAT})


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider() as scripted:
        yield scripted


def kinds(trajectory: Trajectory) -> list[StepKind]:
    return [step.kind for step in trajectory.steps if step.kind is not StepKind.INPUT]


def test_every_client_has_fixtures() -> None:
    clients = {name.rpartition("-")[0] for name in NAMES}
    assert clients == {"aider", "claude-code", "codex", "opencode", "pi", "mini-swe-agent"}


@pytest.mark.parametrize("name", NAMES)
def test_fixtures_hold_no_text_of_others(name: str) -> None:
    rows = json.loads((client_requests.FOLDER / f"{name}.json").read_text("utf-8"))
    bodies = [row["body"] for row in rows]
    assert client_requests.neutral(bodies, "/home/nobody") == bodies


@pytest.mark.parametrize("speaks", [EVERYTHING, CHAT], ids=["passed-on", "translated"])
@pytest.mark.parametrize("name", NAMES)
def test_requests_are_answered_and_make_their_tree(
    config: Config, provider: ScriptedProvider, name: str, speaks: frozenset[Protocol]
) -> None:
    exchanges = client_requests.read(name)
    replies = iter([exchange.reply for exchange in exchanges])
    provider.script = lambda body: next(replies)
    with gateway(config, provider.url, speaks) as recording:
        for exchange in exchanges:
            sent = json.dumps(exchange.body, ensure_ascii=False).encode()
            headers = {key.replace("-", "_"): value for key, value in exchange.headers.items()}
            status, received, _ = post(f"{recording.url}{exchange.path}", sent, **headers)
            assert status == 200, received
            heard = provider.requests[-1]
            if speaks is EVERYTHING or exchange.path.endswith("chat/completions"):
                assert (heard.body, received) == (sent, provider.responses[-1])
                assert heard.headers.items() >= exchange.headers.items()
            else:
                assert heard.path == "/v1/chat/completions" and heard.json["messages"]
    trajectories = stored(config)
    check_tree(name, trajectories)
    assert sum(trajectory.turns for trajectory in trajectories) == len(exchanges)


def check_tree(name: str, trajectories: list[Trajectory]) -> None:
    agent, _, job = name.rpartition("-")
    (main,) = [trajectory for trajectory in trajectories if trajectory.header.relation is None]
    children = [one for one in trajectories if one.header.relation is Relation.DELEGATE]
    sides = [one for one in trajectories if one.header.relation is Relation.SIDE]
    assert len(trajectories) == 1 + len(children) + len(sides)
    assert all(one.header.parent_id == main.header.id for one in (*children, *sides))
    assert len(sides) == (1 if agent == "opencode" else 0)  # its title
    assert main.answer == "All done."
    if job == "none":
        assert kinds(main) == [StepKind.MODEL] and not children
    elif job == "two":
        assert kinds(main) == TWO and not children
    else:
        assert kinds(main) == DELEGATED
        (child,) = children
        assert kinds(child) == (DELEGATED if agent != "codex" else [StepKind.MODEL])
        assert {main.header.session_id} == {child.header.session_id}
    if agent in ("claude-code", "codex", "opencode"):  # the others do not name themselves
        assert main.header.metadata["agent"] == agent and main.header.metadata["agent_version"]
