"""Importing: what others wrote becomes trajectories, what cannot be read is named by line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.core import Boundary, Message, Outcome, Reward, Role, Source, StopReason
from hermes.data.export.run import ExportPlan, export
from hermes.data.formats.registry import FORMATS
from hermes.data.importing import Imported, import_files
from hermes.errors import UsageError
from hermes.store import Filter, Reader, Writer
from tests import records
from tests.cli.process import failure, hermes

PREDECESSOR: dict[str, Any] = {
    "prompt_index": 7,
    "conversations": [
        {
            "from": "system",
            "value": "You are a function calling AI model. <tools>\n"
            '[{"name": "terminal", "description": "Runs.", "parameters": {"type": "object"},'
            ' "required": null}]\n'
            "</tools>\nFor each call return {'name': <function-name>} within <tool_call> </tool_call>",
        },
        {"from": "human", "value": "List the files."},
        {
            "from": "gpt",
            "value": '<think>\n</think>\n<tool_call>\n{"name": "terminal", "arguments": {"command": "ls"}}\n'
            '</tool_call>\n<tool_call>\n{"name": "terminal", "arguments": {"command": "pwd"}}\n</tool_call>',
        },
        {
            "from": "tool",
            "value": '<tool_response>\n{"tool_call_id": "c1", "name": "terminal",'
            ' "content": {"exit_code": 0}}\n'
            '</tool_response>\n<tool_response>\n{"tool_call_id": "c2", "name": "terminal", "content": "/"}\n'
            "</tool_response>",
        },
        {"from": "gpt", "value": "<think>\nDone.\n</think>\nTwo files."},
    ],
    "metadata": {"batch_num": 0, "timestamp": "2026-01-01", "model": "anthropic/x"},
    "completed": True,
    "partial": False,
    "api_calls": 2,
    "toolsets_used": ["terminal"],
    "tool_stats": {"terminal": {"count": 2, "success": 2, "failure": 0}},
    "tool_error_counts": {"terminal": 0},
}


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "hermes.db"


@pytest.fixture
def writer(db: Path) -> Iterator[Writer]:
    with Writer(db) as opened:
        yield opened


def bring(writer: Writer, db: Path, *paths: Path, **known: Any) -> Imported:
    with Reader(db) as reader:
        return import_files(list(paths), reader, writer, **known)


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_predecessor_run_is_read_without_what_it_made_up(writer: Writer, db: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write(run / "batch_0.jsonl", PREDECESSOR)
    write(run / "trajectories.jsonl", PREDECESSOR)
    write(run / "checkpoint.json", {"completed_prompts": [7]})
    assert bring(writer, db, run, run_id="old").rows == 1
    with Reader(db) as reader:
        (found,) = reader.trajectories(Filter(run_id="old"))
        model_step = next(step for step in found.steps if step.call)
        tools = reader.model_input(found.header.id, model_step)[1]
    assert (found.header.source, found.header.model, found.header.task_id) == (
        Source.IMPORT,
        "anthropic/x",
        "7",
    )
    assert [message.role for message in found.messages] == [
        Role.USER,
        Role.ASSISTANT,
        Role.TOOL,
        Role.TOOL,
        Role.ASSISTANT,
    ]
    assert found.messages[1].reasoning is None
    assert [call.id for call in found.messages[1].tool_calls] == ["c1", "c2"]
    assert [message.content for message in found.messages[2:4]] == ['{"exit_code": 0}', "/"]
    assert (found.messages[4].reasoning, found.messages[4].content) == ("Done.", "Two files.")
    assert tools == [{"name": "terminal", "description": "Runs.", "parameters": {"type": "object"}}]
    assert found.outcome is not None
    assert found.outcome.stop_reason is StopReason.COMPLETED


def test_shards_alone_are_read_where_the_merge_is_missing(writer: Writer, db: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    unfinished = {**PREDECESSOR, "prompt_index": 8, "completed": False}
    write(run / "batch_0.jsonl", PREDECESSOR)
    write(run / "batch_1.jsonl", unfinished)
    assert bring(writer, db, run).rows == 2
    with Reader(db) as reader:
        ends = [each.outcome.stop_reason for each in reader.trajectories() if each.outcome]
    assert sorted(ends) == [StopReason.COMPLETED, StopReason.CUT]


def test_importing_again_adds_nothing(writer: Writer, db: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", PREDECESSOR, PREDECESSOR, {**PREDECESSOR, "prompt_index": 8})
    first = bring(writer, db, path)
    assert (first.rows, first.known) == (3, 0)  # equal rows may be two samples that came out the same
    again = bring(writer, db, path)
    assert (again.rows, again.known) == (0, 3)


@pytest.mark.parametrize(
    "name", ["sharegpt", "sharegpt-user-assistant", "messages", "atif", "sts", "trl-sft"]
)
@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_our_own_exports_come_back(tmp_path: Path, name: str, ending: str) -> None:
    with Writer(tmp_path / "a.db") as writer:
        for number in range(3):
            found = records.record(
                writer, records.conversation(answer=str(number)), task_id="t", metadata={"n": 1}
            )
            writer.add_reward(Reward(found, number / 2, "test")).result()
    folder = name == "sts" and ending == ".jsonl"
    path = tmp_path / ("data" if folder else f"data{ending}")
    with Reader(tmp_path / "a.db") as reader:
        export(reader, ExportPlan(FORMATS[name], path))
        originals = {each.header.id: each for each in reader.trajectories()}
    with Writer(tmp_path / "b.db") as writer:
        done = bring(writer, tmp_path / "b.db", path)
    assert (done.rows, done.problems) == (3, [])
    with Reader(tmp_path / "b.db") as reader:
        copies = {each.header.id: each for each in reader.trajectories()}
        rewards = sorted(reward.value for key in copies for reward in reader.rewards(key))
    assert copies.keys() == originals.keys()
    for key, copy in copies.items():
        assert copy.messages == originals[key].messages
    if name not in ("sts", "trl-sft"):
        assert rewards == [0.0, 0.5, 1.0]
        assert all(copy.header.metadata == {"n": 1} for copy in copies.values())


def test_bad_rows_are_named_and_good_ones_stored(tmp_path: Path) -> None:
    good = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
    bad = [
        '{"messages": [{"role": "user", "content"',
        json.dumps({"messages": [{"role": "wizard", "content": "x"}]}),
        json.dumps([1, 2]),
        json.dumps({"nothing": "here"}),
        json.dumps({"messages": []}),
        json.dumps({"conversations": [{"from": "human", "value": 5}]}),
        json.dumps({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}]}),
        json.dumps({"messages": [{"role": "user", "content": {"a": 1}}]}),
        json.dumps({"schema_version": "ATIF-v1.7", "steps": [{"source": "agent", "tool_calls": "many"}]}),
    ]
    path = tmp_path / "mixed.jsonl"
    path.write_text("\n".join([json.dumps(good), *bad, "", json.dumps({**good, "task_id": "t"})]), "utf-8")
    path.write_bytes(path.read_bytes() + b'\n{"messages": "\xff\xfe"}\n')
    done = hermes(tmp_path / "home", "import", str(path), "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert (report["rows"], report["known"]) == (2, 0)
    problems = {problem["line"]: problem["why"] for problem in report["problems"]}
    assert list(problems) == [2, 3, 4, 5, 6, 7, 8, 9, 10, 13]
    assert 'unknown role "wizard"' in problems[3]
    assert problems[4] == "a JSON list, not an object"
    assert "turn 0 has no text" in problems[7]
    assert "'name' is missing" in problems[8]
    assert problems[13] == "not UTF-8 text"
    plain = hermes(tmp_path / "home", "import", str(path))
    assert plain.returncode == 1
    assert f"not imported: {path}:3: message 0 has the unknown role" in plain.stderr


def test_rows_come_from_standard_input_too(tmp_path: Path) -> None:
    good = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
    done = hermes(tmp_path, "import", "/dev/stdin", "--json", stdin=json.dumps(good) + "\n")
    assert json.loads(done.stdout)["rows"] == 1, done.stderr
    listing = hermes(tmp_path, "trajectories", "list").stdout
    assert "no date" in listing and "1970" not in listing


def test_unmatched_calls_and_results_are_stored_as_they_are(writer: Writer, db: Path, tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{oops"}}
    row = {
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "other", "content": "?"},
        ]
    }
    assert bring(writer, db, write(tmp_path / "a.jsonl", row)).rows == 1
    with Reader(db) as reader:
        (found,) = reader.trajectories()
    assert found.messages[1].tool_calls[0].arguments == "{oops"
    assert found.messages[2].tool_call_id == "other"
    assert found.outcome is not None
    assert found.outcome.stop_reason is StopReason.CUT


def test_a_result_has_the_name_of_its_call(writer: Writer, db: Path, tmp_path: Path) -> None:
    def answered(question: str, calls: list[tuple[str, str]], results: list[tuple[str, str]]) -> object:
        asked = [{"id": i, "type": "function", "function": {"name": n, "arguments": "{}"}} for i, n in calls]
        return {
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": None, "tool_calls": asked},
                *({"role": "tool", "tool_call_id": i, "content": content} for i, content in results),
                {"role": "assistant", "content": "done"},
            ]
        }

    rows = (
        answered("order", [("x", "a"), ("y", "b"), ("z", "c")], [("z", "C"), ("x", "A"), ("y", "B")]),
        answered("equal ids", [("s", "a"), ("s", "b"), ("t", "c")], [("t", "C"), ("s", "A"), ("s", "B")]),
        answered("one call", [("x", "a")], [("x", "A"), ("x", "more of A")]),
        answered("no call", [], [("x", "?")]),
    )
    assert bring(writer, db, write(tmp_path / "rows.jsonl", *rows)) == Imported(4)
    with Reader(db) as reader:
        stored = {found.messages[0].content: found for found in reader.trajectories()}
        names = {
            tool
            for found in stored.values()
            for step in found.steps
            if step.result
            for tool in [step.result.name]
        }
    for question in ("order", "equal ids"):
        results = [(m.name, m.content) for m in stored[question].messages if m.role is Role.TOOL]
        assert results == [("a", "A"), ("b", "B"), ("c", "C")], question
    assert names == {"a", "b", "c", "unknown"}


def test_documents_and_lists_of_rows_are_read(writer: Writer, db: Path, tmp_path: Path) -> None:
    rows = [{"messages": [Message.user(text).to_json(), Message.assistant("a").to_json()]} for text in "xy"]
    (tmp_path / "list.json").write_text(json.dumps(rows), "utf-8")
    (tmp_path / "one.json").write_text(json.dumps(rows[0], indent=2), "utf-8")
    done = bring(writer, db, tmp_path / "list.json", tmp_path / "one.json")
    assert (done.rows, done.known) == (2, 1)


def test_a_job_folder_of_harbor_is_read_with_tasks_and_rewards(
    writer: Writer, db: Path, tmp_path: Path
) -> None:
    results = {
        "good": {"verifier_result": {"rewards": {"reward": 1.0, "style": 0.5}}},
        "slow": {
            "verifier_result": {"rewards": {"tests": 0.0, "style": 0.5}},
            "exception_info": {"exception_type": "AgentTimeoutError"},
        },
        "failed": {
            "verifier_result": {"rewards": {"reward": 0.0}},
            "exception_info": {"exception_type": "EnvironmentStartTimeoutError"},
        },
        "killed": None,
    }
    job = tmp_path / "job"
    for name, result in results.items():
        (job / name / "agent").mkdir(parents=True)
        steps = [{"source": "user", "message": f"Do {name}."}, {"source": "agent", "message": "Done."}]
        document = {"schema_version": "ATIF-v1.6", "session_id": name, "agent": {"name": "x"}, "steps": steps}
        (job / name / "agent" / "trajectory.json").write_text(json.dumps(document))
        if result is not None:
            whole = {"task_name": f"org/{name}", "trial_name": name, **result}
            (job / name / "result.json").write_text(json.dumps(whole))
    (job / "result.json").write_text(json.dumps({"n_total_trials": 4}))
    done = bring(writer, db, job)
    assert (done.rows, done.problems) == (4, [])
    assert bring(writer, db, tmp_path).known == 4, "a folder of jobs"
    with Reader(db) as reader:
        rewards = {
            row.header.task_id: [reward.value for reward in reader.rewards(row.header.id)]
            for row in reader.trajectories()
        }
    assert rewards == {"org/good": [1.0], "org/slow": [0.25], "org/failed": [], None: []}


def result_with(rewards: str) -> str:
    return f'{{"task_name": "t", "trial_name": "n", "verifier_result": {{"rewards": {rewards}}}}}'


@pytest.mark.parametrize(
    ("rewards", "value"),
    [
        ('{"reward": 1, "why": "it is right"}', 1.0),
        ('{"a": 1e308, "b": 1e308}', 1e308),
        *((rewards, None) for rewards in ('{"reward": "1"}', '{"reward": true}', '{"reward": NaN}', "[1]")),
        ('{"reward": 1' + "0" * 400 + "}", None),
        ('{"a": 1' + "0" * 400 + ', "b": 1}', None),
    ],
)
def test_a_reward_of_harbor_that_is_no_number_is_none(
    writer: Writer, db: Path, tmp_path: Path, rewards: str, value: float | None
) -> None:
    (tmp_path / "job/t/agent").mkdir(parents=True)
    steps = [{"source": "user", "message": "a"}, {"source": "agent", "message": "b"}]
    document = {"schema_version": "ATIF-v1.6", "session_id": "s", "agent": {"name": "x"}, "steps": steps}
    (tmp_path / "job/t/agent/trajectory.json").write_text(json.dumps(document))
    (tmp_path / "job/t/result.json").write_text(result_with(rewards))
    assert bring(writer, db, tmp_path / "job").problems == []
    with Reader(db) as reader:
        (row,) = reader.trajectories()
        values = [reward.value for reward in reader.rewards(row.header.id)]
    assert values == ([] if value is None else [pytest.approx(value)])


def test_no_trial_of_harbor_holds_an_import_up_or_ends_it(writer: Writer, db: Path, tmp_path: Path) -> None:
    steps = [{"source": "user", "message": "a"}, {"source": "agent", "message": "b"}]
    for name, extra in {"pipe": {}, "zero": {}, "list": [1], "inner": {"hermes": [1]}}.items():
        folder = tmp_path / "job" / name
        (folder / "agent").mkdir(parents=True)
        document = {"schema_version": "ATIF-v1.6", "session_id": name, "agent": {"name": "x"}, "steps": steps}
        (folder / "agent/trajectory.json").write_text(json.dumps({**document, "extra": extra}))
        if name == "pipe":
            os.mkfifo(folder / "result.json")
        elif name == "zero":
            (folder / "result.json").symlink_to("/dev/zero")
        else:
            (folder / "result.json").write_text(result_with('{"reward": 1}'))
    done = bring(writer, db, tmp_path / "job")
    assert (done.rows, len(done.problems)) == (2, 2)


def test_a_row_that_a_killed_import_left_half_is_stored_whole(db: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", PREDECESSOR)
    with Writer(db) as writer:
        bring(writer, db, path)
    with Reader(db) as reader:
        whole = next(reader.trajectories())
    torn = tmp_path / "torn.db"
    with Writer(torn) as writer:
        writer.begin(whole.header).result()
        writer.append(whole.header.id, whole.steps[0]).result()
        writer.finish(whole.header.id, Outcome(StopReason.CUT, Boundary.HOST)).result()
        assert bring(writer, torn, path).rows == 1
        assert bring(writer, torn, path).rows == 0
    with Reader(torn) as reader:
        copies = list(reader.trajectories(Filter(stop_reason="completed")))
    assert [copy.messages for copy in copies] == [whole.messages]


def test_what_cannot_be_imported_says_what_can(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", PREDECESSOR)
    error, fix = failure(hermes(tmp_path, "import", str(path), "--format", "tokens"), 2)
    assert error == "rows of 'tokens' cannot be turned back into trajectories"
    assert "messages" in fix
    error, _ = failure(hermes(tmp_path, "import", str(tmp_path / "no.jsonl")), 2)
    assert error == f"no such file: {tmp_path / 'no.jsonl'}"
    with Writer(tmp_path / "x.db") as writer, Reader(tmp_path / "x.db") as reader:
        (tmp_path / "empty").mkdir()
        with pytest.raises(UsageError, match="holds no data files"):
            import_files([tmp_path / "empty"], reader, writer)
