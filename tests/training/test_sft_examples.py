"""Conversations as lessons: only what the assistant said is learned, in contexts that a model would see."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from hermes.core import Message, Role, ToolCall
from hermes.data.export.select import TrajectorySelection
from hermes.data.formats.registry import FORMATS
from hermes.models.render.chat import ChatRenderer
from hermes.store import Filter, Reader, Writer
from hermes.training.data.sft_examples import examples_of, from_files, from_store, gather
from tests import records
from tests.cli.process import failure, hermes
from tests.ports import listening

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
FORGETFUL = TEMPLATE.replace("m['content']", "m['content'] if loop.index > messages|length - 2 else '...'")
CHAT = (
    Message.system("Be brief."),
    Message.user("2+2?"),
    Message.assistant("", tool_calls=(ToolCall("c1", "add", '{"a": 2}'),)),
    Message(Role.TOOL, "4", tool_call_id="c1", name="add"),
    Message.assistant("It is 4."),
    Message.user("</s> thanks"),
    Message.assistant("Welcome."),
)


def speech(tiny: Path, template: str = TEMPLATE) -> ChatRenderer:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = template
    return ChatRenderer.of(tokenizer, "hermes", 4096)


def text(spoken: ChatRenderer, tokens: tuple[int, ...]) -> str:
    return spoken.decode(tokens)


def test_exactly_the_assistants_words_and_their_end_are_learned(tiny: Path) -> None:
    spoken = speech(tiny)
    (only,) = examples_of(CHAT, [True] * len(CHAT), (), spoken)
    learned = [token for token, chosen in zip(only.tokens, only.loss_mask, strict=True) if chosen]
    assert text(spoken, tuple(learned)) == (
        '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call></s>It is 4.</s>Welcome.</s>'
    )
    whole = text(spoken, only.tokens)
    assert whole.startswith("<s>system\nBe brief.</s>\n<s>user\n2+2?</s>\n<s>assistant\n<tool_call>")
    assert whole.endswith("</s> thanks</s>\n<s>assistant\nWelcome.</s>")
    assert only.tokens.count(2) == 7  # the user's spelled mark is none


def test_a_template_that_rewrites_history_gives_a_sequence_for_each_context(tiny: Path) -> None:
    spoken = speech(tiny, FORGETFUL)
    made = examples_of(CHAT, [True] * len(CHAT), (), spoken)
    assert len(made) == 3
    assert "Be brief." not in text(spoken, made[-1].tokens)


def test_turns_that_were_copied_in_are_read_and_not_learned(tiny: Path) -> None:
    spoken = speech(tiny)
    (only,) = examples_of(CHAT, [index == 6 for index in range(len(CHAT))], (), spoken)
    learned = [token for token, chosen in zip(only.tokens, only.loss_mask, strict=True) if chosen]
    assert text(spoken, tuple(learned)) == "Welcome.</s>"
    assert "It is 4." in text(spoken, only.tokens)


ROWS = (
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]},
    {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]},
    {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "ho", "tool_calls": []},
        ],
        "tools": None,
    },
)


@pytest.mark.parametrize("row", ROWS)
def test_every_export_that_holds_turns_can_be_learned_from(
    tiny: Path, tmp_path: Path, row: dict[str, object]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    spoken = speech(tiny)
    (only,) = from_files([file], lambda: spoken, Counter())
    assert text(spoken, only.tokens) == "<s>user\nhi</s>\n<s>assistant\nho</s>"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one conversation that calls a tool."""
    home = tmp_path_factory.mktemp("stored")
    with Writer(home / "hermes.db") as writer:
        records.record(writer, TALK)
    return home


CALL = ToolCall("c1", "add", '{"a": 2, "b": [1]}')
TALK = (
    Message.system("Be brief."),
    Message.user("2+2?"),
    Message.assistant("Let me see.", tool_calls=(CALL,)),
    Message.tool(CALL, "4"),
    Message.assistant("It is 4."),
    Message.user("thanks"),
    Message.assistant("Welcome."),
)
WITH_TURNS = [name for name, form in FORMATS.items() if form.read is not None]


def test_formats_with_turns_are_those_that_are_meant() -> None:
    whole = (
        "sharegpt",
        "sharegpt-user-assistant",
        "messages",
        "openai-finetune",
        "trl-sft",
        "axolotl",
        "atif",
    )
    assert {*whole, "sts", "record"} == set(WITH_TURNS)


@pytest.mark.parametrize("form", WITH_TURNS)
def test_every_export_with_turns_teaches_the_same_as_the_store_itself(
    form: str, stored: Path, tiny: Path, tmp_path: Path
) -> None:
    output = tmp_path / "rows.jsonl"
    done = hermes(stored, "export", "--format", form, "--output", str(output))
    assert done.returncode == 0, done.stderr
    spoken, left_out = speech(tiny), Counter[str]()
    with Reader(stored / "hermes.db") as reader:
        (expected,) = from_store(reader, TrajectorySelection(Filter()), spoken, left_out)
    (found,) = from_files([output], lambda: spoken, left_out)
    assert text(spoken, found.tokens) == text(spoken, expected.tokens)
    assert (found.tokens, found.loss_mask) == (expected.tokens, expected.loss_mask) and not left_out
    learned = [token for token, chosen in zip(found.tokens, found.loss_mask, strict=True) if chosen]
    said = text(spoken, tuple(learned))
    assert said.startswith('Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": [1]}}')
    assert said.endswith("It is 4.</s>Welcome.</s>")


@pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}], ids=["openai", "axolotl"])
def test_turns_that_a_row_marks_are_read_and_not_learned(
    mark: dict[str, object], tiny: Path, tmp_path: Path
) -> None:
    file, spoken = tmp_path / "rows.jsonl", speech(tiny)
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "old", **mark},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": "new"},
    ]
    file.write_text(json.dumps({"messages": turns}) + "\n")
    (only,) = from_files([file], lambda: spoken, Counter())
    learned = [token for token, chosen in zip(only.tokens, only.loss_mask, strict=True) if chosen]
    assert text(spoken, tuple(learned)) == "new</s>" and "old" in text(spoken, only.tokens)


def test_the_store_is_a_source_and_what_did_not_complete_is_counted(tiny: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    cut = {"messages": [*ROWS[0]["messages"], {"role": "user", "content": "more"}]}
    rows.write_text("".join(json.dumps(row) + "\n" for row in (ROWS[0], cut)))
    from hermes.data.importing import import_files

    database = tmp_path / "hermes.db"
    with Writer(database) as writer, Reader(database) as reader:
        import_files([rows], reader, writer)
    left_out = Counter[str]()
    with Reader(database) as reader:
        found = gather(
            from_store(reader, TrajectorySelection(Filter()), speech(tiny), left_out),
            left_out,
            longest=99,
            eval_share=0.0,
        )
    assert len(found.train) == 1 and left_out == {"cut": 1}


def test_tasks_are_held_out_whole(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [
        {"input_ids": [5 + task, 6, 7], "mask": [0, 1, 1], "task_id": str(task)}
        for task in range(40)
        for _ in range(2)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    left_out = Counter[str]()
    found = gather(from_files([file], pytest.fail, left_out), left_out, longest=99, eval_share=0.3)
    held, kept = ({lesson.task for lesson in side} for side in (found.held_out, found.train))
    assert held and kept and not held & kept and len(found.held_out) == 2 * len(held)


def test_equal_prompts_of_different_tasks_are_held_out_together(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [
        {"input_ids": [5 + prompt, 6, 7 + run], "mask": [0, 0, 1], "task_id": f"{run}.{prompt}"}
        for run in range(3)
        for prompt in range(40)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    left_out = Counter[str]()
    found = gather(from_files([file], pytest.fail, left_out), left_out, longest=99, eval_share=0.3)
    held, kept = ({lesson.tokens[0] for lesson in side} for side in (found.held_out, found.train))
    assert held and kept and not held & kept


def test_the_command_says_what_is_wrong_in_two_lines(tmp_path: Path, tiny: Path) -> None:
    home = tmp_path / "home"
    what, fix = failure(hermes(home, "train", "sft", "--base-model", str(tiny), "--base-url", "ftp://x"), 2)
    assert what == "'ftp://x' is not an address"
    what, fix = failure(hermes(home, "train", "grpo", "--base-url", "https://example.org"), 2)
    assert what == "there is no key for https://example.org" and "TINKER_API_KEY" in fix
    file = tmp_path / "rows.jsonl"
    file.write_text('{"input_ids": [5, 6, 7], "mask": [0, 1]}\n')
    with listening() as url:
        words = ("train", "sft", str(file), "--base-model", str(tiny), "--service", url)
        what, fix = failure(hermes(home, *words), 2)
    assert what.endswith("rows.jsonl:1: 'mask' is not a list as long as 'input_ids'")
