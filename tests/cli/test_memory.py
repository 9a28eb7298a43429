"""`hermes memory` and the memory in a chat, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.batch.drive import command, rows, solve, write_tasks
from tests.cli.process import failure, hermes
from tests.cli.terminal import hermes_terminal
from tests.fakes.provider import FakeProvider, text, tool_calls


def listed(home: Path) -> list[dict[str, Any]]:
    facts: list[dict[str, Any]] = json.loads(hermes(home, "memory", "list", "--json").stdout)
    return facts


def add(home: Path, line: str, *flags: str) -> dict[str, Any]:
    done = hermes(home, "memory", "add", line, *flags, "--json")
    assert done.returncode == 0, done.stderr
    fact: dict[str, Any] = json.loads(done.stdout)
    return fact


def test_facts_are_added_listed_shown_and_removed(tmp_path: Path) -> None:
    assert "nothing is remembered yet" in hermes(tmp_path, "memory", "list").stdout
    with FakeProvider([text("Noted.")]) as provider:
        hermes(tmp_path, "-q", "I use metric units.", "--model", "m", "--base-url", provider.base_url)
    first = add(tmp_path, "uses \x1b[31mmetric\n units", "--trajectory", "last", "--step", "1")
    second = add(tmp_path, "works with kilns")
    assert listed(tmp_path) == [first, second]
    assert (first["text"], first["author"], first["step_index"]) == ("uses metric units", "user", 1)
    table = hermes(tmp_path, "memory", "list").stdout
    assert f"{first['trajectory_id']}:1" in table and "works with kilns" in table
    shown = hermes(tmp_path, "memory", "show", first["id"][-8:]).stdout
    assert "I use metric units." in shown and f"trajectories show {first['trajectory_id']}" in shown
    assert "added on the command line" in hermes(tmp_path, "memory", "show", second["id"]).stdout
    assert json.loads(hermes(tmp_path, "memory", "show", second["id"], "--json").stdout) == second
    removed = hermes(tmp_path, "memory", "remove", first["id"], second["id"], "--json")
    assert json.loads(removed.stdout) == [first, second] and listed(tmp_path) == []


def test_what_cannot_be_remembered_or_named_says_why(tmp_path: Path) -> None:
    fact = add(tmp_path, "works with kilns")
    for arguments, problem in (
        (("add", "works  with kilns"), f"this is remembered already, as {fact['id']}"),
        (("add", " \n "), "the fact is empty"),
        (("add", "word " * 100), "the fact has 499 characters; the most is 300"),
        (("add", "x", "--step", "1"), "--step needs --trajectory"),
        (("show", "0"), "'0' is too short to name a fact"),
        (("remove", "000000"), "'000000' matches no fact"),
    ):
        error, fix = failure(hermes(tmp_path, "memory", *arguments), 2)
        assert error == problem and fix
    hermes(tmp_path, "config", "set", "memory.enabled", "false")
    done = hermes(tmp_path, "memory", "list")
    assert "works with kilns" in done.stdout and "turned off" in done.stderr


def test_in_a_chat_the_user_sees_what_is_remembered_and_can_take_it_back(tmp_path: Path) -> None:
    hidden = "likes tea " + "and biscuits " * 18
    script = [
        tool_calls([("memory", {"action": "add", "text": hidden})]),
        text("Noted."),
        text("Hello again."),
    ]
    with FakeProvider(script) as provider:
        flags = ("--model", "m", "--base-url", provider.base_url, "--toolsets", "memory")
        with hermes_terminal(tmp_path, *flags) as terminal:
            terminal.expect("tools: memory")
            terminal.line("I like tea.")
            terminal.expect("remembered for later sessions: likes tea")
            terminal.expect(r"and\s+biscuits\s+\(undo: /memory remove \w+\)")
            terminal.expect("Noted.")
            terminal.line("/new")
            terminal.expect("new conversation")
            terminal.line("Hello?")
            terminal.expect("Hello again.")
            terminal.line("/memory")
            terminal.expect("agent .*likes tea")
            terminal.line("/memory forget it")
            terminal.expect("is not understood")
            terminal.line(f"/memory remove {listed(tmp_path)[0]['id']}")
            terminal.expect("removed")
            terminal.line("/quit")
            assert terminal.wait() == 0
        prompts = [request.json["messages"][0]["content"] for request in provider.posts]
    assert ["likes tea" in prompt for prompt in prompts] == [False, False, True]
    assert listed(tmp_path) == []
    exported = tmp_path / "all.jsonl"
    assert hermes(tmp_path, "export", "--all", "--output", str(exported)).returncode == 0
    systems = [json.loads(line)["conversations"][0]["value"] for line in exported.read_text().splitlines()]
    assert len(systems) == 2 and not any("likes tea" in system for system in systems)


def test_a_batch_run_neither_shows_nor_offers_the_memory(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    with FakeProvider(solve) as provider:
        flags = command(tmp_path, provider)
        assert hermes(tmp_path, *flags).returncode == 0
        without = rows(tmp_path)
        add(tmp_path, "has a dog called Ada")
        again = [*command(tmp_path, provider, name="again")]
        again[again.index("--toolsets") + 1] = "math,memory"
        refused = hermes(tmp_path, *again)
        assert refused.returncode == 2 and "memory (it needs a person" in refused.stderr
        assert hermes(tmp_path, *again, "--allow-missing-toolsets").returncode == 0
        requests = [request.json for request in provider.posts]
    assert all("Ada" not in json.dumps(request) for request in requests)
    offered = {tool["function"]["name"] for request in requests for tool in request["tools"]}
    assert offered == {"calculator"}
    turns = [[turn["value"] for turn in row["conversations"]] for row in rows(tmp_path, "again")]
    assert [turn[0] for turn in turns] == [row["conversations"][0]["value"] for row in without]
