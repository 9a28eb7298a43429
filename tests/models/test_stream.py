from __future__ import annotations

import random

import pytest

from hermes.core import JSON, JSONObject
from hermes.models.base import StreamDelta
from hermes.models.remote.openai_chat import StreamMerger
from hermes.models.remote.wire import message_from_wire
from hermes.models.tokens.traces import read_trace
from tests.fakes.rendering import chunks, whole
from tests.fakes.replies import Reply, text, tokens, tool_calls

REQUEST = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


def merged(pieces: list[JSONObject]) -> JSONObject | None:
    merger = StreamMerger()
    for piece in pieces:
        merger.feed(piece)
    return merger.result()


def delta(**fields: JSON) -> JSONObject:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def call_piece(index: int | None, call_id: str | None, name: str | None, arguments: str) -> JSONObject:
    piece: JSONObject = {"function": {"name": name, "arguments": arguments}}
    if index is not None:
        piece["index"] = index
    if call_id is not None:
        piece["id"] = call_id
    return delta(tool_calls=[piece])


END: JSONObject = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}


def calls_of(*pieces: JSONObject) -> list[tuple[str, str]]:
    result = merged([*pieces, END])
    assert result is not None
    message = message_from_wire(result["choices"][0]["message"]).message
    return [(call.name, call.arguments) for call in message.tool_calls]


@pytest.mark.parametrize(
    "reply",
    [
        text("A longer answer in several pieces.", reasoning="thinking about it for a while"),
        tool_calls(
            [("one", {"a": "x" * 40}), ("two", {"b": [1, 2, 3]}), ("three", "{broken")], content="well"
        ),
        tokens([5, 6, 7], [-0.1, -0.2, -0.3], text="abc"),
    ],
)
def test_a_stream_comes_to_the_same_message_as_an_unstreamed_answer(reply: Reply) -> None:
    result, full = merged(list(chunks(REQUEST, reply))), whole(REQUEST, reply, chat=True)
    assert result is not None
    streamed, plain = result["choices"][0], full["choices"][0]
    assert message_from_wire(streamed["message"]) == message_from_wire(plain["message"])
    assert streamed["finish_reason"] == plain["finish_reason"]
    assert result["usage"] == full["usage"]
    assert read_trace(result, streamed) == read_trace(full, plain)


def test_the_pieces_of_parallel_calls_are_told_apart_by_index() -> None:
    assert calls_of(
        call_piece(0, "a", "one", ""),
        call_piece(1, "b", "two", ""),
        call_piece(1, None, None, '{"y":'),
        call_piece(0, None, None, '{"x":'),
        call_piece(1, None, None, "2}"),
        call_piece(0, None, None, "1}"),
    ) == [("one", '{"x":1}'), ("two", '{"y":2}')]


def test_whole_calls_without_an_index_stay_apart() -> None:
    pieces = call_piece(None, "a", "one", '{"x":1}'), call_piece(None, "b", "two", '{"y":2}')
    assert calls_of(*pieces) == [("one", '{"x":1}'), ("two", '{"y":2}')]


def test_whole_calls_that_all_claim_index_zero_stay_apart() -> None:
    pieces = call_piece(0, "a", "one", '{"x":1}'), call_piece(0, "b", "one", '{"x":2}')
    assert calls_of(*pieces) == [("one", '{"x":1}'), ("one", '{"x":2}')]


def test_a_piece_may_repeat_its_call_id() -> None:
    pieces = call_piece(0, "a", "one", '{"x"'), call_piece(0, "a", None, ":1}")
    assert calls_of(*pieces) == [("one", '{"x":1}')]


def test_a_repeated_whole_call_counts_once() -> None:
    piece = call_piece(0, "a", "one", '{"x":1}')
    assert calls_of(piece, piece) == [("one", '{"x":1}')]


def test_repeated_headers_finish_marks_and_usage_change_nothing() -> None:
    reply = tool_calls([("one", {"a": 1}), ("two", {})])
    once = list(chunks(REQUEST, reply))
    header, finish, usage = once[1], once[-2], once[-1]
    twice = [once[0], header, header, *once[2:-2], finish, finish, usage, usage]
    assert merged(twice) == merged(once)


def test_equal_neighbouring_pieces_of_text_are_both_kept() -> None:
    result = merged([delta(content="ha"), delta(content="ha"), END])
    assert result is not None
    assert result["choices"][0]["message"]["content"] == "haha"


def test_content_that_comes_as_typed_parts_is_put_together() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    merger = StreamMerger()
    assert merger.feed(delta(content="")) is None
    assert merger.feed(delta(content=[thinking])) == StreamDelta("", "hm")
    assert merger.feed(delta(content=[{"type": "text", "text": "So"}])) == StreamDelta("So")
    assert merger.feed(delta(content=" it is")) == StreamDelta(" it is")
    merger.feed(END)
    result = merger.result()
    assert result is not None
    message = message_from_wire(result["choices"][0]["message"]).message
    assert (message.content, message.reasoning) == ("So it is", "hm")


def test_details_of_the_thinking_are_collected() -> None:
    pieces = [delta(reasoning_details=[{"type": "reasoning.text", "text": part}]) for part in ("h", "m")]
    result = merged([*pieces, END])
    assert result is not None
    assert message_from_wire(result["choices"][0]["message"]).message.reasoning == "hm"


def test_empty_and_odd_chunks_are_tolerated() -> None:
    odd: list[JSONObject] = [
        {},
        {"choices": []},
        {"choices": None, "usage": None},
        {"choices": [{"index": 0, "delta": None}]},
        {"choices": [{"index": 1, "delta": {"content": "another choice"}}]},
        {"choices": [{"delta": {"content": None, "tool_calls": None}, "logprobs": None}]},
        {"choices": [{"delta": {"tool_calls": [None]}, "logprobs": [], "token_ids": None}]},
    ]
    result = merged([*odd, delta(content="hi"), *odd, END, *odd])
    assert result is not None
    assert result["choices"][0]["message"] == {"role": "assistant", "content": "hi"}


def test_a_stream_without_a_finish_reason_was_cut_at_whatever_chunk() -> None:
    full = list(chunks(REQUEST, text("some words to cut", reasoning="thoughts")))
    finish_at = next(n for n, chunk in enumerate(full) if chunk["choices"][0]["finish_reason"])
    assert all(merged(full[:end]) is None for end in range(finish_at + 1))
    assert merged(full[: finish_at + 1]) is not None


def test_deltas_report_text_and_thinking_as_they_arrive() -> None:
    merger = StreamMerger()
    seen = [merger.feed(chunk) for chunk in chunks(REQUEST, text("Paris is it", reasoning="France"))]
    assert seen == [None, StreamDelta("", "France"), StreamDelta("Paris i"), StreamDelta("s it"), None, None]


def test_a_random_interleaving_of_parallel_arguments_gives_each_call_its_own() -> None:
    rng = random.Random(7)
    for _ in range(200):
        arguments = {
            index: "".join(rng.choice('ab{}"') for _ in range(rng.randrange(12))) for index in range(3)
        }
        left = {index: list(value) for index, value in arguments.items()}
        pieces = [call_piece(index, f"id{index}", f"tool{index}", "") for index in range(3)]
        while any(left.values()):
            index = rng.choice([index for index in left if left[index]])
            pieces.append(call_piece(index, None, None, left[index].pop(0)))
        assert calls_of(*pieces) == [(f"tool{index}", arguments[index]) for index in range(3)]
