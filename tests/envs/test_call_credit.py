"""Credit for each call by itself: where an answer is cut, what a segment is worth, its advantages."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hermes.core import JSONObject, ToolCall
from hermes.core.sequence import MASKED
from hermes.envs.builtin.tool_calling import ToolCallingConfig, ToolCallingEnv
from hermes.envs.servers.config import APIServerConfig
from hermes.envs.tasks.functions.grading import (
    CallMarks,
    CreditSegment,
    credit_segments,
    grade_calls,
    mistakes,
    token_advantages,
)
from hermes.envs.tasks.functions.requests import CATEGORIES, ExpectedCall, FunctionRequest, make_request
from hermes.envs.tasks.split import Split
from hermes.models.parsers import get_parser
from tests.envs.token_source import Answer, TokenServer, said

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HERMES = get_parser("hermes")
CLOSER = "</tool_call>"
MARKS = CallMarks("<tool_call>", CLOSER)
CANCEL: JSONObject = {
    "name": "cancel",
    "parameters": {
        "properties": {"id": {"type": "string"}, "refund": {"type": "boolean", "default": False}},
        "required": ["id"],
    },
}
WANTED = [ExpectedCall("cancel", {"id": "a"}), ExpectedCall("cancel", {"id": "b", "refund": True})]


def written(*calls: tuple[str, object]) -> str:
    return HERMES.render(
        [
            ToolCall(f"c{number}", name, json.dumps(arguments))
            for number, (name, arguments) in enumerate(calls)
        ]
    )


def cancel(**arguments: object) -> tuple[str, object]:
    return "cancel", arguments


def judged(
    text: str,
    wanted: Sequence[ExpectedCall] = WANTED,
    schemas: Sequence[JSONObject] = (CANCEL,),
    width: int = 1,
) -> list[CreditSegment]:
    pieces = [text[at : at + width] for at in range(0, len(text), width)]
    return credit_segments([*pieces, ""], MARKS, lambda said: HERMES.parse(said).tool_calls, wanted, schemas)


def rights(text: str, wanted: Sequence[ExpectedCall] = WANTED) -> str:
    """For each call its opening and itself, then the end: 1 if right, else 0."""
    return "".join(str(int(one.right)) for one in judged(text, wanted))


FIRST, SECOND = cancel(id="a"), cancel(id="b", refund=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (written(FIRST, SECOND), "11 11 1"),
        (written(SECOND, FIRST), "11 11 1"),
        (written(cancel(id="a", refund=True), SECOND), "10 11 1"),
        (written(FIRST, cancel(id="b")), "11 10 1"),
        (written(FIRST, FIRST), "11 10 1"),
        (written(FIRST), "11 0"),
        (written(FIRST, SECOND, SECOND), "11 11 00 0"),
        (written(FIRST, ("other", {}), SECOND), "11 10 00 0"),
        (written(cancel(id="x"), FIRST, SECOND), "10 11 00 0"),
        (f"{CLOSER}\n{CLOSER}", "00 00 0"),
        ("", "0"),
        ("I cannot do that.", "0"),
        (f"<tool_call>\nnonsense\n{CLOSER}\n{written(SECOND)}", "10 11 1"),
        (written(FIRST) + '\n<tool_call>\n{"name": "cancel", "argu', "11 10"),
        (written(FIRST, SECOND).removesuffix(CLOSER), "11 11"),
        (written(FIRST, cancel(id="x")).removesuffix(CLOSER), "11 10"),
    ],
)
def test_a_call_is_judged_by_itself_and_going_on_by_the_number_of_calls(text: str, expected: str) -> None:
    assert rights(text) == expected.replace(" ", "")


def test_where_nothing_fits_any_call_is_wrong() -> None:
    assert rights("None of these can do that.", []) == "1"
    assert rights(written(FIRST), []) == "000"


def test_to_go_on_where_more_is_wanted_beats_stopping_however_wrong_the_next_call_is() -> None:
    stops, goes_on = judged(written(FIRST)), judged(written(FIRST, cancel(id="x")))
    stopping, going = token_advantages([stops, goes_on])
    same = len(written(FIRST))
    assert stopping == [0] * same + [-1]
    assert going[:same] == [0] * same
    opening = len("\n<tool_call>")
    assert going[same : same + opening] == [1] * opening
    assert not any(going[same + opening :])


@given(st.integers(0, 10_000), st.sampled_from(CATEGORIES), st.integers(1, 9), st.data())
def test_a_finished_answer_is_right_exactly_if_all_its_segments_are(
    seed: int, category: str, width: int, data: Any
) -> None:
    request = make_request(random.Random(seed), Split.TRAIN, [category])
    schemas = [function.schema for function in request.offered]
    calls = [(call.name, dict(call.arguments)) for call in request.expected_calls]
    calls = data.draw(st.permutations(calls))
    if data.draw(st.booleans()) and calls:
        name, arguments = calls[0]
        match data.draw(st.sampled_from(["drop", "double", "value", "optional"])):
            case "drop":
                calls = calls[1:]
            case "double":
                calls = [calls[0], *calls]
            case "value":
                calls = [(name, {**arguments, next(iter(arguments)): "?"}), *calls[1:]]
            case "optional":
                calls = [(name, {**arguments, "notify": True}), *calls[1:]]
    made = [ToolCall("c", name, json.dumps(arguments)) for name, arguments in calls]
    found = judged(written(*calls), request.expected_calls, schemas, width)
    success = grade_calls(made, request.expected_calls, schemas).success
    assert all(one.right for one in found) == success
    assert (not mistakes(made, request.expected_calls, schemas)) == success
    assert sum(one.tokens for one in found) == -(-len(written(*calls)) // width) + 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (written(SECOND, FIRST), []),
        (written(cancel(id="a", refund=False), SECOND), []),
        (written(cancel(id="a", refund=True), SECOND), ["optional argument not asked for"]),
        (written(FIRST, cancel(id="b")), ["optional argument left out"]),
        (written(FIRST), ["a call too few"]),
        (written(FIRST, SECOND, SECOND), ["a call too many"]),
        (written(("other", {}), SECOND), ["wrong function"]),
        (f"<tool_call>\nnonsense\n{CLOSER}\n{written(SECOND)}", ["malformed call"]),
        (written(cancel(id="x"), cancel(id="b", refund="true")), ["wrong value", "wrong type"]),
        (
            written(cancel(refund=False), cancel(id="b", refund=True, why="?")),
            ["missing argument", "unknown argument"],
        ),
    ],
)
def test_a_mistake_has_a_name(text: str, expected: list[str]) -> None:
    assert mistakes(HERMES.parse(text).tool_calls, WANTED, [CANCEL]) == expected


def test_a_segment_is_compared_with_those_at_the_same_position() -> None:
    group = [
        [CreditSegment(2, True), CreditSegment(2, True), CreditSegment(1, True)],
        [CreditSegment(2, True), CreditSegment(3, False), CreditSegment(1, True)],
        [CreditSegment(1, False), CreditSegment(1, False)],
    ]
    first, second, third = token_advantages(group)
    assert first == [0.5, 0.5, 2, 2, 0]
    assert second == [0.5, 0.5, -1, -1, -1, 0]
    assert third == [-1, -1]
    for right in (True, False):
        assert token_advantages([[CreditSegment(2, right)], [CreditSegment(1, right)]]) == [[0, 0], [0]]


def test_the_one_right_answer_of_sixteen_counts_as_much_as_all_others_together() -> None:
    group = [[CreditSegment(1, number == 7)] for number in range(16)]
    values = [value for (value,) in token_advantages(group)]
    assert values[7] == 15 and values.count(-1) == 15


def test_it_is_refused_where_calls_cannot_be_told_apart() -> None:
    with pytest.raises(ValidationError, match="set max_agent_turns to 1"):
        ToolCallingConfig(credit="call", max_agent_turns=2)
    with pytest.raises(ValidationError, match="the parser mistral"):
        ToolCallingConfig(credit="call", tool_call_parser="mistral")


async def test_a_group_of_wrong_answers_teaches_each_call_what_was_wrong_with_it(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Two answers, both of them wrong: one in its first call, one in its second."""
    config = ToolCallingConfig(
        categories=["parallel"], credit="call", group_size=2, train_size=8, eval_size=1, use_wandb=False
    )
    spoken: list[str] = []

    def answer(ids: list[int], params: dict[str, Any]) -> Answer:
        text = spoken[len(server.requests) - 1]
        return said([*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id])

    with TokenServer(answer) as server:
        place = APIServerConfig(base_url=server.base_url, model_name="policy", server_type="sglang")
        env = ToolCallingEnv(config, [place])
        env.tokenizer = tokenizer
        await env.setup()
        item: FunctionRequest = next(one for one in env._train if len(one.expected_calls) == 2)
        gold = [(call.name, dict(call.arguments)) for call in item.expected_calls]
        wrong = [(name, {**arguments, "bogus": 1}) for name, arguments in gold]
        spoken += [written(wrong[0], gold[1]), written(gold[0], wrong[1])]
        group, _ = await env.collect_trajectories(item)
        spoken.append(written(wrong[0]))
        judged_alone = await env.run_item(item)
        await env.close()
    assert judged_alone.reward.detail == "unknown argument; a call too few"
    assert group["scores"] == [0.0, 0.0]
    told, given = group["overrides"], group["advantages"]
    assert told is not None and given is not None
    assert [(one["kind"], one["success"]) for one in told] == [("parallel-2", False)] * 2
    for tokens, masks, values in zip(group["tokens"], group["masks"], given, strict=True):
        assert len(values) == len(tokens)
        assert not any(value for value, mask in zip(values, masks, strict=True) if mask == MASKED)
        learned = [value for value, mask in zip(values, masks, strict=True) if mask != MASKED]
        text = str(tokenizer.decode([mask for mask in masks if mask != MASKED]))
        sign = -1 if "bogus" in text.split(CLOSER)[0] else 1
        assert [value for value, _ in groupby(learned)] == [0, sign, 0, -sign, 0]
        first = len(tokenizer(text.split(CLOSER)[0] + CLOSER, add_special_tokens=False)["input_ids"])
        opening = len(tokenizer("<tool_call>", add_special_tokens=False)["input_ids"])
        assert learned[:first] == [0] * opening + [sign] * (first - opening)


async def test_by_default_the_whole_answer_is_judged_and_the_trainer_computes_advantages(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    config = ToolCallingConfig(group_size=2, train_size=2, eval_size=1, use_wandb=False)
    with TokenServer(lambda ids, params: said(tokenizer("No.")["input_ids"])) as server:
        place = APIServerConfig(base_url=server.base_url, model_name="policy", server_type="sglang")
        env = ToolCallingEnv(config, [place])
        env.tokenizer = tokenizer
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert group.get("advantages") is None
