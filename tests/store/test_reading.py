"""Listing, filtering, searching and counting."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.core import Boundary, Message, Outcome, Rating, RatingKind, Reward, StopReason, Usage, new_id
from hermes.errors import StoreError, UsageError
from hermes.store import Filter, Reader, Writer
from tests import records


def test_a_store_that_does_not_exist_reads_as_empty_and_is_not_created(db: Path) -> None:
    with Reader(db) as reader:
        assert reader.summaries() == []
        assert reader.stats().trajectories == 0
        assert reader.search("anything") == []
        with pytest.raises(UsageError, match="nothing has been recorded"):
            reader.resolve("last")
    assert not db.exists()


def test_pages_are_newest_first_and_join_without_gap_or_overlap(writer: Writer, db: Path) -> None:
    ids = [records.record(writer, records.conversation()) for _ in range(7)]
    with Reader(db) as reader:
        first = reader.summaries(limit=3)
        second = reader.summaries(limit=3, before=first[-1].id)
        third = reader.summaries(limit=3, before=second[-1].id)
    assert [row.id for row in [*first, *second, *third]] == list(reversed(ids))


def test_each_filter_selects_what_it_says(writer: Writer, db: Path) -> None:
    failed = Outcome(StopReason.ERROR, Boundary.PROVIDER, "AuthError", "401")
    plain = records.record(writer, [Message.user("plain question"), Message.assistant("yes")], model="a/x")
    tooled = records.record(writer, records.conversation(), model="b/y", run_id="run-1")
    broken = records.record(writer, [Message.user("broken")], model="a/x", outcome=failed)
    running = records.record(writer, [Message.user("running")], model="a/x", outcome=None)
    writer.add_reward(Reward(tooled, 0.75, "r")).result()
    writer.add_rating(Rating(new_id(), plain, RatingKind.THUMB, -1, "ann", 1)).result()
    writer.add_rating(Rating(new_id(), tooled, RatingKind.SCORE, 4, "ann", 1)).result()
    cases = [
        (Filter(model="b/y"), {tooled}),
        (Filter(tool="calculator"), {tooled}),
        (Filter(tool="nothing"), set()),
        (Filter(stop_reason="error"), {broken}),
        (Filter(stop_reason="running"), {running}),
        (Filter(stop_reason="completed", model="a/x"), {plain}),
        (Filter(run_id="run-1"), {tooled}),
        (Filter(min_reward=0.5), {tooled}),
        (Filter(max_reward=0.5), set()),
        (Filter(min_rating=4), {tooled}),
        (Filter(max_rating=1), {plain}),
        (Filter(text="plain question"), {plain}),
        (Filter(text='hostile " OR * syntax('), set()),
        (Filter(since_ms=1_700_000_000_001), set()),
        (Filter(until_ms=1_700_000_000_001), {plain, tooled, broken, running}),
        (Filter(ids=(plain, broken)), {plain, broken}),
    ]
    with Reader(db) as reader:
        for which, expected in cases:
            assert {row.id for row in reader.summaries(which)} == expected, which
            assert reader.count(which) == len(expected), which
            assert {found.header.id for found in reader.trajectories(which)} == expected, which
            assert reader.stats(which).trajectories == len(expected), which


def test_a_summary_adds_up_the_steps_and_an_unknown_price_stays_unknown(writer: Writer, db: Path) -> None:
    priced = records.record(writer, records.conversation(), failed_tools=True)
    unpriced = records.record(writer, records.conversation(), call=records.model_call(cost_usd=None))
    running = records.record(writer, records.conversation(), outcome=None)
    with Reader(db) as reader:
        rows = {row.id: row for row in reader.summaries()}
    assert rows[priced].usage == Usage(200, 20, 10, 40, 14)
    assert (rows[priced].turns, rows[priced].tool_calls, rows[priced].tool_errors) == (2, 1, 1)
    assert rows[priced].cost_usd == pytest.approx(0.5)
    assert rows[priced].task == "What is 2 + 2?"
    assert rows[unpriced].cost_usd is None
    assert rows[running].usage == rows[priced].usage
    assert rows[running].stop_reason == "running"


def test_statistics_count_outcomes_tools_and_error_kinds(writer: Writer, db: Path) -> None:
    records.record(writer, records.conversation())
    records.record(writer, records.conversation(), failed_tools=True)
    records.record(writer, [Message.user("x")], outcome=Outcome(StopReason.CANCELLED, Boundary.USER))
    with Reader(db) as reader:
        stats = reader.stats()
    assert stats.by_stop_reason == {"completed": 2, "cancelled": 1}
    assert stats.tools["calculator"].calls == 2
    assert stats.tools["calculator"].by_error == {"failed": 1}
    assert stats.turns == 4


def test_search_finds_words_in_text_thinking_arguments_and_results(writer: Writer, db: Path) -> None:
    wanted = records.record(writer, records.conversation("Where is the zebra?", "In the savanna."))
    records.record(writer, records.conversation("Nothing here.", "No."))
    with Reader(db) as reader:
        for words in ("zebra", "savanna", "expression 2"):
            assert wanted in {hit.trajectory_id for hit in reader.search(words)}, words
        hit = reader.search("zebra")[0]
        assert (hit.trajectory_id, hit.step_index, hit.role) == (wanted, 1, "user")
        assert "zebra" in hit.snippet


def test_an_id_can_be_shortened_while_it_stays_unique(writer: Writer, db: Path) -> None:
    ids = [records.record(writer, records.conversation()) for _ in range(3)]
    with Reader(db) as reader:
        assert reader.resolve(ids[0]) == ids[0]
        assert reader.resolve(ids[1][-8:].lower()) == ids[1]
        assert reader.resolve("last") == ids[2]
        for hopeless in (ids[0][:4], "ZZZZ", "", "'; DROP TABLE"):
            with pytest.raises(UsageError):
                reader.resolve(hopeless)


def test_a_file_that_is_no_database_is_reported(db: Path) -> None:
    db.parent.mkdir()
    db.write_text("this is not a database, it is a poem\n" * 200)
    with pytest.raises(StoreError, match="is damaged: file is not a database") as caught:
        Reader(db)
    assert caught.value.hint
    with pytest.raises(StoreError):
        Writer(db)


def test_a_database_from_the_future_is_refused(writer: Writer, db: Path) -> None:
    records.record(writer, records.conversation())
    writer.close()
    from hermes.store.sqlite import connect_writer

    connection = connect_writer(db)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    for opened in (Reader, Writer):
        with pytest.raises(StoreError, match="schema 999"):
            opened(db)


def test_a_question_with_half_a_surrogate_pair_is_listed_too(writer: Writer, db: Path) -> None:
    records.record(writer, [Message.user("half a pair: \ud83d"), Message.assistant("what?")])
    with Reader(db) as reader:
        (summary,) = reader.summaries()
    assert summary.task.startswith("half a pair: \ufffd")


REMINDER = "<system-reminder>\nAttribution for git:\n<b>Claude</b>\n</system-reminder>\n"


@pytest.mark.parametrize(
    ("texts", "task"),
    [
        ([REMINDER * 3 + "Fix the tests.", "And the docs."], "Fix the tests.\nAnd the docs."),
        (["<environment_context>\n<cwd>/w</cwd>\n</environment_context>", "Fix it."], "Fix it."),
        (
            ["# AGENTS.md instructions for /w\n\n<INSTRUCTIONS>\nBe brief.\n</INSTRUCTIONS>", "Fix it."],
            "Fix it.",
        ),
        (["Why is <b>this</b> red?"], "Why is <b>this</b> red?"),
        ([REMINDER], REMINDER),
        (["<unclosed> words"], "<unclosed> words"),
    ],
)
def test_the_task_of_an_agents_session_is_in_its_users_words(
    writer: Writer, db: Path, texts: list[str], task: str
) -> None:
    """Claude Code and Codex put reminders and the state of the machine before them."""
    messages = [Message.user(text) for text in texts]
    theirs = records.record(writer, messages, metadata={"agent": "claude-code"})
    ours = records.record(writer, messages)
    with Reader(db) as reader:
        tasks = {row.id: row.task for row in reader.summaries()}
    assert tasks == {theirs: task[:200], ours: texts[0][:200]}
