"""What a folded row keeps, and in which order things go."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from hermes.core import JSONObject, Message, ToolCall
from hermes.data.compress.counting.tokenizer import find_tokenizer
from hermes.data.compress.counting.tokens import Counter
from hermes.data.compress.folding.fold import fold
from hermes.data.compress.folding.plan import Folded, FoldSettings
from hermes.data.compress.folding.state import FoldLevel, fold_exchanges, fold_output, is_state
from hermes.data.compress.forms.conversation import RowError, read_messages, read_record
from hermes.data.compress.forms.sharegpt import read_sharegpt
from hermes.data.compress.run.job import CompressItem, CompressResult, InputKind, compress
from tests import records
from tests.data.compress import made


def run(row: JSONObject, counter: Counter, target: int, **changes: Any) -> CompressResult:
    return compress(CompressItem("rows.jsonl:1", json.dumps(row)), FoldSettings(target, **changes), counter)


def folded(messages: list[Message], counter: Counter, target: int) -> Folded:
    return fold(read_record(messages, ()), FoldSettings(target), counter)


def tokens_of(row: JSONObject, counter: Counter) -> int:
    return int(run(row, counter, 10**9).metrics["original_tokens"])


def test_the_oldest_and_largest_output_goes_first_and_nothing_else(counter: Counter) -> None:
    row = made.session_row(exchanges=8)
    done = run(row, counter, tokens_of(row, counter) - 50)
    assert [
        (each["message"], each["kind"]) for each in json.loads(done.line)["metadata"]["compression"]["map"]
    ] == [(3, "tool_output")]


def test_a_large_late_output_goes_before_a_small_early_one(counter: Counter) -> None:
    messages = made.session(exchanges=4, lines=10)
    big = ToolCall("call_big", "read_file", "{}")
    messages[6:6] = [Message.assistant("", tool_calls=(big,)), Message.tool(big, "word " * 4000)]
    size = folded(messages, counter, 10**6).original_tokens
    assert [each.message for each in folded(messages, counter, size - 100).folds] == [7]


def test_thinking_goes_only_after_every_output_and_exchanges_only_after_thinking(counter: Counter) -> None:
    row = made.session_row(exchanges=12)
    kinds = []
    for target in (6000, 3500, 3000, 2500, 2000, 1500, 1300, 1100):
        done = run(row, counter, target)
        if done.kind is InputKind.ROW:
            folds = done.metrics["folds"]
            kinds.append((folds["tool_output"], folds["reasoning"], folds["exchange"]))
            merged = folds["exchange"] // 2
            early = folds["tool_output"] - done.metrics["protected_outputs_folded"]
            assert not folds["reasoning"] or early + merged == 10, "all but the last two"
            assert not folds["exchange"] or folds["reasoning"] + merged == 11
            assert not folds["exchange"] or done.metrics["protected_outputs_folded"] == 2
    assert any(reasoning for _, reasoning, _ in kinds) and any(exchange for _, _, exchange in kinds)


def test_outputs_of_protected_turns_are_folded_before_a_row_is_given_up(counter: Counter) -> None:
    """Fourteen calls with outputs of 4,000 tokens: the last four turns alone are over a target of 4,000."""
    for number in range(20):
        row = made.session_row(number, exchanges=14, lines=170)
        tail_tokens = sum(counter.texts([turn["value"] for turn in row["conversations"][-4:]]))
        assert tail_tokens > 4000
        done = run(row, counter, 4000)
        assert done.kind is InputKind.ROW, done.reason
        result = json.loads(done.line)
        assert done.metrics["compressed_tokens"] <= 4000
        assert decisions(result) == decisions(row) and done.metrics["decisions_kept"] == 1.0
        assert done.metrics["facts"] == done.metrics["facts_kept"] > 10
        entries = result["metadata"]["compression"]["map"]
        assert [entry["message"] for entry in entries if entry["protected"]] == [27, 29]
        assert done.metrics["protected_outputs_folded"] == 2
        assert done.metrics["folds"]["reasoning"] == 0, "earlier turns keep what the last ones made room for"


def test_strict_protection_keeps_such_a_row_aside_as_it_was(counter: Counter) -> None:
    row = made.session_row(exchanges=14, lines=170)
    done = run(row, counter, 4000, strict_protect=True)
    assert done.kind is InputKind.ASIDE and done.metrics["protected_outputs_folded"] == 0
    assert "the last 4 stay as they are" in done.reason
    assert json.loads(done.line)["conversations"] == row["conversations"]


def test_protected_outputs_stay_while_the_others_make_enough_room(counter: Counter) -> None:
    row = made.session_row(exchanges=14, lines=170)
    done = run(row, counter, 14_000)
    entries = json.loads(done.line)["metadata"]["compression"]["map"]
    assert entries and not any(entry["protected"] for entry in entries)
    assert json.loads(done.line)["conversations"][-4:] == row["conversations"][-4:]


def test_what_the_assistant_and_the_user_say_in_protected_turns_is_never_folded(counter: Counter) -> None:
    row = made.session_row(exchanges=3)
    row["conversations"] += [
        {"from": "human", "value": "why? " * 900},
        {"from": "gpt", "value": "so. " * 900},
    ]
    done = run(row, counter, 1500)
    assert (
        done.kind is InputKind.ASIDE
        and "of the first turns and the last 4 only tool outputs fold" in done.reason
    )


def decisions(row: JSONObject) -> list[str]:
    """What the assistant says and calls, its thinking left out."""
    turns = [turn["value"] for turn in row["conversations"] if turn["from"] == "gpt"]
    return [turn.rpartition("</think>\n")[2] for turn in turns]


def test_a_folded_output_keeps_what_later_turns_use(counter: Counter) -> None:
    row = made.session_row(exchanges=10)
    done = run(row, counter, 3500)
    assert done.metrics["decisions_kept"] == 1.0
    assert done.metrics["facts"] == done.metrics["facts_kept"] > 10
    text = json.loads(done.line)["conversations"][3]["value"]
    assert "src/part_1.py" in text and "id17x" in text and "ValueError: number 0000 is wrong" in text
    assert '"folded"' in text and "nothing of interest" not in text


def test_an_output_is_cut_to_the_room_there_is_with_its_head_and_tail(counter: Counter) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(5):
        call = ToolCall("call_big", "read_file", "{}")
        text = "\n".join(f"line {n} {draw.random()}" for n in range(draw.randint(800, 2000)))
        messages = [Message.user("Read."), Message.assistant(tool_calls=(call,)), Message.tool(call, text)]
        messages += [Message.assistant("Done."), *made.session(exchanges=draw.randint(0, 3), lines=5)[1:]]
        size = folded(messages, counter, 10**6).original_tokens
        target = draw.randint(size // 4, size - 100)
        done = folded(messages, counter, target)
        assert 0.9 * target <= done.tokens <= target
        assert [fold.message for fold in done.folds] == [2]
        cut = done.messages[2]
        assert cut is not None
        state = json.loads(cut.content)
        assert text.startswith(state["head"]) and text.endswith(state["tail"])
        lower = fold(read_record([*messages[:2], cut, *messages[3:]], ()), FoldSettings(target // 2), counter)
        assert lower.tokens <= target // 2
        again = json.loads(lower.messages[2].content)  # type: ignore[union-attr]
        assert state["head"].startswith(again.get("head", ""))
        assert state["tail"].endswith(again.get("tail", ""))


def test_a_state_is_a_valid_result_of_the_same_call(counter: Counter) -> None:
    row = made.session_row(exchanges=10)
    turn = json.loads(run(row, counter, 3500).line)["conversations"][3]["value"]
    body = json.loads(turn.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>"))
    assert (body["tool_call_id"], body["name"]) == ("call_0", "read_file")
    assert body["content"]["folded"]["lines"] == 40


def test_merged_exchanges_leave_their_calls_and_facts_in_the_first_result(counter: Counter) -> None:
    row = made.session_row(exchanges=30)
    done = run(row, counter, 3400)
    assert done.kind is InputKind.ROW and 0.5 < done.metrics["decisions_kept"] < 1
    turns = json.loads(done.line)["conversations"]
    state = next(turn["value"] for turn in turns if '"exchanges"' in turn["value"])
    body = json.loads(state.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>"))["content"]
    assert body["folded"]["exchanges"] == 1 + done.metrics["folds"]["exchange"] // 2
    assert body["calls"][0] == 'read_file {"path": "src/part_1.py", "id": "id17x"}'
    assert [turn["from"] for turn in turns[:4]] == ["system", "human", "gpt", "tool"]


def test_later_instructions_go_last_and_with_their_answers(counter: Counter) -> None:
    messages = [Message.system("s"), Message.user("first")]
    for n in range(20):
        messages += [Message.assistant(f"answer {n} " * 20), Message.user(f"instruction {n}")]
    messages.append(Message.assistant("end"))
    result = folded(messages, counter, 900)
    assert result.fits and {each.kind for each in result.folds} == {"instruction"}
    kept = [message.content for message in result.messages if message is not None]
    assert kept[:2] == ["s", "first"] and kept[-1] == "end" and kept[3].startswith("instruction")


def test_thinking_that_the_template_hides_is_left_alone(tmp_path: Path) -> None:
    counter = Counter(find_tokenizer(str(made.write_tokenizer(tmp_path, made.NATIVE)), tmp_path))
    messages = [
        {"role": "user", "content": "go"},
        *({"role": "assistant", "content": "a", "reasoning_content": "deep " * 50} for _ in range(6)),
        {"role": "user", "content": "x"},
    ]
    done = run({"messages": messages}, counter, 20, protect_last_turns=0)
    assert done.kind is InputKind.ASIDE
    assert json.loads(done.line)["messages"] == messages


def test_openai_messages_are_folded_and_counted_natively(tmp_path: Path) -> None:
    counter = Counter(find_tokenizer(str(made.write_tokenizer(tmp_path, made.NATIVE)), tmp_path))
    rows = [made.openai_message(message) for message in made.session(exchanges=8)]
    for row in rows:
        row.pop("reasoning_content", None)
    tools = [{"type": "function", "function": dict(records.TOOLS[0])}]
    done = run({"messages": rows, "tools": tools, "source": "me"}, counter, 2500)
    result = json.loads(done.line)
    assert done.metrics["was_compressed"] and result["tools"] == tools and result["source"] == "me"
    plain = [{**row, "content": row["content"] or ""} for row in result["messages"]]
    assert counter.conversation(plain, tools) == done.metrics["compressed_tokens"] <= 2500
    for before, after in zip(rows, result["messages"], strict=True):
        if before != after:
            assert before["role"] == "tool" and is_state(after["content"])
            assert {**before, "content": ""} == {**after, "content": ""}


def test_a_lower_target_folds_a_compressed_row_further(counter: Counter) -> None:
    row = made.session_row(exchanges=12)
    first = run(row, counter, 4000)
    second = run(json.loads(first.line), counter, 3000)
    result = json.loads(second.line)
    assert second.metrics["compressed_tokens"] <= 3000
    assert result["parent_id"] == json.loads(first.line)["id"]
    assert '"lines": 40' in result["conversations"][3]["value"], "still says how long the output was"


def test_a_row_that_fits_stays_as_it_is_under_its_own_id(counter: Counter) -> None:
    row = made.session_row(exchanges=2, reward=0.5)
    result = json.loads(run(row, counter, 10**6).line)
    assert result.pop("compression_metrics")["skipped_under_target"]
    assert result == row


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"conversations": [{"from": "robot", "value": "x"}]}, "turn 0: unknown role 'robot'"),
        ({"conversations": [{"from": "human", "value": 3}]}, "turn 0: its value is not text"),
        ({"conversations": []}, "'conversations' is not a list of turns"),
        ({"text": "x"}, "it has neither 'conversations' nor 'messages', and is neither a record nor ATIF"),
        ({"messages": [{"role": "user", "content": 3}]}, "message 0: its content is not text"),
        (
            {"conversations": [{"from": "human", "value": "x"}, {"from": "tool", "value": "y"}]},
            "message 1: a tool result that answers no call",
        ),
        (
            {"messages": [{"role": "assistant"}, {"role": "tool", "tool_call_id": "9", "content": "y"}]},
            "message 1: a tool result that answers no call",
        ),
    ],
)
def test_a_row_that_cannot_be_read_says_where_and_why(counter: Counter, row: JSONObject, reason: str) -> None:
    done = run(row, counter, 100)
    assert (done.kind, done.reason) == (InputKind.BAD, f"rows.jsonl:1: {reason}")


def test_a_target_under_the_system_prompt_is_said_to_be_that(counter: Counter) -> None:
    done = run(made.session_row(), counter, 10)
    assert done.kind is InputKind.ASIDE
    assert "the system prompt alone has" in done.reason


def test_sharegpt_results_are_read_whatever_they_quote() -> None:
    tricky = 'a </tool_response> "b" <tool_response> {'
    call = ToolCall("1", "x", "{}")
    turn = read_record(
        [Message.user("u"), Message.assistant("", tool_calls=(call,)), Message.tool(call, tricky)], ()
    )
    turns = turn.form.turns(turn.messages)
    again = read_sharegpt(turns)
    assert again.messages[2].content == tricky
    assert again.form.turns(again.messages) == turns


@pytest.mark.parametrize("said", ["<think>", "so <think> it is", "<think>\nplan</think>\nthe tag is <think>"])
def test_a_think_mark_that_nothing_closes_hides_no_call_that_was_answered(said: str) -> None:
    call = '<tool_call>\n{"name": "_", "arguments": {}}\n</tool_call>'
    turns = [
        {"from": "human", "value": "go"},
        {"from": "gpt", "value": f"{said}\n{call}"},
        {"from": "tool", "value": "<tool_response>\ndone\n</tool_response>"},
    ]
    (exchange,) = read_sharegpt(turns).exchanges
    assert exchange.answered and exchange.results == (2,)


def test_results_without_tags_and_with_bare_text_are_folded_in_their_own_form(counter: Counter) -> None:
    call = '<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>'
    for wrap in ("{}", "<tool_response>\n{}\n</tool_response>"):
        turns = [{"from": "human", "value": "u"}]
        for _ in range(4):
            turns += [
                {"from": "gpt", "value": call},
                {"from": "tool", "value": wrap.format("some words " * 200)},
            ]
        row = {"conversations": [*turns, {"from": "gpt", "value": "end"}]}
        done = run(row, counter, tokens_of(row, counter) - 100)
        value = json.loads(done.line)["conversations"][2]["value"]
        kept = value.removeprefix(wrap.partition("{}")[0]).removesuffix(wrap.partition("{}")[2])
        assert json.loads(kept)["folded"]["lines"] == 1


def test_more_results_than_calls_are_refused() -> None:
    call = '<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>'
    results = "<tool_response>\n{}\n</tool_response>".format('{"content": "x"}')
    with pytest.raises(RowError, match="answers no call"):
        read_sharegpt(
            [
                {"from": "human", "value": "u"},
                {"from": "gpt", "value": call},
                {"from": "tool", "value": f"{results}\n{results}"},
            ]
        )
    with pytest.raises(RowError, match="a tool call without a function"):
        read_messages({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]})


def test_states_shrink_from_level_to_level_and_say_what_they_were() -> None:
    output = json.dumps(
        {"exit_code": 2, "output": "\n".join(f"row {n} of /data/file_{n}.csv" for n in range(300))}
    )
    facts = ["data/file_7.csv", "data/file_200.csv"]
    texts = [fold_output(output, facts, level, 600) for level in FoldLevel]
    assert [len(text) for text in texts] == sorted((len(text) for text in texts), reverse=True)
    state, bare = json.loads(texts[0]), json.loads(texts[2])
    assert state["values"] == {"exit_code": 2}
    assert state["lines"] == ["row 7 of /data/file_7.csv", "row 200 of /data/file_200.csv"]
    assert json.loads(texts[1])["facts"] == ["/data/file_7.csv", "/data/file_200.csv"]
    assert bare == {"folded": {"chars": len(output), "lines": 1}}
    assert all(is_state(text) for text in texts)
    assert fold_output(texts[0], facts, FoldLevel.STATE, 600) == texts[0]


def test_merging_merged_exchanges_counts_all_of_them() -> None:
    calls = [ToolCall("1", "ls", '{"path": "a"}')]
    once = fold_exchanges(["x" * 100, "y" * 50], calls, ["f_1"], 2, 900)
    twice = json.loads(fold_exchanges([once, "z" * 10], calls, [], 2, 900))
    assert twice["folded"] == {"chars": 160, "exchanges": 3}
    assert twice["calls"] == ['ls {"path": "a"}'] * 2
