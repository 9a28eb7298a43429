"""The interactive chat in a real terminal."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from tests.cli.process import hermes
from tests.cli.terminal import hermes_terminal
from tests.fakes.provider import FakeProvider, hang, text, tool_calls
from tests.waiting import wait_until


def rows(home: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(hermes(home, "trajectories", "list", "--json").stdout)
    return found


def flags(provider: FakeProvider, toolsets: str = "math") -> tuple[str, ...]:
    return ("--model", "m", "--base-url", provider.base_url, "--toolsets", toolsets)


def test_a_conversation_with_tools_ratings_a_retry_and_a_save(tmp_path: Path) -> None:
    script = [
        tool_calls([("calculator", {"expression": "6 * 7"})]),
        text("Forty-two."),
        text("It is 42."),
        text("Bye then."),
    ]
    with FakeProvider(script) as provider, hermes_terminal(tmp_path, *flags(provider)) as terminal:
        terminal.expect("custom/m  tools: math")
        terminal.line("What is 6 * 7?")
        terminal.expect(r'-> calculator\(expression="6 \* 7"\)')
        terminal.expect(r"<- calculator: ok, [\d.]+ s  42")
        terminal.expect("Forty-two.")
        terminal.expect(r"\[this turn: \d+ tokens in, \d+ out, [\d.]+ s \| conversation: .* cost \$0\]")
        terminal.line("/bad")
        terminal.expect("rated")
        terminal.line("/retry")
        terminal.expect("It is 42.")
        terminal.line("/good")
        terminal.expect("rated")
        terminal.line("/better")
        terminal.expect("rated: the retry is better")
        terminal.line("/rate 7")
        terminal.expect("is not a rating")
        terminal.line("/nonsense")
        terminal.expect("no command /nonsense")
        terminal.line("/save out.jsonl")
        terminal.expect("saved")
        terminal.line("/tools")
        terminal.expect("calculator")
        terminal.line("/skills")
        terminal.line("/new")
        terminal.expect("new conversation")
        terminal.line("Goodbye.")
        terminal.expect("Bye then.")
        terminal.line("/quit")
        assert terminal.wait() == 0
    listed = rows(tmp_path)
    assert [row["stop_reason"] for row in listed] == ["completed"] * 3
    _, retried, first = listed
    assert (retried["relation"], retried["parent_id"]) == ("retry", first["id"])
    assert (first["rating"], retried["rating"]) == (1.0, 5.0)
    assert len({row["session_id"] for row in listed}) == 1
    saved = json.loads((tmp_path / "out.jsonl").read_text())
    assert saved["id"] == retried["id"]
    assert saved["conversations"][-1] == {"from": "gpt", "value": "It is 42."}


def test_ratings_of_a_chat_become_pairs_of_the_answers_that_were_rated(tmp_path: Path) -> None:
    """Four chats begin with "hi"; two rated answers answer the same question in the same context."""
    chats = [
        (("hi", "Hello!", None), ("What is 2 + 2?", "It is 5.", "/bad")),
        (("hi", "Hey there.", None), ("Name a fruit.", "Apple.", "/good")),
        (("hi", "Hello!", None), ("What is 2 + 2?", "It is 4.", "/good"), ("Thanks.", "Welcome.", None)),
        (("hi", "Go away.", "/bad"), ("Sorry?", "Only joking.", "/good")),
    ]
    script = [text(answer) for chat in chats for _, answer, _ in chat]
    with FakeProvider(script) as provider, hermes_terminal(tmp_path, *flags(provider, "none")) as terminal:
        terminal.expect("custom/m")
        for chat in chats:
            for question, answer, verdict in chat:
                terminal.line(question)
                terminal.expect(re.escape(answer))
                terminal.expect("tokens")
                if verdict is not None:
                    terminal.line(verdict)
                    terminal.expect("rated")
            terminal.line("/new")
            terminal.expect("new conversation")
        terminal.line("/quit")
        assert terminal.wait() == 0
    output = tmp_path / "pairs.jsonl"
    exported = hermes(tmp_path, "export", "--format", "trl-preference", "--all", "--output", str(output))
    assert exported.returncode == 0, exported.stderr
    (pair,) = [json.loads(line) for line in output.read_text().splitlines()]
    assert [message["content"] for message in pair["prompt"]][1:] == ["hi", "Hello!", "What is 2 + 2?"]
    assert [message["content"] for message in pair["chosen"]] == ["It is 4."]
    assert [message["content"] for message in pair["rejected"]] == ["It is 5."]
    assert (pair["origin"], pair["margin"]) == ("rating", 4.0)


def test_ctrl_c_stops_the_turn_and_not_the_program(tmp_path: Path) -> None:
    with (
        FakeProvider([hang(60), text("Still here.")]) as provider,
        hermes_terminal(tmp_path, *flags(provider)) as terminal,
    ):
        terminal.expect("tools: math")
        terminal.line("Hello?")
        wait_until(lambda: provider.requests)
        terminal.expect(r"waiting for custom/\S+ … \d+ s")
        terminal.type("\x03")
        terminal.expect(r"\(stopped; what arrived is recorded")
        terminal.line("Are you there?")
        terminal.expect("Still here.")
        terminal.expect(r"cost \$0\]\s+>")
        terminal.type("\x04")
        assert terminal.wait() == 0
    assert [row["stop_reason"] for row in rows(tmp_path)] == ["completed"]


def test_a_dangerous_command_is_asked_about_and_a_no_is_kept_to(tmp_path: Path) -> None:
    victim = tmp_path / "precious.txt"
    victim.write_text("keep me")
    command = f"rm {victim}"
    script = [
        tool_calls([("terminal", {"command": command})]),
        text("Understood."),
        tool_calls([("terminal", {"command": command})]),
        text("Gone."),
    ]
    with (
        FakeProvider(script) as provider,
        hermes_terminal(tmp_path, *flags(provider, "terminal")) as terminal,
    ):
        terminal.expect("tools: terminal")
        terminal.line("Remove it.")
        terminal.expect("wants to run")
        terminal.expect("rm ")
        terminal.expect(r"\[N\]o:")
        terminal.line("n")
        terminal.expect("Understood.")
        assert victim.exists()
        terminal.line("Really, remove it.")
        terminal.expect(r"wants to run[^:]*:[^:]*\[N\]o:")
        terminal.line("y")
        terminal.expect("Gone.")
        assert not victim.exists()
        terminal.line("/quit")
        terminal.wait()
    stats = json.loads(hermes(tmp_path, "trajectories", "stats", "--json").stdout)
    assert stats["tools"]["terminal"]["by_error"] == {"refused": 1}


def test_a_message_of_several_lines_and_a_change_of_tools_midway(tmp_path: Path) -> None:
    script = [text("Two lines."), text("No tools now.")]
    with FakeProvider(script) as provider, hermes_terminal(tmp_path, *flags(provider)) as terminal:
        terminal.expect(r"leaves\)\s+>")
        terminal.type("first")
        terminal.type("\x1b\r")
        terminal.line("second")
        terminal.expect("Two lines.")
        terminal.line("/tools none")
        terminal.expect("no tools")
        terminal.line("And now?")
        terminal.expect("No tools now.")
        terminal.line("/model")
        terminal.expect("custom/m")
        terminal.line("/skills trl")
        terminal.expect("TRL")
        terminal.line("/quit")
        assert terminal.wait() == 0
        asked = [request.json for request in provider.posts]
    assert asked[0]["messages"][-1]["content"] == "first\nsecond"
    assert "tools" in asked[0]
    assert not asked[1].get("tools")
    assert [m["content"] for m in asked[1]["messages"][1:]] == ["first\nsecond", "Two lines.", "And now?"]
    continued, first = rows(tmp_path)
    assert (continued["relation"], continued["parent_id"]) == ("continued", first["id"])


def test_a_provider_failure_is_shown_and_the_chat_goes_on(tmp_path: Path) -> None:
    from tests.fakes.provider import status

    with (
        FakeProvider([status(401), text("Back.")]) as provider,
        hermes_terminal(tmp_path, *flags(provider)) as terminal,
    ):
        terminal.expect("tools: math")
        terminal.line("Hello")
        terminal.expect("error: ")
        terminal.line("Again")
        terminal.expect("Back.")
        terminal.line("/model nowhere/x")
        terminal.expect("serves no model")
        terminal.line("/quit")
        assert terminal.wait() == 0


def test_a_conversation_is_resumed_undone_and_continued_with_another_model_of_the_server(
    tmp_path: Path,
) -> None:
    (tmp_path / "facts.txt").write_text("The sky is green.")
    (tmp_path / "out.jsonl").write_text("precious")
    script = [text("# Title\n**Noted.**"), text("Wrong."), text("Blue."), text("Still here.")]
    with FakeProvider(script, models=("m", "other")) as provider:
        with hermes_terminal(tmp_path, *flags(provider, "none")) as terminal:
            terminal.expect("custom/m")
            terminal.line("Read @facts.txt please")
            terminal.expect("Noted.")
            terminal.expect("this turn: ")
            terminal.line("/rate 4 well read")
            terminal.expect(r"rated .*: 4 \(well read\)")
            terminal.line("What colour?")
            terminal.expect("Wrong.")
            terminal.line("/undo")
            terminal.expect("taken back: What colour")
            terminal.line("/model othr")
            terminal.expect("did you mean other")
            terminal.line("/model other")
            terminal.expect("now custom/other")
            terminal.line("What colour is it?")
            terminal.expect("Blue.")
            terminal.line("/save out.jsonl")
            terminal.expect(r"Overwrite it\?")
            time.sleep(0.5)
            terminal.line("n")
            terminal.expect("not saved")
            terminal.line("/exit")
            assert terminal.wait() == 0
        with hermes_terminal(tmp_path, "-c", *flags(provider, "none")) as terminal:
            terminal.expect("continuing ")
            terminal.line("Are you there?")
            terminal.expect("Still here.")
            terminal.line("/resume")
            terminal.expect("/resume ID continues one of them")
            terminal.line("/exit")  # Ctrl-D before the prompt is there would be lost
            assert terminal.wait() == 0
        bodies = [request.json for request in provider.posts]
    assert (tmp_path / "out.jsonl").read_text() == "precious"
    assert "The sky is green." in bodies[0]["messages"][-1]["content"]
    assert [body["model"] for body in bodies] == ["m", "m", "other", "m"]
    questions = [m["content"] for m in bodies[3]["messages"] if m["role"] == "user"]
    assert [question.partition(" ")[0] for question in questions] == ["Read", "What", "Are"]
    assert all("Wrong." not in m["content"] for m in bodies[2]["messages"] + bodies[3]["messages"])
