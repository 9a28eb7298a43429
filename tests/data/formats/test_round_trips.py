"""Every format over random trajectories: what it says it keeps comes back; what cannot be held is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings

from hermes.core import JSONObject, Message, RatingKind, Role, StepKind, ToolCall
from hermes.data.example import Example, UnfitError
from hermes.data.export.table import KINDS, TableWriter, decode_value
from hermes.data.formats import sts
from hermes.data.formats.base import Format, ToolCallStyle, Unit
from hermes.data.formats.registry import FORMATS
from hermes.data.lines import encode_row
from tests.data import made

TAGS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
)
FACTS = ("id", "source", "model", "created_at_ms", "run_id", "task_id", "parent_id", "relation", "metadata")


def rows(form: Format, example: Example, calls: ToolCallStyle = ToolCallStyle.STRUCTURED) -> list[JSONObject]:
    """What a file of this format would hold, read back from its lines."""
    return [json.loads(encode_row(row).line) for row in form.write(example, calls)]


def back(form: Format, row: JSONObject) -> Example:
    assert form.read is not None
    if form.lines is not None:
        row = sts.join_lines(json.loads(json.dumps(form.lines(row))))
    return form.read(row)


def facts(example: Example, names: Iterable[str] = FACTS) -> list[object]:
    header = example.trajectory.header
    return [*(getattr(header, name) for name in names), example.tools]


def check_messages(example: Example) -> None:
    form = FORMATS["messages"]
    (row,) = rows(form, example)
    read = back(form, row)
    assert read.messages == example.messages
    assert facts(read) == facts(example)
    assert (read.reward, read.rating, read.trajectory.outcome) == (
        example.reward,
        example.rating,
        example.trajectory.outcome,
    )


def check_atif(example: Example) -> None:
    form = FORMATS["atif"]
    (row,) = rows(form, example)
    read = back(form, row)
    assert read.messages == example.messages
    assert facts(read) == facts(example)
    assert (read.reward, read.rating, read.trajectory.outcome) == (
        example.reward,
        example.rating,
        example.trajectory.outcome,
    )
    told = [(c.model, c.usage, c.cost_usd, c.tokens) for c in _calls(example)]
    assert [(c.model, c.usage, c.cost_usd, c.tokens) for c in _calls(read)] == told


def check_sharegpt(example: Example) -> None:
    for name in ("sharegpt", "sharegpt-user-assistant"):
        check_dialect(example, name)


def check_dialect(example: Example, name: str) -> None:
    plain = replace_messages(example, _fit_for_the_dialect)
    form = FORMATS[name]
    (row,) = rows(form, plain)
    read = back(form, row)
    assert list(map(_in_sharegpt, read.messages)) == list(map(_in_sharegpt, plain.messages))
    asked = {call.id for message in plain.messages for call in message.tool_calls}
    strays = {m.name for m in plain.messages if m.role is Role.TOOL and m.tool_call_id not in asked}
    for said, heard in zip(plain.messages, read.messages, strict=True):
        if len({call.name for call in said.tool_calls}) == len(said.tool_calls):
            for call, got in zip(said.tool_calls, heard.tool_calls, strict=True):
                answered = any(m.role is Role.TOOL and m.tool_call_id == call.id for m in plain.messages)
                assert got.id == call.id or not answered or call.name in strays
    assert facts(read) == facts(plain)


def check_template_formats(example: Example) -> None:
    plain = replace_messages(example, _without_images)
    for name in ("trl-sft", "axolotl"):
        form = FORMATS[name]
        if _has_broken_calls(plain):
            with pytest.raises(UnfitError):
                rows(form, plain)
            continue
        (row,) = rows(form, plain)
        assert list(map(_by_value, back(form, row).messages)) == list(map(_by_value, plain.messages))
        assert back(form, row).tools == plain.tools
        (text,) = rows(form, plain, ToolCallStyle.TEXT)
        (dialect,) = rows(FORMATS["sharegpt"], plain)
        assert [m["content"] for m in text["messages"]] == [t["value"] for t in dialect["conversations"]]
        assert all(set(m) <= {"role", "content", "tool_call_id", "name", "train"} for m in text["messages"])
        assert text["tools"] is None
        if name == "axolotl":
            for written in (row, text):
                learned = [m for m in written["messages"] if m["train"]]
                assert len(learned) == sum(step.kind is StepKind.MODEL for step in plain.trajectory.steps)
                assert {m["role"] for m in learned} == {"assistant"}


def check_finetune(example: Example) -> None:
    form = FORMATS["openai-finetune"]
    try:
        (row,) = rows(form, example)
    except UnfitError:
        last = example.messages[-1]
        asked = {call.id for message in example.messages for call in message.tool_calls}
        answers = {message.tool_call_id for message in example.messages if message.role is Role.TOOL}
        assert (
            asked != answers
            or last.tool_calls
            or _has_broken_calls(example)
            or any(message.images for message in example.messages)
        )
        return
    assert set(row) <= {"messages", "tools", "parallel_tool_calls"}
    for message in row["messages"]:
        assert set(message) <= {"role", "content", "tool_calls", "tool_call_id", "weight"}
    kept = [replace(message, reasoning=None) for message in example.messages]
    assert list(back(form, row).messages) == kept


def check_sts(example: Example) -> None:
    form = FORMATS["sts"]
    (row,) = rows(form, example)
    read = back(form, row)
    assert list(map(_in_sts, read.messages)) == list(map(_in_sts, example.messages))
    names = ("id", "model", "created_at_ms")
    assert facts(read, names) == facts(example, names)


def check_unpaired(example: Example) -> None:
    try:
        found = rows(FORMATS["trl-unpaired"], example)
    except UnfitError:
        return
    assert found
    written = [message.to_json()["content"] for message in example.messages]
    for row in found:
        whole = [message["content"] for message in row["prompt"] + row["completion"]]
        assert whole == written[: len(whole)]
        assert row["prompt"]
        assert row["completion"]
        assert all(message["role"] in ("assistant", "tool") for message in row["completion"])
        assert isinstance(row["label"], bool)


def check_stepwise(example: Example) -> None:
    verdicts = {r.step_index: r.value for r in example.ratings if r.kind is RatingKind.STEP and r.value}
    said = [step for step in example.trajectory.steps if step.kind is StepKind.MODEL]
    try:
        (row,) = rows(FORMATS["trl-stepwise"], example)
    except UnfitError:
        assert said[0].index not in verdicts
        return
    assert len(row["completions"]) == len(row["labels"]) > 0
    judged = said[: len(row["labels"])]
    assert row["labels"] == [verdicts[step.index] > 0 for step in judged]
    for text, step in zip(row["completions"], judged, strict=True):
        assert step.message.content in text


def check_tokens(example: Example) -> None:
    traces = [(step.index, step.call.tokens) for step in example.trajectory.steps if step.call]
    try:
        found = rows(FORMATS["tokens"], example)
    except UnfitError:
        assert any(trace is None for _, trace in traces)
        return
    spans = [(row, span) for row in found for span in row["spans"]]
    assert len(spans) == len(traces)
    for (row, span), (index, trace) in zip(spans, traces, strict=True):
        assert trace is not None
        ids, start, end = row["input_ids"], span["start"], span["end"]
        assert (span["step"], span["policy_version"]) == (index, trace.policy_version)
        assert tuple(ids[:start]) == trace.prompt_ids
        assert tuple(ids[start:end]) == trace.sampled_ids
        assert tuple(row["logprobs"][start:end]) == trace.logprobs
        assert set(row["mask"][start:end]) <= {1}
    for row in found:
        assert len(row["input_ids"]) == len(row["logprobs"]) == len(row["mask"])
        assert sum(row["mask"]) == sum(span["end"] - span["start"] for span in row["spans"])


def check_record(example: Example) -> None:
    """What was never in a store; whole stores are in test_record.py."""
    form = FORMATS["record"]
    (row,) = rows(form, example)
    read = back(form, row)
    assert (read.trajectory, read.ratings) == (example.trajectory, example.ratings)


def check_tables(example: Example) -> None:
    """Parquet and Arrow hold the rows of the JSONL; only fields that are null are gone."""
    for form in FORMATS.values():
        if form.unit is Unit.PAIR:
            continue
        try:
            written = rows(form, example)
        except UnfitError:
            continue
        for arrow in (False, True):
            assert table_rows(form, written, arrow=arrow) == [_without_nulls(row, form) for row in written]


def table_rows(form: Format, written: list[JSONObject], *, arrow: bool) -> list[JSONObject]:
    file = io.BytesIO()
    table = TableWriter(file, form.columns, arrow=arrow)
    for row in written:
        table.add(row, 1)
    table.close()
    file.seek(0)
    got = pyarrow.ipc.open_stream(file).read_all() if arrow else pyarrow.parquet.read_table(file)
    kinds = {column.name: KINDS[column.kind] for column in form.columns}
    return [
        {name: decode_value(value, kinds[name]) for name, value in row.items() if value is not None}
        for row in got.to_pylist()
    ]


def _without_nulls(row: Any, form: Format) -> Any:
    """As a table gives it back: a null in a column, or in a struct with fixed fields, is no field at all."""
    kept = {name: value for name, value in row.items() if value is not None}
    structs = {column.name for column in form.columns if column.kind != "json"} & kept.keys()
    for name in structs & {"outcome"}:
        kept[name] = {key: value for key, value in kept[name].items() if value is not None}
    for name in structs & {"messages", "spans"}:
        kept[name] = [{k: v for k, v in item.items() if v is not None} for item in kept[name]]
    return kept


def replace_messages(example: Example, change: Callable[[Message], Message]) -> Example:
    steps = tuple(replace(step, message=change(step.message)) for step in example.trajectory.steps)
    return replace(example, trajectory=replace(example.trajectory, steps=steps))


def _without_images(message: Message) -> Message:
    return replace(message, images=())


def _fit_for_the_dialect(message: Message) -> Message:
    """Without what the format says it loses: its own tags in text, malformed calls, images."""
    return replace(
        message,
        content=_without_tags(message.content),
        reasoning=None if message.reasoning is None else _without_tags(message.reasoning),
        tool_calls=tuple(call for call in message.tool_calls if _usable(call)),
        images=(),
    )


def _without_tags(text: str) -> str:
    for tag in TAGS:
        text = text.replace(tag, tag.strip("</>"))
    return text


def _has_broken_calls(example: Example) -> bool:
    return any(not _usable(call) for message in example.messages for call in message.tool_calls)


def _usable(call: ToolCall) -> bool:
    try:
        call.parsed()
    except ValueError:
        return False
    return True


def _by_value(message: Message) -> object:
    calls = [(call.id, call.name, _value(call.arguments)) for call in message.tool_calls]
    name = message.name if message.role is Role.TOOL else None
    return message.role, message.content, message.reasoning, calls, message.tool_call_id, name


def _in_sts(message: Message) -> object:
    calls = [(call.id, call.name, call.arguments) for call in message.tool_calls]
    name = message.name if message.tool_call_id != "call_orphan" else None
    return message.role, message.content, message.reasoning, calls, message.tool_call_id, name


def _in_sharegpt(message: Message) -> object:
    """What the dialect can tell apart."""
    calls = [(call.name, _value(call.arguments)) for call in message.tool_calls]
    content = _json_or_text(message.content) if message.role is Role.TOOL else message.content
    result = (message.tool_call_id, message.name) if message.role is Role.TOOL else None
    return message.role, content, message.reasoning, calls, result


def _value(arguments: str) -> object:
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def _json_or_text(content: str) -> object:
    try:
        value = json.loads(content)
    except ValueError:
        return content
    return value if isinstance(value, dict | list) else content


def _calls(example: Example) -> list[Any]:
    return [step.call for step in example.trajectory.steps if step.call]


CHECKS = (
    check_messages,
    check_atif,
    check_sharegpt,
    check_template_formats,
    check_finetune,
    check_sts,
    check_unpaired,
    check_stepwise,
    check_tokens,
    check_record,
    check_tables,
)


@given(example=made.examples())
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_what_a_format_keeps_comes_back(example: Example) -> None:
    for check in CHECKS:
        check(example)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@given(example=made.examples())
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_a_format_keeps_comes_back_ten_thousand_times(example: Example) -> None:
    for check in CHECKS:
        check(example)


def test_every_format_with_a_reader_is_checked_here() -> None:
    checked = {"sharegpt", "sharegpt-user-assistant", "messages", "openai-finetune", "trl-sft", "axolotl"}
    assert {name for name, form in FORMATS.items() if form.read} == checked | {"atif", "sts", "record"}
