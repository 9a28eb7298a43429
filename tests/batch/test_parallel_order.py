"""Results of parallel calls lie in the order of their calls, in every output and for every consumer."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from hermes.config.paths import db_path
from hermes.store import Reader
from tests.batch.drive import command, rows, write_rows
from tests.cli.process import hermes
from tests.fakes.provider import FakeProvider, Reply, text, tool_calls

RESULT = re.compile(r"result:(\d+)")
FORMATS = ("sharegpt", "messages", "openai-finetune", "trl-sft", "axolotl", "atif", "record")
CHECK = """import re
def in_order(ctx):
    results = " ".join(m.content for m in ctx.trajectory.messages if m.role == "tool")
    return float([int(n) for n in re.findall(r"result:(\\d+)", results)] == list(range(CALLS)))
"""
CALLS, TASKS = 5, 8


def order(value: object) -> list[int]:
    return [int(number) for number in RESULT.findall(json.dumps(value, default=str))]


def test_every_output_has_the_results_in_the_order_of_the_calls(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)

    def answer(body: dict[str, Any]) -> Reply:
        if body["messages"][-1]["role"] == "tool":
            return text("Done.")
        pauses_s = [draw.random() * 0.4 for _ in range(CALLS)]
        commands = [f"sleep {pause_s:.3f}; echo result':{n}'" for n, pause_s in enumerate(pauses_s)]
        return tool_calls([("terminal", {"command": line}) for line in commands])

    write_rows(tmp_path, *({"id": str(n), "prompt": f"Task {n}"} for n in range(TASKS)))
    (tmp_path / "score.py").write_text(f"CALLS = {CALLS}\n{CHECK}")
    flags = ("--toolsets", "terminal", "--sandbox", "local", "--reward", f"{tmp_path}/score.py:in_order")
    with FakeProvider(answer) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, *flags), timeout_s=120)
    assert done.returncode == 0, done.stderr
    written = rows(tmp_path)
    assert [row["reward"] for row in written] == [1.0] * TASKS
    shards = sorted((tmp_path / "data/run/parquet").glob("*.parquet"))
    table = [row for shard in shards for row in pyarrow.parquet.read_table(shard).to_pylist()]
    with Reader(db_path(tmp_path)) as reader:
        stored = [reader.get(row["id"]).messages for row in written]
    for outputs in (written, table, stored):
        assert [order(output) for output in outputs] == [list(range(CALLS))] * TASKS
    for name in FORMATS:
        file = tmp_path / f"{name}.jsonl"
        assert hermes(tmp_path, "export", "--format", name, "--output", str(file)).returncode == 0
        exported = [json.loads(line) for line in file.read_text().splitlines()]
        assert [order(row) for row in exported] == [list(range(CALLS))] * TASKS, name
    other = tmp_path / "other"
    assert hermes(other, "import", str(tmp_path / "data/run")).returncode == 0
    with Reader(db_path(other)) as reader:
        for row in written:
            messages = reader.get(row["id"]).messages
            calls = next(message.tool_calls for message in messages if message.tool_calls)
            labels = {call.id: re.findall(r":(\d+)", call.arguments)[-1] for call in calls}
            results = {m.tool_call_id: RESULT.findall(m.content)[0] for m in messages if m.role == "tool"}
            assert results == labels


@pytest.mark.parametrize("named", [True, False])
def test_results_that_another_program_wrote_in_another_order_are_paired_by_id(
    tmp_path: Path, named: bool
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    written = []
    for number in range(20):
        calls = [
            {"id": f"c{n}", "type": "function", "function": {"name": f"tool{n}", "arguments": "{}"}}
            for n in range(CALLS)
        ]
        results = [
            {"role": "tool", "tool_call_id": f"c{n}", "content": f"result:{n}"}
            | ({"name": f"tool{n}"} if named else {})
            for n in range(CALLS)
        ]
        draw.shuffle(results)
        question = {"role": "user", "content": f"Question {number}"}
        answer = {"role": "assistant", "content": "Done."}
        turn = {"role": "assistant", "content": None, "tool_calls": calls}
        written.append({"messages": [question, turn, *results, answer]})
    source, target = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in written))
    assert hermes(tmp_path, "import", str(source)).returncode == 0
    for name in FORMATS:
        assert hermes(tmp_path, "export", "--format", name, "--output", str(target)).returncode == 0
        exported = [json.loads(line) for line in target.read_text().splitlines()]
        assert [order(row) for row in exported] == [list(range(CALLS))] * 20, name
    assert hermes(tmp_path, "export", "--output", str(target)).returncode == 0
    for line in target.read_text().splitlines():
        statistics = json.loads(line)["tool_stats"]
        assert set(statistics) == {f"tool{n}" for n in range(CALLS)}
        responses = re.findall(r'"name": ?"(\w+)"', json.loads(line)["conversations"][2]["value"])
        assert responses == [f"tool{n}" for n in range(CALLS)]
