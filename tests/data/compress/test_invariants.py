"""What holds for every compressed row, over random trajectories, checked on the rows that come out."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter as Counts
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes.core import JSONObject, Message
from hermes.data.compress.counting.tokens import Counter
from hermes.data.compress.folding.plan import FoldSettings
from hermes.data.compress.run.job import CompressItem, CompressResult, InputKind, compress
from hermes.data.formats.sharegpt import conversations
from tests import records
from tests.data.compress import made

_THINK = re.compile(r"\A\s*<think>.*?</think>\n?", re.DOTALL)
_NORMAL = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
targets = st.sampled_from([40, 120, 300, 700, 1500])
tails = st.integers(0, 6)


@dataclass
class Case:
    row: JSONObject
    settings: FoldSettings
    counter: Counter
    record: JSONObject | None = None
    """The same conversation as the store has it."""

    def run(self) -> CompressResult:
        row = self.row if self.record is None else {**self.row, "conversations": []}
        return compress(CompressItem("row 0", json.dumps(row), self.record), self.settings, self.counter)


def chat(turns: list[JSONObject]) -> list[JSONObject]:
    names = {"human": "user", "gpt": "assistant"}
    return [{"role": names.get(turn["from"], turn["from"]), "content": turn["value"]} for turn in turns]


def check_row(case: Case) -> None:
    done = case.run()
    assert done == case.run(), "the same row gives the same result"
    if done.kind is InputKind.BAD:
        raise AssertionError(done.reason)
    result = json.loads(done.line)
    before, after = case.row["conversations"], result["conversations"]
    if done.kind is InputKind.ASIDE:
        assert result.pop("kept_aside")
        result.pop("compression_metrics")
        assert result == loadable(case.row)
        return
    target = case.settings.target_max_tokens
    assert done.metrics["compressed_tokens"] == case.counter.conversation(chat(after)) <= target
    before = loadable(before)
    assert done.metrics["original_tokens"] == case.counter.conversation(chat(before))
    check_ends(before, after, case.settings)
    check_protected(result, before, done, case.settings)
    check_decisions(before, after, done.metrics)
    check_pairs(before, after)
    check_map(result, before, done)
    again = compress(CompressItem("row 0", done.line), case.settings, case.counter)
    assert (again.kind, again.line) == (InputKind.ROW, done.line), "compressing again changes nothing"


def loadable(value: JSONObject | list[JSONObject]) -> JSONObject:
    """As it comes back from a file: lone surrogates have no form there."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def check_ends(before: list[JSONObject], after: list[JSONObject], settings: FoldSettings) -> None:
    """Both ends are as they were, but for tool outputs of the last turns unless protection is strict."""
    first = next(i for i, turn in enumerate(before) if turn["from"] == "human") + 1
    assert after[:first] == before[:first]
    last = settings.protect_last_turns
    for old, new in zip(before[-last:], after[-last:], strict=True) if last else ():
        if settings.strict_protect or old["from"] != "tool":
            assert new == old
        else:
            assert (new["from"], results_in(new)) == ("tool", results_in(old))


def results_in(turn: JSONObject) -> list[str]:
    return re.findall(r'<tool_response>\n\{"tool_call_id": "(.*?)"', turn["value"])


def check_protected(
    result: JSONObject, before: list[JSONObject], done: CompressResult, settings: FoldSettings
) -> None:
    """The map marks what was folded in protected turns: only outputs, and only if nothing else was enough."""
    entries = result.get("metadata", {}).get("compression", {}).get("map", [])
    marked = [entry for entry in entries if entry["protected"]]
    assert len(marked) == done.metrics["protected_outputs_folded"]
    assert {entry["kind"] for entry in marked} <= {"tool_output"}
    assert not (marked and settings.strict_protect)
    changed = sum(turn not in result["conversations"] for turn in before[-settings.protect_last_turns :])
    assert not settings.protect_last_turns or bool(changed) == bool(marked)


def check_decisions(before: list[JSONObject], after: list[JSONObject], metrics: JSONObject) -> None:
    """Instructions and decisions are the old ones, in their order; the last ones go only if others did."""
    assert_subsequence(spoken(after, "human"), spoken(before, "human"))
    assert_subsequence(spoken(after, "gpt"), spoken(before, "gpt"))
    folds = metrics["folds"]
    if not folds["instruction"]:
        assert spoken(after, "human") == spoken(before, "human")
    if not folds["exchange"] and not folds["instruction"]:
        assert spoken(after, "gpt") == spoken(before, "gpt")
        assert metrics["decisions_kept"] == 1.0
    if folds["exchange"]:
        assert folds["tool_output"], "exchanges leave their state in a result"


def spoken(turns: list[JSONObject], role: str) -> list[str]:
    return [_THINK.sub("", turn["value"]) for turn in turns if turn["from"] == role]


def assert_subsequence(part: list[str], whole: list[str]) -> None:
    rest = iter(whole)
    assert all(any(each == other for other in rest) for each in part)


def check_pairs(before: list[JSONObject], after: list[JSONObject]) -> None:
    """A turn of results stands behind the turn that asked for them, with as many as it had."""

    def pairs(turns: list[JSONObject]) -> list[tuple[str, int]]:
        return [
            (_THINK.sub("", a["value"]), b["value"].count("<tool_response>\n"))
            for a, b in itertools.pairwise(turns)
            if b["from"] == "tool"
        ]

    known = pairs(before)
    rest = iter(known)
    for asked, _ in pairs(after):
        assert any(asked == other for other, _ in rest)
    assert roles(after) <= roles(before)


def roles(turns: list[JSONObject]) -> set[tuple[str, str]]:
    return {(a["from"], b["from"]) for a, b in itertools.pairwise(turns)}


def check_map(result: JSONObject, before: list[JSONObject], done: CompressResult) -> None:
    if not done.metrics["was_compressed"]:
        assert result["conversations"] == before and "parent_id" not in result
        return
    notes = result["metadata"]["compression"]
    assert result["parent_id"] == notes["parent_id"] == "row-1" != result["id"]
    assert result["relation"] == "compressed"
    assert notes["map"] and sum(done.metrics["folds"].values()) == len(notes["map"])
    assert all(each["original_tokens"] >= 0 and each["kept_tokens"] >= 0 for each in notes["map"])


def check(
    counter: Counter, messages: list[Message], target: int, tail: int, stored: bool, strict: bool
) -> None:
    """Written as ShareGPT with tools in its system text, or out of the store."""
    row = {"id": "row-1", "conversations": conversations(messages, records.TOOLS), "reward": 1.0}
    record = {"messages": [message.to_json() for message in messages], "tools": list(records.TOOLS)}
    settings = FoldSettings(target, tail, strict_protect=strict)
    check_row(Case(row, settings, counter, record if stored else None))


def check_messages(counter: Counter, messages: list[Message], target: int, tail: int) -> None:
    """OpenAI messages: results stay with their calls by id, and only outputs and thinking ever change."""
    before = loadable([made.openai_message(message) for message in messages])
    text = json.dumps({"messages": before})
    done = compress(CompressItem("row 0", text), FoldSettings(target, tail), counter)
    after = json.loads(done.line)["messages"]
    if done.kind is InputKind.ASIDE:
        assert after == before
        return
    plain = [{**message, "content": message["content"] or ""} for message in after]
    assert counter.conversation(plain) == done.metrics["compressed_tokens"] <= target
    fixed = [{**each, "content": None if each["role"] == "tool" else each["content"]} for each in before]
    kept = [{**each, "content": None if each["role"] == "tool" else each["content"]} for each in after]
    assert_subsequence([without_thinking(each) for each in kept], [without_thinking(each) for each in fixed])
    asked: set[str] = set()
    for message in after:
        asked |= {call["id"] for call in message.get("tool_calls", ())}
        assert message["role"] != "tool" or message["tool_call_id"] in asked
    answered = {message["tool_call_id"] for message in after if message["role"] == "tool"}
    lost = {message["tool_call_id"] for message in before if message["role"] == "tool"} - answered
    assert lost.isdisjoint(asked), "a call that stays keeps its results"


def without_thinking(message: JSONObject) -> str:
    return json.dumps({key: value for key, value in message.items() if key != "reasoning_content"})


@given(messages=made.trajectories(), target=targets, tail=tails, stored=st.booleans(), strict=st.booleans())
@_NORMAL
def test_every_row_keeps_its_structure_and_its_budget(
    counter: Counter, messages: list[Message], target: int, tail: int, stored: bool, strict: bool
) -> None:
    check(counter, messages, target, tail, stored, strict)


@given(messages=made.trajectories(), target=targets, tail=tails)
@_NORMAL
def test_rows_of_openai_messages_keep_theirs_too(
    counter: Counter, messages: list[Message], target: int, tail: int
) -> None:
    check_messages(counter, messages, target, tail)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@given(messages=made.trajectories(), target=targets, tail=tails, stored=st.booleans(), strict=st.booleans())
@settings(_NORMAL, max_examples=10_000)
def test_ten_thousand_rows_keep_their_structure_and_their_budget(
    counter: Counter, messages: list[Message], target: int, tail: int, stored: bool, strict: bool
) -> None:
    check(counter, messages, target, tail, stored, strict)
    check_messages(counter, messages, target, tail)


def test_the_random_rows_meet_every_stage(counter: Counter) -> None:
    """The properties above would hold for a compressor that never had anything to do."""
    seen: Counts[str] = Counts()

    @given(messages=made.trajectories(), target=targets, tail=st.integers(0, 2))
    @settings(_NORMAL, max_examples=200, database=None, derandomize=True)
    def look(messages: list[Message], target: int, tail: int) -> None:
        row = {"conversations": conversations(messages, ())}
        done = Case(row, FoldSettings(target, tail), counter).run()
        seen[done.kind] += 1
        seen.update({kind: bool(count) for kind, count in done.metrics["folds"].items()})
        seen["protected"] += done.metrics["protected_outputs_folded"] > 0

    look()
    for kind in ("row", "aside", "tool_output", "reasoning", "exchange", "instruction"):
        assert seen[kind] >= 3, seen
