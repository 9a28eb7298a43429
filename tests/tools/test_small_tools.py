"""todo, clarify, delegate_task, session_search and calculator, each through the path a call takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes.config.paths import db_path
from hermes.core import JSONObject, Message
from hermes.store.writer import Writer
from hermes.tools.base import ToolOutput, Workbench
from tests.records import record
from tests.tools.bench import call, error, text

pytestmark = pytest.mark.asyncio(loop_scope="module")

ONE = {"id": "1", "content": "look", "status": "in_progress"}
TWO = {"id": "2", "content": "leap", "status": "pending"}


async def test_a_list_is_kept_replaced_and_changed(desk: Workbench) -> None:
    assert json.loads(await text(desk, "todo")) == {"todos": [], "counts": {}}
    kept = json.loads(await text(desk, "todo", todos=[ONE, TWO]))
    assert kept == {"todos": [ONE, TWO], "counts": {"in_progress": 1, "pending": 1}}
    three = {"id": "3", "content": "rest", "status": "pending"}
    changes = [{"id": "1", "status": "completed"}, three]
    merged = json.loads(await text(desk, "todo", todos=changes, merge=True))
    assert merged["todos"] == [{**ONE, "status": "completed"}, TWO, three]
    assert json.loads(await text(desk, "todo"))["todos"] == merged["todos"]
    assert json.loads(await text(desk, "todo", todos=[TWO]))["todos"] == [TWO]


@pytest.mark.parametrize(
    ("todos", "reason"),
    [
        ([{**ONE, "status": "done"}], "todos[0].status: expected one of"),
        ([ONE, {**TWO, "id": "1"}], "the id '1' is given twice"),
        ([{"id": "9", "content": "x"}], "the new item '9' lacks status"),
        ([{**ONE, "owner": "me"}], "todos[0]: unknown owner"),
        ("look", "todos: expected array, got string"),
    ],
)
async def test_a_bad_list_is_refused_and_the_old_one_kept(
    desk: Workbench, todos: list[JSONObject], reason: str
) -> None:
    await text(desk, "todo", todos=[TWO])
    kind, message = await error(desk, "todo", todos=todos, merge=True)
    assert kind == "bad_arguments"
    assert message.startswith(reason)
    assert desk.todos == [TWO]


async def test_a_question_reaches_the_user_with_its_choices(desk: Workbench) -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    async def answer(question: str, choices: tuple[str, ...]) -> str:
        asked.append((question, choices))
        return "blue"

    desk.ask_user = answer
    assert await text(desk, "clarify", question="Which?", choices=["red", "blue"]) == "blue"
    assert asked == [("Which?", ("red", "blue"))]


async def test_a_question_to_nobody_says_so(desk: Workbench) -> None:
    kind, message = await error(desk, "clarify", question="Which?")
    assert kind == "failed"
    assert "nobody is there" in message


async def test_a_task_is_handed_to_the_delegate(desk: Workbench) -> None:
    given: list[tuple[str, tuple[str, ...] | None]] = []

    async def delegate(task: str, toolsets: tuple[str, ...] | None) -> ToolOutput:
        given.append((task, toolsets))
        return ToolOutput("done", ok=task == "good")

    desk.delegate = delegate
    assert await text(desk, "delegate_task", task="good") == "done"
    _, result = await call(desk, "delegate_task", task="bad", toolsets=["file", "math"])
    assert not result.ok
    assert given == [("good", None), ("bad", ("file", "math"))]
    kind, message = await error(desk, "delegate_task", task="x", toolsets=["flie"])
    assert (kind, message) == ("bad_arguments", "no such toolset: 'flie'; did you mean file?")
    assert len(given) == 2


async def test_without_a_delegate_the_agent_is_told_to_do_it_itself(desk: Workbench) -> None:
    kind, message = await error(desk, "delegate_task", task="x")
    assert (kind, "do the task yourself" in message) == ("failed", True)


async def test_the_calculator_answers(desk: Workbench) -> None:
    assert await text(desk, "calculator", expression="17 * 23") == "391"
    kind, _ = await error(desk, "calculator", expression="9**9**9")
    assert kind == "failed"
    kind, _ = await error(desk, "calculator", expression="__import__('os')")
    assert kind == "failed"
    kind, _ = await error(desk, "calculator", expression=17)
    assert kind == "bad_arguments"


async def test_earlier_runs_are_searched_and_the_present_one_is_not(desk: Workbench, tmp_path: Path) -> None:
    with Writer(db_path(tmp_path)) as writer:
        earlier = record(writer, [Message.user("the walrus is called Olga"), Message.assistant("noted")])
        present = record(writer, [Message.user("what is the walrus called?"), Message.assistant("?")])
    desk.resources["home"], desk.trajectory_id = tmp_path, present
    hits = json.loads(await text(desk, "session_search", query="walrus called"))
    assert [(hit["trajectory"], hit["step"], hit["role"]) for hit in hits] == [(earlier, 0, "user")]
    assert "Olga" in hits[0]["text"]
    assert hits[0]["date"].startswith("20")
    assert json.loads(await text(desk, "session_search", query="zebra")) == []


async def test_a_long_present_run_does_not_crowd_out_earlier_ones(desk: Workbench, tmp_path: Path) -> None:
    with Writer(db_path(tmp_path)) as writer:
        earlier = [record(writer, [Message.user(f"walrus {number}")]) for number in range(5)]
        present = record(writer, [Message.user("walrus") for _ in range(150)])
    desk.resources["home"], desk.trajectory_id = tmp_path, present
    hits = json.loads(await text(desk, "session_search", query="walrus", limit=3))
    assert len(hits) == 3
    assert {hit["trajectory"] for hit in hits} < set(earlier)


@pytest.mark.parametrize("query", ['"', "a AND", "NEAR(", "*", "col:x", "'; DROP TABLE steps; --", "(", "-x"])
async def test_no_query_breaks_the_search(desk: Workbench, tmp_path: Path, query: str) -> None:
    with Writer(db_path(tmp_path)) as writer:
        record(writer, [Message.user("something")])
    desk.resources["home"] = tmp_path
    assert json.loads(await text(desk, "session_search", query=query)) == []


async def test_a_store_that_does_not_exist_yet_has_nothing(desk: Workbench, tmp_path: Path) -> None:
    desk.resources["home"] = tmp_path / "fresh"
    assert json.loads(await text(desk, "session_search", query="x")) == []
    assert not (tmp_path / "fresh").exists()


async def test_a_damaged_store_is_a_failed_call(desk: Workbench, tmp_path: Path) -> None:
    db_path(tmp_path).write_bytes(b"not a database" * 100)
    desk.resources["home"] = tmp_path
    kind, message = await error(desk, "session_search", query="x")
    assert kind == "failed"
    assert "hermes.db" in message


async def test_without_a_home_there_is_nothing_to_search(desk: Workbench) -> None:
    kind, _ = await error(desk, "session_search", query="x")
    assert kind == "failed"
