"""Session files as they are found: growing, damaged, huge, of other versions, not files at all."""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes.core import Message, Relation, Source, StepKind
from hermes.data.formats import sts
from hermes.data.importing import import_files
from hermes.store import Reader, Writer
from tests.cli.process import PASSED_ON, failure, hermes
from tests.cli.terminal import hermes_terminal
from tests.data.sessions.clients import (
    CLIENTS,
    add_rows,
    copy_of,
    imported,
    read_rows,
    write_lines,
)
from tests.records import record
from tests.waiting import wait_until

DATABASES = {
    "opencode": {
        "part": ("data",),
        "message": ("data", "time_created"),
        "session": ("directory", "parent_id"),
    },
    "hermes-agent": {
        "messages": ("content", "tool_calls", "tool_call_id", "role", "timestamp"),
        "sessions": ("model", "model_config", "parent_session_id", "started_at"),
    },
}
LINE_CLIENTS = {"claude-code": "edit.jsonl", "codex": "parallel.jsonl", "pi": "parallel.jsonl"}


def answers(db: Path) -> list[str]:
    """The own answers of every trajectory, in order: what would be learned."""
    with Reader(db) as reader:
        return [
            f"{step.message.content}{[call.id for call in step.message.tool_calls]}"
            for trajectory in reader.trajectories()
            for step in trajectory.steps
            if step.kind is StepKind.MODEL
        ]


@pytest.mark.parametrize("client", LINE_CLIENTS)
@pytest.mark.parametrize("seed", range(3))
def test_a_session_that_grew_adds_what_is_new(client: str, seed: int, tmp_path: Path) -> None:
    whole = (copy_of(client, tmp_path) / LINE_CLIENTS[client]).read_bytes()
    once, often, path = tmp_path / "once.db", tmp_path / "often.db", tmp_path / "growing.jsonl"
    path.write_bytes(whole)
    imported(once, client, path)
    draw = random.Random(seed)
    cuts = sorted(draw.sample(range(1, whole.count(b"\n")), 4))
    print(f"seed {seed}, cut after lines {cuts}")
    lines = whole.splitlines(keepends=True)
    for cut in [*cuts, len(lines)]:
        path.write_bytes(b"".join(lines[:cut]))
        assert imported(often, client, path).problems == []
    assert imported(often, client, path).rows == 0
    assert sorted(answers(often)) == sorted(answers(once))
    with Reader(often) as reader:
        parts = list(reader.trajectories())
        for before, after in itertools.pairwise(parts):
            assert (after.header.parent_id, after.header.relation) == (before.header.id, Relation.CONTINUED)
            assert after.messages[: len(before.messages)] == before.messages


def test_a_session_that_was_recorded_is_not_imported_too(tmp_path: Path) -> None:
    path, db = copy_of("claude-code", tmp_path) / "edit.jsonl", tmp_path / "hermes.db"
    session_id = read_rows(path)[0]["sessionId"]
    with Writer(db) as writer:
        record(
            writer,
            [Message.user("hi"), Message.assistant("Hi.")],
            source=Source.RECORD,
            session_id=session_id,
        )
    done = imported(db, "claude-code", path)
    assert (done.rows, done.known) == (0, 1)


def test_rows_that_are_new_in_a_database_are_added(tmp_path: Path) -> None:
    path, db = copy_of("hermes-agent", tmp_path), tmp_path / "hermes.db"
    imported(db, "hermes-agent", path)
    turns = [
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": "More.", "finish_reason": "stop"},
    ]
    rows = [
        {"session_id": "s3", "timestamp": 1795059999.0 + index, **turn} for index, turn in enumerate(turns)
    ]
    with sqlite3.connect(path) as connection:
        add_rows(connection, {"messages": rows})
    connection.close()
    assert imported(db, "hermes-agent", path).rows == 1
    assert answers(db)[-1] == "More.[]"


def test_damaged_lines_are_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    path = copy_of("claude-code", tmp_path) / "edit.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[9] = lines[9][:200] + b"\n"
    lines.insert(3, b"\xff\xfe not text\n")
    lines.append(b'{"type": "user", "message": 7, "uuid": "x", "sessionId": "s"}\n')
    lines.append(b'{"type":"assistant","uuid":"half')
    path.write_bytes(b"".join(lines))
    db = tmp_path / "hermes.db"
    done = imported(db, "claude-code", path)
    assert done.rows == 1
    reported = {problem.line: problem.why for problem in done.problems}
    assert set(reported) == {4, 11, 12, len(lines) - 1, len(lines)}
    assert reported[12] == "a result of a call that is not in the file"
    assert "UTF-8" in reported[4]
    assert "still being written" in reported[len(lines)]
    assert all(problem.file == str(path) for problem in done.problems)
    assert len(answers(db)) == 5


@pytest.mark.parametrize("client", LINE_CLIENTS)
@pytest.mark.parametrize("seed", range(4))
def test_no_damage_ends_an_import(client: str, seed: int, tmp_path: Path) -> None:
    """Values are replaced by others, lines are torn and lost: what is read is stored, nothing is raised."""
    draw = random.Random(seed)
    print(f"seed {seed}")
    odd: list[Any] = [None, 7, "", [], {}, [None], {"a": 1}, "x", True, -1, 1e300]

    def damage(value: Any) -> Any:
        if draw.random() < 0.03:
            return draw.choice(odd)
        if isinstance(value, dict):
            return {name: damage(item) for name, item in value.items() if draw.random() > 0.01}
        return [damage(item) for item in value] if isinstance(value, list) else value

    folder = copy_of(client, tmp_path)
    for file in sorted(folder.rglob("*.jsonl")):
        write_lines(file, [row for row in map(damage, read_rows(file)) if isinstance(row, dict)])
    db = tmp_path / "hermes.db"
    imported(db, client, folder)
    assert imported(db, client, folder).rows == 0
    with Reader(db) as reader:
        assert all(trajectory.turns for trajectory in reader.trajectories())


@pytest.mark.parametrize(("client", "tables"), DATABASES.items())
@pytest.mark.parametrize("seed", range(6))
def test_no_damage_of_a_database_ends_an_import(
    client: str, tables: dict[str, tuple[str, ...]], seed: int, tmp_path: Path
) -> None:
    draw, path, db = random.Random(seed), copy_of(client, tmp_path), tmp_path / "hermes.db"
    print(f"seed {seed}")
    with sqlite3.connect(path) as connection:
        for table, columns in tables.items():
            for column in columns:
                for (row_id,) in connection.execute(f"SELECT rowid FROM {table}").fetchall():
                    if draw.random() < 0.1:
                        value = draw.choice([7, "", "x", b"\xff", -1.5, 1e300, "[]", '{"type": "text"}'])
                        connection.execute(
                            f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, row_id)
                        )
    connection.close()
    imported(db, client, path)
    assert imported(db, client, path).rows == 0


def test_other_versions_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    """Lines of types to come, and a thread of 2025 whose items have no envelope."""
    rows = read_rows(copy_of("codex", tmp_path) / "parallel.jsonl")
    payloads = [row["payload"] for row in rows if row["type"] == "response_item"]
    bare = [{name: value for name, value in item.items() if name != "id"} for item in payloads]
    head = {"id": "t1", "timestamp": "2025-05-01T00:00:00Z", "instructions": "Be brief."}
    db = tmp_path / "hermes.db"
    path = write_lines(
        tmp_path / "old.jsonl", [head, *bare, {"type": "from_the_future", "payload": {"a": 1}}]
    )
    done = imported(db, "auto", path)
    assert (done.rows, done.problems, done.ignored["from_the_future"]) == (1, [], 1)
    with Reader(db) as reader:
        (trajectory,) = reader.trajectories()
    assert trajectory.messages[0].content == "Be brief."
    assert trajectory.turns == 2


def test_a_long_line_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes.data.sessions.lines.MAX_LINE_BYTES", 100_000)
    path = copy_of("pi", tmp_path) / "edit.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines.insert(5, json.dumps({"type": "custom", "id": "big", "data": "x" * 3_000_000}) + "\n")
    path.write_text("".join(lines))
    done = imported(tmp_path / "hermes.db", "pi", path)
    assert [(problem.line, problem.why) for problem in done.problems] == [(6, "longer than 0 MiB")]
    assert done.rows == 1


@pytest.mark.parametrize(
    "turns", [3000, pytest.param(25_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_memory_does_not_grow_with_the_file(tmp_path: Path, turns: int) -> None:
    """60 MB (500 MB) under a limit of 350 MB of data, which the file as Python objects would exceed."""
    path = tmp_path / "huge.jsonl"
    template = read_rows(copy_of("pi", tmp_path) / "parallel.jsonl")
    asked, called, result = template[3], template[4], template[5]
    with path.open("w") as file:
        file.write(json.dumps(template[0]) + "\n")
        parent = None
        for number in range(turns):
            body = " ".join(f"{number * 7919 + index:x}" for index in range(3000))
            call = {"type": "toolCall", "id": f"c{number}", "name": "bash", "arguments": {"command": "x"}}
            for name, row, changes in (
                ("u", asked, {"content": f"go on {number}"}),
                ("a", called, {"content": [call]}),
                ("r", result, {"toolCallId": f"c{number}", "content": [{"type": "text", "text": body}]}),
            ):
                line = row | {
                    "id": f"{name}{number}",
                    "parentId": parent,
                    "message": row["message"] | changes,
                }
                parent = line["id"]
                file.write(json.dumps(line) + "\n")
    assert path.stat().st_size > 20_000 * turns
    os.utime(path, (1_795_000_000, 1_795_000_000))  # at rest, so that its last answer counts
    script = (
        "import resource, sys; from pathlib import Path; from tests.data.sessions.clients import imported;"
        " done = imported(Path(sys.argv[1]), 'pi', Path(sys.argv[2])); assert not done.problems;"
        " print(done.rows)"
    )
    limit = 350 << 20
    child = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "hermes.db"), str(path)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) > 1
    with Reader(tmp_path / "hermes.db") as reader:
        assert sum(trajectory.turns for trajectory in reader.trajectories()) == turns


def test_pipes_links_and_other_files_are_not_read(tmp_path: Path) -> None:
    folder, secret = copy_of("pi", tmp_path), tmp_path / "outside.jsonl"
    secret.write_text((folder / "edit.jsonl").read_text())
    (folder / "edit.jsonl").unlink()
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "out.jsonl").symlink_to(secret)
    (folder / "loop.jsonl").symlink_to(folder / "loop.jsonl")
    (folder / "again").symlink_to(folder, target_is_directory=True)
    (folder / "broken.db").write_text("no database")
    done = imported(tmp_path / "hermes.db", "auto", folder)
    assert done.rows == 1
    reported = {Path(problem.file).name for problem in done.problems}
    assert reported == {"pipe.jsonl", "out.jsonl", "loop.jsonl", "broken.db"}
    assert all(problem.line == 0 for problem in done.problems)
    assert imported(tmp_path / "hermes.db", "auto", folder / "out.jsonl").rows == 1, "named, it is read"


def test_packed_threads_are_unpacked(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    folder = copy_of("codex", tmp_path)
    path = folder / "thinking.jsonl"
    packed = folder / "thinking.jsonl.zst"
    packed.write_bytes(zstandard.ZstdCompressor().compress(path.read_bytes()))
    db = tmp_path / "hermes.db"
    assert imported(db, "auto", packed).rows == 1
    assert imported(db, "codex", path).rows == 0
    packed.write_bytes(b"no archive")
    assert "cannot unpack" in imported(db, "codex", packed).problems[0].why


@pytest.mark.parametrize("client", CLIENTS)
def test_the_usual_places(client: str, tmp_path: Path) -> None:
    places = {
        "claude-code": ".claude/projects/-home-ada-project",
        "codex": ".codex/sessions/2026/11/19",
        "opencode": ".local/share/opencode",
        "pi": ".pi/agent/sessions/--home-ada--",
        "hermes-agent": ".hermes",
    }
    user = tmp_path / "user"
    copy_of(client, user / places[client])
    outside = {"HOME": str(user), "HERMES_HOME": str(user / ".hermes")}
    refused = hermes(user / ".hermes", "import", "--from", "auto", env=outside)
    assert refused.returncode == 2
    assert f"{client}: " in refused.stdout
    assert "--yes" in refused.stderr
    done = hermes(user / ".hermes", "import", "--from", "auto", "--yes", "--json", env=outside)
    assert json.loads(done.stdout)["rows"] > 0
    listed = hermes(user / ".hermes", "trajectories", "list", "--agent", client, "--json", env=outside)
    assert len(json.loads(listed.stdout)) == json.loads(done.stdout)["rows"]


@pytest.mark.parametrize("answer", ["y", "n"])
def test_auto_asks_first(answer: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    copy_of("pi", tmp_path / "found")
    with hermes_terminal(home, "import", "--from", "auto", str(tmp_path / "found")) as terminal:
        shown = terminal.expect(r"Import them\? \[y/N\]: ")
        assert "pi: 2 files, 0.0 MB" in shown
        terminal.line(answer)
        terminal.expect("2 trajectories imported" if answer == "y" else "it was not confirmed")
        assert terminal.wait() == (0 if answer == "y" else 2)


def test_bad_calls_of_the_command(tmp_path: Path) -> None:
    home = tmp_path / "home"
    message, _ = failure(hermes(home, "import"), 2)
    assert message == "nothing to import is named"
    failure(hermes(home, "import", "x", "--watch"), 2)
    failure(hermes(home, "import", "--from", "pi", "--format", "sts", "x"), 2)
    message, _ = failure(hermes(home, "import", "--from", "pi", str(tmp_path / "no")), 2)
    assert "no such file" in message
    path = copy_of("pi", tmp_path) / "edit.jsonl"
    plain = hermes(home, "import", str(path))
    assert plain.returncode == 1
    assert plain.stderr.count("hermes import --from pi reads it") == 1


def test_watching_adds_what_comes(tmp_path: Path) -> None:
    path, home = copy_of("pi", tmp_path) / "parallel.jsonl", tmp_path / "home"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:8]))
    (path.parent / "edit.jsonl").unlink()
    arguments = ("import", "--from", "pi", str(path.parent), "--watch", "--settle", "0", "--json")
    environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {
        "HERMES_HOME": str(home)
    }
    watcher = subprocess.Popen(
        [sys.executable, "-m", "hermes", *arguments], env=environ, stdout=subprocess.PIPE, text=True
    )
    try:
        assert watcher.stdout is not None
        assert json.loads(watcher.stdout.readline())["rows"] == 1
        path.write_text("".join(lines))
        assert json.loads(watcher.stdout.readline())["rows"] == 1
        watcher.send_signal(signal.SIGINT)
        watcher.wait()
    finally:
        watcher.kill()
        watcher.wait()
    assert len(answers(home / "hermes.db")) == 4


def test_a_killed_import_is_finished_by_the_next(tmp_path: Path) -> None:
    folder, home = copy_of("claude-code", tmp_path), tmp_path / "home"
    environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {
        "HERMES_HOME": str(home)
    }
    command = [
        sys.executable,
        "-m",
        "hermes",
        "import",
        "--from",
        "claude-code",
        str(folder),
        "--watch",
        "--settle",
        "0",
    ]
    child = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)
    wait_until((home / "hermes.db").exists)
    child.kill()
    child.wait()
    imported(home / "hermes.db", "claude-code", folder)
    imported(tmp_path / "whole.db", "claude-code", folder)
    assert answers(home / "hermes.db") == answers(tmp_path / "whole.db")


def test_session_traces_of_the_hub_and_back(tmp_path: Path) -> None:
    """The published form: a header line with a harness and an id, then messages in envelopes."""
    db, out = tmp_path / "hermes.db", tmp_path / "traces"
    imported(db, "claude-code", copy_of("claude-code", tmp_path) / "edit.jsonl")
    with Reader(db) as reader:
        (whole,) = reader.trajectories()
    home = tmp_path / "home"
    home.mkdir()
    db.rename(home / "hermes.db")
    assert hermes(home, "export", "--format", "sts", "--output", str(out)).returncode == 0
    (file,) = [path for path in out.iterdir() if path.suffix == ".jsonl"]
    head, *messages = read_rows(file)
    assert (head["type"], head["harness"]) == ("session", "claude-code")
    assert all(line["type"] == "message" for line in messages)
    assert {name for line in messages for name in line["message"]} <= {
        *("role", "content", "reasoningContent", "toolCalls", "toolCallId", "timestamp", "model")
    }
    with Writer(tmp_path / "again.db") as writer, Reader(tmp_path / "again.db") as reader:
        assert import_files([out], reader, writer).problems == []
        (again,) = reader.trajectories()
    assert again.messages == whole.messages
    assert again.header.metadata["agent"] == "claude-code"
    assert sts.HARNESS == "hermes"
