"""Scripts without spaces and arguments of calls: search, filters, delete and curation find their text."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from hermes.config.paths import db_path
from hermes.core import Message, ToolCall
from hermes.data.curate.base import Contamination, EvalSet
from hermes.store import Filter, Reader, Writer, migrations
from tests import records
from tests.cli.process import hermes
from tests.data import made

ALPHABETS = {
    "chinese": "".join(map(chr, range(0x4E00, 0x4E00 + 900))),
    "japanese": "".join(
        map(chr, [*range(0x3042, 0x3094), *range(0x30A2, 0x30F4), *range(0x65E5, 0x65E5 + 200)])
    ),
    "thai": "".join(map(chr, range(0x0E01, 0x0E2F))),
}
PUNCTUATION = {"chinese": "，。？！、：", "japanese": "、。？！「」", "thai": " "}
TALK = {"chinese": "好的，我们开始吧。", "japanese": "はい、始めましょう。", "thai": "ครับ "}


def _item(draw: random.Random, script: str) -> str:
    parts = [
        "".join(draw.choice(ALPHABETS[script]) for _ in range(draw.randint(4, 12)))
        + draw.choice(PUNCTUATION[script])
        for _ in range(draw.randint(3, 6))
    ]
    return "".join(parts)


def _places(text: str) -> dict[str, list[Message]]:
    """Conversations that have the text in each place where a model can read or write it."""
    start = [Message.user("Hello.")]
    document = {"question": text, "level": 3}
    results = {
        "result": text,
        "result that is JSON": json.dumps({"exit_code": 0, "output": text}, ensure_ascii=False),
        "JSON lines in a result": json.dumps({"output": f"{json.dumps(document)}\n" * 2}),
        "result in wide characters": text.translate({number: number + 0xFEE0 for number in range(33, 127)}),
        "result with invisible characters": "\u200b".join(text),
    }
    calls = {
        "JSON in arguments": ToolCall(
            "c", "terminal", json.dumps({"command": f"echo '{json.dumps(document)}'"})
        ),
        "arguments": ToolCall(
            "c", "write_file", json.dumps({"path": "a", "lines": [{"text": f"x\n{text}"}]})
        ),
        "unescaped arguments": ToolCall("c", "write_file", json.dumps({"text": text}, ensure_ascii=False)),
        "malformed arguments": ToolCall("c", "write_file", '{"text": "' + text),
    }
    return {
        "question": [Message.user(text), Message.assistant("Yes.")],
        "answer": [*start, Message.assistant(f"Well, {text}")],
        "thinking": [*start, Message.assistant("Yes.", reasoning=text)],
        **{
            name: [*start, Message.tool(ToolCall("c", "read_file", "{}"), result), Message.assistant("Yes.")]
            for name, result in results.items()
        },
        **{name: [*start, Message.assistant(tool_calls=(call,))] for name, call in calls.items()},
    }


@pytest.mark.parametrize("script", [*ALPHABETS, "english"])
def test_every_contaminated_row_is_removed_and_no_clean_one(script: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    if script == "english":
        items = [
            "".join(f"w{draw.randrange(9000)}" + draw.choice((" ", "\n")) for _ in range(20))
            for _ in range(20)
        ]
    else:
        items = [_item(draw, script) for _ in range(20)]
    against = EvalSet("eval.jsonl")
    for number, item in enumerate(items[:10]):
        against.add(item, number)
    rule = Contamination(against)
    for number, item in enumerate(items):
        for place, messages in _places(f"{TALK.get(script, 'Well. ')}{item}").items():
            removed = rule.remove(made.example(messages)) is not None
            assert removed == (number < 10), (place, item)


def test_a_word_of_two_characters_is_found_by_search_filter_and_delete(tmp_path: Path) -> None:
    texts = [
        "我今天买了苹果，很好吃。",
        "我今天买了水果和苹，很好。",
        "りんごを食べました。",
        "I ate an apple.",
    ]
    with Writer(db_path(tmp_path)) as writer:
        ids = [records.record(writer, records.conversation(text)) for text in texts]
        call = ToolCall("c", "write_file", json.dumps({"text": "first\n苹果 in a file"}))
        hidden = [Message.user("Write."), Message.assistant(tool_calls=(call,)), Message.tool(call, "ok")]
        output = json.dumps(
            {"output": 'first\nlast line ＡＰＩ\n{"q": "\\u5317\\u4eac \\u8336"}\n사과를 먹었다'}
        )
        reading = [Message.user("Read."), Message.tool(call, output), Message.assistant("Well.")]
        in_result = records.record(writer, reading)
        in_arguments = records.record(writer, hidden)
    with Reader(db_path(tmp_path)) as reader:
        for query, expected in (
            ("苹果", {ids[0], in_arguments}),
            ("买了", {ids[0], ids[1]}),
            ("りんご", {ids[2]}),
            ("今天 苹果", {ids[0]}),
            ("apple", {ids[3]}),
            ("果苹", set()),
            ("file 苹果", {in_arguments}),
            ("last", {in_result}),
            ("api", {in_result}),
            ("北京 茶", {in_result}),
            ("사과", {in_result}),
            ("과를", set()),
        ):
            assert {hit.trajectory_id for hit in reader.search(query)} == expected, query
            assert {t.header.id for t in reader.trajectories(Filter(text=query))} == expected, query
    shown = hermes(tmp_path, "trajectories", "search", "苹果")
    assert "苹果，很好吃" in shown.stdout
    listed = json.loads(hermes(tmp_path, "trajectories", "list", "--text", "苹果", "--json").stdout)
    assert len(listed) == 2
    assert hermes(tmp_path, "trajectories", "delete", "--text", "苹果", "--yes").returncode == 0
    with Reader(db_path(tmp_path)) as reader:
        assert reader.search("苹果") == []
        assert len(reader.search("买了")) == 1


def test_the_index_of_an_older_store_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hermes.db"
    with monkeypatch.context() as older:
        older.setattr(migrations, "STEPS", migrations.STEPS[:4])
        older.setattr("hermes.store.rows.searchable", lambda text: text)
        with Writer(path) as writer:
            records.record(writer, records.conversation("我今天买了苹果，很好吃。"))
    with Writer(path), Reader(path) as reader:
        assert len(reader.search("苹果")) == 1
        assert len(reader.search("calculator")) == 1
