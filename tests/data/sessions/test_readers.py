"""Each client's sessions as trajectories: branches, sub-agents, compaction, thinking, results, usage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes.core import Relation, Role, Source, StepKind, StopReason, Trajectory, Usage
from hermes.core.model_call import INTERRUPTED
from hermes.store import Reader
from tests.data.sessions.clients import (
    CLIENTS,
    FIXTURES,
    copy_of,
    hermes_agent_rows,
    imported,
    read_rows,
    write_lines,
)


def stored(db: Path) -> list[Trajectory]:
    with Reader(db) as reader:
        return list(reader.trajectories())


def one_file(client: str, name: str, tmp_path: Path, folder: Path | None = None) -> list[Trajectory]:
    folder = folder or copy_of(client, tmp_path)
    done = imported(tmp_path / "hermes.db", client, folder / name)
    assert done.problems == []
    return stored(tmp_path / "hermes.db")


def texts(trajectory: Trajectory) -> list[tuple[str, str]]:
    return [(message.role.value, message.content) for message in trajectory.messages]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_session_is_imported_once(client: str, tmp_path: Path) -> None:
    path, db = copy_of(client, tmp_path), tmp_path / "hermes.db"
    first = imported(db, client, path)
    assert first.problems == []
    assert first.rows > 0
    again = imported(db, client, path)
    assert (again.rows, again.known, again.problems) == (0, first.rows, [])
    for trajectory in stored(db):
        assert trajectory.header.source is Source.IMPORT
        assert trajectory.header.metadata["agent"] == client
        assert set(trajectory.header.metadata) <= {"agent", "agent_version"}
        assert trajectory.turns > 0
        assert trajectory.header.session_id


@pytest.mark.parametrize("client", CLIENTS)
def test_auto_recognises_every_client(client: str, tmp_path: Path) -> None:
    copy_of(client, tmp_path / "home")
    db = tmp_path / "hermes.db"
    assert imported(db, "auto", tmp_path / "home").rows > 0
    assert {trajectory.header.metadata["agent"] for trajectory in stored(db)} == {client}


def test_claude_code_blocks_of_an_answer_are_one_call(tmp_path: Path) -> None:
    (trajectory,) = one_file("claude-code", "edit.jsonl", tmp_path)
    assert trajectory.header.metadata == {"agent": "claude-code", "agent_version": "2.1.197"}
    assert trajectory.header.model == "claude-sonnet-4-5"
    assert trajectory.turns == 6
    answer = trajectory.steps[1]
    assert answer.message.reasoning == "A small file first."
    assert answer.message.content == "I write it."
    (call,) = answer.message.tool_calls
    assert call.name == "Write"
    assert call.parsed()["content"] == "def hello():\n    return 1\n"
    assert answer.call is not None
    assert answer.call.usage == Usage(input_tokens=1000, output_tokens=20)
    failed = next(step.result for step in trajectory.steps if step.result and not step.result.ok)
    assert (failed.name, failed.exit_code) == ("Bash", 3)


def test_claude_code_parallel_results_follow_their_calls(tmp_path: Path) -> None:
    (trajectory,) = one_file("claude-code", "edit.jsonl", tmp_path)
    parallel = next(step for step in trajectory.steps if len(step.message.tool_calls) == 2)
    after = [step.message.tool_call_id for step in trajectory.steps[parallel.index + 1 : parallel.index + 3]]
    assert after == [call.id for call in parallel.message.tool_calls]


def test_claude_code_a_fork_in_another_file_has_the_history_as_input(tmp_path: Path) -> None:
    folder, db = copy_of("claude-code", tmp_path), tmp_path / "hermes.db"
    imported(db, "claude-code", folder / "edit.jsonl")
    done = imported(db, "claude-code", folder / "fork.jsonl")
    assert (done.rows, done.problems) == (1, [])
    whole, fork = stored(db)
    assert fork.header.parent_id == whole.header.id
    assert fork.header.relation is Relation.CONTINUED
    assert [step.kind for step in fork.steps][-1] is StepKind.MODEL
    assert fork.turns == 1
    assert fork.messages[:-2] == whole.messages


def test_claude_code_a_compaction_is_another_context(tmp_path: Path) -> None:
    first, second = one_file("claude-code", "compaction.jsonl", tmp_path)
    assert second.header.parent_id == first.header.id
    assert second.header.relation is Relation.CONTINUED
    assert texts(second)[0] == ("user", "(the summary of the work so far)")
    kept = second.steps[1]
    assert kept.message == first.steps[-1].message
    assert kept.kind is StepKind.INPUT
    synthetic = next(step for step in second.steps if step.message.content == "No response requested.")
    assert synthetic.kind is StepKind.INPUT
    assert second.turns == 2


def test_claude_code_a_sub_agent_has_a_parent(tmp_path: Path) -> None:
    folder, db = copy_of("claude-code", tmp_path), tmp_path / "hermes.db"
    imported(db, "claude-code", folder / "delegation.jsonl", folder / "delegation")
    parent, child = stored(db)
    assert (child.header.parent_id, child.header.relation) == (parent.header.id, Relation.DELEGATE)
    assert texts(child)[0][1] == "Please do the small job. tool"


def test_claude_code_a_sub_agent_of_an_earlier_version_is_in_the_same_file(tmp_path: Path) -> None:
    folder, db = copy_of("claude-code", tmp_path), tmp_path / "hermes.db"
    main = read_rows(folder / "delegation.jsonl")
    (file,) = (folder / "delegation").rglob("*.jsonl")
    called = next(index for index, row in enumerate(main) if "toolUseResult" in row)
    rows = [*main[:called], *read_rows(file), *main[called:]]
    assert imported(db, "claude-code", write_lines(tmp_path / "one.jsonl", rows)).problems == []
    parent, child = stored(db)
    assert (child.header.parent_id, child.header.relation) == (parent.header.id, Relation.DELEGATE)
    assert (parent.turns, child.turns) == (2, 2)


def test_claude_code_a_broken_call_keeps_its_text(tmp_path: Path) -> None:
    (trajectory,) = one_file("claude-code", "broken-call.jsonl", tmp_path)
    call = next(call for message in trajectory.messages for call in message.tool_calls)
    assert call.arguments == '{"command": "echo hi", '
    assert call.error is not None


def test_claude_code_a_rewound_question_is_a_branch(tmp_path: Path) -> None:
    rows = read_rows(copy_of("claude-code", tmp_path) / "edit.jsonl")
    second = next(row for row in rows if row.get("message", {}).get("content") == "go parallel")
    answer = next(
        row for row in rows if row.get("message", {}).get("id") and row.get("parentUuid") == second["uuid"]
    )
    asked = second | {"uuid": "q2", "message": {"role": "user", "content": "something else"}}
    said = answer | {"uuid": "a2", "parentUuid": "q2"}
    said["message"] = answer["message"] | {
        "id": "m2",
        "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "Else."}],
    }
    retried = answer | {"uuid": "a3"}
    retried["message"] = answer["message"] | {
        "id": "m3",
        "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "Otherwise."}],
    }
    db = tmp_path / "hermes.db"
    imported(db, "claude-code", write_lines(tmp_path / "tree.jsonl", [*rows, asked, said, retried]))
    whole, branch, retry = stored(db)
    assert branch.header.relation is Relation.CONTINUED
    assert retry.header.relation is Relation.RETRY
    assert {branch.header.parent_id, retry.header.parent_id} == {whole.header.id}
    assert texts(branch)[-2:] == [("user", "something else"), ("assistant", "Else.")]
    assert [t.turns for t in (whole, branch, retry)] == [6, 1, 1]
    assert imported(db, "claude-code", tmp_path / "tree.jsonl").rows == 0


@pytest.mark.parametrize(
    ("after", "cut"),
    [
        ("Your response above was cut off mid-stream. Resume directly from where it stops.", True),
        ("[Request interrupted by user]", True),
        ("[Request interrupted by user for tool use]", False),
        ("Please go on.", False),
    ],
)
def test_claude_code_an_answer_that_broke_off_is_no_whole_one(after: str, cut: bool, tmp_path: Path) -> None:
    """Claude Code 2.1.328 writes such a beginning down as ended, and asks the model to resume."""
    common = {"sessionId": "s", "timestamp": "2026-11-19T09:00:00.000Z", "version": "2.1.328"}
    ended = {"role": "assistant", "model": "x", "stop_reason": "end_turn"}
    texts_of = ("Which file?", "It is", after, "the second one.")
    rows = []
    for index, text in enumerate(texts_of):
        message = {"role": "user", "content": text}
        if index % 2:
            message = {**ended, "id": f"m{index}", "content": [{"type": "text", "text": text}]}
        kind = {
            "type": message["role"],
            "uuid": f"u{index}",
            "parentUuid": f"u{index - 1}" if index else None,
        }
        rows.append({**kind, "message": message, **common})
    db = tmp_path / "hermes.db"
    assert imported(db, "claude-code", write_lines(tmp_path / "s.jsonl", rows)).problems == []
    (only,) = stored(db)
    assert texts(only)[1::2] == [("assistant", "It is"), ("assistant", "the second one.")]
    reasons = [step.call.finish_reason for step in only.steps if step.call]
    assert reasons == [INTERRUPTED if cut else "end_turn", "end_turn"]


def test_codex_items_of_a_response_are_one_call(tmp_path: Path) -> None:
    (trajectory,) = one_file("codex", "thinking.jsonl", tmp_path)
    assert trajectory.header.metadata == {"agent": "codex", "agent_version": "0.169.0"}
    assert trajectory.header.model == "gw/gpt-5.1-codex"
    assert [message.role for message in trajectory.messages[:4]] == [
        Role.SYSTEM,
        Role.SYSTEM,
        Role.USER,
        Role.USER,
    ]
    answer = next(step for step in trajectory.steps if step.kind is StepKind.MODEL)
    assert answer.message.reasoning == "Hmm,  let me\nthink. "
    assert answer.message.tool_calls[0].arguments.startswith('{ "cmd" :')
    assert answer.call is not None
    assert answer.call.usage == Usage(input_tokens=1000, output_tokens=20)
    result = next(step.result for step in trajectory.steps if step.result)
    assert (result.name, result.exit_code, result.ok) == ("exec_command", 0, True)


def test_codex_parallel_calls_are_one_answer(tmp_path: Path) -> None:
    (trajectory,) = one_file("codex", "parallel.jsonl", tmp_path)
    assert trajectory.turns == 2
    assert max(len(message.tool_calls) for message in trajectory.messages) == 2


def test_codex_a_compaction_replaces_the_history(tmp_path: Path) -> None:
    first, second = one_file("codex", "compaction.jsonl", tmp_path)
    assert first.outcome is not None
    assert first.outcome.stop_reason is StopReason.CONTEXT_FULL
    assert second.header.parent_id == first.header.id
    assert texts(second)[4] == ("user", "(the summary of the work so far)")
    assert (first.turns, second.turns) == (2, 4)


def test_codex_a_sub_agent_has_a_parent(tmp_path: Path) -> None:
    folder, db = copy_of("codex", tmp_path), tmp_path / "hermes.db"
    imported(db, "codex", folder / "delegation.jsonl", folder / "sub-agent.jsonl")
    parent, child = stored(db)
    assert (child.header.parent_id, child.header.relation) == (parent.header.id, Relation.DELEGATE)


def test_pi_results_name_their_tools(tmp_path: Path) -> None:
    (trajectory,) = one_file("pi", "edit.jsonl", tmp_path)
    assert trajectory.header.model == "gw/fake-model"
    results = [step.result for step in trajectory.steps if step.result]
    assert [(result.name, result.ok, result.exit_code) for result in results] == [
        ("write", True, None),
        ("edit", True, None),
        ("bash", False, 3),
    ]
    assert trajectory.messages[1].reasoning == "A small file first."


def test_pi_a_compaction_keeps_the_end_of_the_history(tmp_path: Path) -> None:
    rows = read_rows(copy_of("pi", tmp_path) / "edit.jsonl")
    summary = {
        "type": "compaction",
        "id": "c1",
        "parentId": rows[-1]["id"],
        "timestamp": rows[-1]["timestamp"],
    }
    summary |= {"summary": "(the work so far)", "firstKeptEntryId": rows[-1]["id"], "tokensBefore": 9}
    asked = {"type": "message", "id": "u9", "parentId": "c1", "timestamp": rows[-1]["timestamp"]}
    asked["message"] = {"role": "user", "content": "and now?"}
    said = rows[-1] | {"id": "a9", "parentId": "u9"}
    db = tmp_path / "hermes.db"
    assert imported(db, "pi", write_lines(tmp_path / "c.jsonl", [*rows, summary, asked, said])).problems == []
    first, second = stored(db)
    assert texts(second)[:3] == [("user", "(the work so far)"), texts(first)[-1], ("user", "and now?")]
    assert (first.turns, second.turns) == (4, 1)


def test_pi_prompt_and_tools_are_read_and_failed_attempts_are_no_history(tmp_path: Path) -> None:
    """Three attempts without an answer, a call, a prompt that is too long, a compaction: by pi 1.5.2."""
    first, second = one_file("pi", "retries.jsonl", tmp_path, FIXTURES / "pi-1.5")
    prompt = ("system", "(preamble)\n\n(tools)\n\n(rules)\n\n(docs)\n\n(cwd)")
    work = [("assistant", "I look."), ("tool", "hello\n")]
    assert texts(first) == [prompt, ("user", "Please work. JOB-compact"), *work]
    assert first.outcome is not None and first.outcome.stop_reason is StopReason.CONTEXT_FULL
    summary = texts(second)[1][1]
    assert summary.endswith("A folder was looked at, and the small job goes on. JOB-compact")
    assert texts(second) == [prompt, ("user", summary), *work, ("assistant", "All done.")]
    assert (second.header.parent_id, second.header.relation) == (first.header.id, Relation.CONTINUED)
    assert (first.turns, second.turns) == (1, 1)
    answer = first.steps[2]
    assert answer.call is not None and answer.call.latency_ms == 202
    with Reader(tmp_path / "hermes.db") as reader:
        for trajectory in (first, second):
            assert trajectory.header.tools == ("read", "bash", "edit", "write")
            offered = reader.offered_tools(trajectory.header.id)
            assert [tool["name"] for tool in offered] == ["read", "bash", "edit", "write"]
            assert offered[1]["parameters"]["properties"] == {
                "command": {"type": "string"},
                "timeout": {"type": "number"},
            }


def pi_session(tmp_path: Path, *entries: dict[str, Any]) -> list[Trajectory]:
    """What becomes of a chain of entries; one without a type is a message."""
    at = "2026-11-19T09:00:00.000Z"
    rows: list[dict[str, Any]] = [{"type": "session", "version": 3, "id": "s", "timestamp": at}]
    for index, entry in enumerate(entries):
        row = entry if "type" in entry else {"type": "message", "message": entry}
        rows.append(
            {"id": f"e{index}", "parentId": f"e{index - 1}" if index else None, "timestamp": at, **row}
        )
    db = tmp_path / "hermes.db"
    assert imported(db, "pi", write_lines(tmp_path / "s.jsonl", rows)).problems == []
    assert imported(db, "pi", tmp_path / "s.jsonl").rows == 0
    return stored(db)


def said(text: str, stop: str = "stop") -> dict[str, Any]:
    content = [{"type": "text", "text": text}] if text else []
    return {"role": "assistant", "content": content, "stopReason": stop}


def test_pi_an_answer_that_broke_off_is_a_leaf(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "Which file?"}
    whole, again = pi_session(tmp_path, asked, said("It is", "error"), said("The second one."))
    assert texts(whole) == [("user", "Which file?"), ("assistant", "It is")]
    assert whole.outcome is not None and whole.outcome.stop_reason is StopReason.ERROR
    assert [step.call.finish_reason for step in whole.steps if step.call] == [INTERRUPTED]
    assert texts(again) == [("user", "Which file?"), ("assistant", "The second one.")]
    assert (again.header.parent_id, again.header.relation) == (whole.header.id, Relation.RETRY)


def test_pi_an_edited_context_begins_a_trajectory(tmp_path: Path) -> None:
    """What was left out or replaced is so from there on, and nothing is learned twice."""
    first, second = pi_session(
        tmp_path,
        {"role": "user", "content": "one"},
        said("A long answer."),
        {"role": "user", "content": "two"},
        said("Another."),
        {"type": "context_edit", "targetId": "e1", "replacement": {"content": "Short."}},
        {"type": "context_edit", "targetId": "e2", "replacement": None},
        {"role": "user", "content": "three"},
        said("The last."),
    )
    assert [text for _, text in texts(first)] == ["one", "A long answer.", "two", "Another."]
    assert [text for _, text in texts(second)] == ["one", "Short.", "Another.", "three", "The last."]
    assert (first.turns, second.turns) == (2, 1)
    assert (second.header.parent_id, second.header.relation) == (first.header.id, Relation.CONTINUED)


def test_pi_a_later_system_message_changes_sections_and_tools(tmp_path: Path) -> None:
    tools = [{"name": name, "description": "", "parameters": {}} for name in ("bash", "read")]
    prompt = {"role": "system", "content": "You are pi.", "sections": {"cwd": "/a"}, "toolsAdded": tools}
    change = {
        "role": "system",
        "content": "",
        "sections": {"cwd": "/b", "docs": None},
        "toolsRemoved": [{"name": "bash"}],
    }
    asked = {"role": "user", "content": "Go on."}
    (only,) = pi_session(tmp_path, prompt, asked, said("First."), change, asked, said("Second."))
    assert texts(only)[0] == ("system", "You are pi.\n\n/a")
    assert texts(only)[3] == (
        "system",
        'Updated system prompt section "cwd":\n\n/b\n\nRemoved system prompt section "docs".',
    )
    with Reader(tmp_path / "hermes.db") as reader:
        inputs = reader.record(reader.get(only.header.id)).inputs
        assert [[tool["name"] for tool in inputs[at].tools] for at in (2, 5)] == [["bash", "read"], ["read"]]


def test_pi_a_compaction_that_nothing_follows_stores_nothing(tmp_path: Path) -> None:
    (only,) = pi_session(
        tmp_path,
        {"role": "user", "content": "one"},
        said("Done."),
        {"type": "compaction", "summary": "(so far)", "firstKeptEntryId": "e0"},
    )
    assert only.turns == 1


def test_opencode_a_part_has_the_call_and_its_result(tmp_path: Path) -> None:
    db = tmp_path / "hermes.db"
    imported(db, "opencode", copy_of("opencode", tmp_path))
    edit, parent, child = stored(db)
    assert edit.header.metadata == {"agent": "opencode", "agent_version": "1.18.33"}
    assert edit.messages[1].reasoning == "A small file first."
    results = [
        (step.result.name, step.result.exit_code, step.result.ok) for step in edit.steps if step.result
    ]
    assert results == [("write", None, True), ("edit", None, True), ("bash", 3, False)]
    assert (child.header.parent_id, child.header.relation) == (parent.header.id, Relation.DELEGATE)
    assert edit.usage == Usage(input_tokens=4060, output_tokens=80)


def test_hermes_agent_sessions_are_joined(tmp_path: Path) -> None:
    db = tmp_path / "hermes.db"
    imported(db, "hermes-agent", copy_of("hermes-agent", tmp_path))
    first, delegated, compressed = sorted(
        stored(db), key=lambda trajectory: trajectory.header.session_id or ""
    )
    assert texts(first)[:2] == [("system", "You are Hermes."), ("user", "list the files")]
    assert texts(first)[-1] == ("assistant", "One file.")
    assert first.messages[2].reasoning == "I look."
    assert (compressed.header.parent_id, compressed.header.relation) == (first.header.id, Relation.CONTINUED)
    assert (delegated.header.parent_id, delegated.header.relation) == (
        compressed.header.id,
        Relation.DELEGATE,
    )
    assert first.header.model == "openrouter/m1"
    assert len(hermes_agent_rows()["sessions"]) == 3
