"""What is recognised without parsing is exactly what parsing would have given."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hermes.rollouts.compression import BadGzip, Deflater, TooLarge, inflate
from hermes.rollouts.parsing.fast_path import match_group, match_list
from hermes.rollouts.parsing.parse import BodyError, parse
from hermes.rollouts.parsing.worker import INLINE_BYTES, Parser, WorkerLost
from hermes.rollouts.schema import MAX_LIST
from tests.rollouts.bodies import check
from tests.rollouts.conftest import group

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTS = st.integers(-(2**70), 2**70)
WHOLE = st.lists(st.lists(INTS, max_size=4), max_size=4)
REAL = st.lists(st.lists(FLOATS | INTS, max_size=4), max_size=4)
PLAIN = {
    "tokens": WHOLE,
    "masks": WHOLE,
    "scores": st.lists(FLOATS, max_size=4),
    "advantages": st.none() | REAL,
    "ref_logprobs": st.none() | REAL,
    "messages": st.none() | st.just([]) | st.just([[{"role": "user", "content": "[1, 2]"}]]),
    "generation_params": st.none() | st.just({}) | st.just({"tokens": 1}),
    "inference_logprobs": REAL,
    "overrides": st.none() | st.just([{}, {}]),
    "group_overrides": st.none() | st.just({}),
    "images": st.none() | st.just([]) | st.just('"tokens"'),
    "env_id": st.none() | INTS,
    "distill_token_ids": st.none() | st.lists(WHOLE, max_size=2),
    "distill_logprobs": st.none() | st.lists(REAL, max_size=2),
    "unknown": st.none() | INTS,
}
BODIES = st.fixed_dictionaries(
    {key: PLAIN[key] for key in ("tokens", "masks", "scores")},
    optional={key: value for key, value in PLAIN.items() if key not in ("tokens", "masks", "scores")},
)


SHORT = st.lists(st.lists(st.floats(-1e6, 1e6, width=32), max_size=4), max_size=4)
IDS = st.lists(st.lists(st.integers(-100, 200_000), max_size=4), max_size=4)
WORDS = st.text(st.characters(max_codepoint=0xD7FF), max_size=8) | st.sampled_from(
    ['"tokens": [', "}]{", "\\"]
)
SCALARS = WORDS | st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.floats(-10, 10, width=32)
FACTS = st.dictionaries(WORDS, SCALARS | st.lists(SCALARS, max_size=3), max_size=4)
USUAL = st.fixed_dictionaries(
    {"tokens": IDS, "masks": IDS, "scores": st.lists(st.floats(-10, 10, width=32), max_size=4)},
    optional={
        "inference_logprobs": st.none() | SHORT,
        "advantages": st.none() | SHORT,
        "distill_token_ids": st.none() | st.lists(IDS, max_size=2),
        "distill_logprobs": st.none() | st.lists(SHORT, max_size=2),
        "env_id": st.none() | st.integers(-5, 10**6),
        "messages": st.none() | st.just([]),
        "overrides": st.none() | st.lists(FACTS, max_size=3),
        "generation_params": st.none() | FACTS,
        "group_overrides": st.none() | FACTS,
    },
)


@given(USUAL, st.sampled_from([None, 2]), st.randoms())
def test_what_environments_usually_send_is_recognised(body: Any, indent: int | None, order: Any) -> None:
    items = list(body.items())
    order.shuffle(items)
    assert check(json.dumps(dict(items), indent=indent).encode())


@given(BODIES, st.sampled_from([None, 2]), st.sampled_from([(",", ":"), (", ", ": ")]), st.randoms())
def test_a_recognised_group_is_what_parsing_it_gives(
    body: Any, indent: int | None, marks: Any, order: Any
) -> None:
    items = list(body.items())
    order.shuffle(items)
    check(json.dumps(dict(items), indent=indent, separators=marks).encode())


@given(
    BODIES | USUAL,
    st.integers(0, 10**6),
    st.sampled_from(list(b'0123456789-+.eE,[]{}":ntu \n\\')),
    st.booleans(),
)
@example(group(), 11, ord("-"), False)
def test_a_damaged_body_is_never_recognised_as_something_else(
    body: Any, where: int, byte: int, insert: bool
) -> None:
    raw = bytearray(json.dumps(body).encode())
    place = where % len(raw)
    raw[place : place + (0 if insert else 1)] = bytes([byte])
    check(bytes(raw))


@pytest.mark.parametrize(
    "raw",
    [
        b'{"tokens":[[1]],"masks":[[1]],"scores":[1]}',
        b'{"tokens":[[1]],"masks":[[1]]}',
        b'{"tokens":[[1]],"tokens":[[2]],"masks":[[1]],"scores":[0.5]}',
        b'{"tokens":[[01]],"masks":[[1]],"scores":[0.5]}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":[0.5]},',
        b'{"tokens":[[1]],"masks":[[1]],"scores":[1e400]}',
        b'{"tokens":[[1,]],"masks":[[1]],"scores":[0.5]}',
        b'{"tokens":[[1] [2]],"masks":[[1]],"scores":[0.5]}',
        b'{"tokens":[1,[1]],"masks":[[1]],"scores":[0.5]}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":[.5]}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":[5.]}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":[NaN]}',
        b'{"tokens":[[1e2]],"masks":[[1]],"scores":[0.5]}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":[0.5],"generation_params":{"a":NaN}}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":[0.5],"generation_params":{"a":"\\ud800"}}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":[0.5],"generation_params":{"a":"\xe9"}}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":[0.5],"generation_params":{"a":"\n"}}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":[0.5],"generation_params":{"a":{"b":1}}}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":[0.5],"overrides":[1]}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":[0.5],"group_overrides":{"a":1,}}',
    ],
)
def test_what_needs_judgement_is_left_to_the_parser(raw: bytes) -> None:
    assert match_group(raw) is None


@given(st.lists(USUAL | BODIES, max_size=4))
def test_a_recognised_list_is_its_groups_recognised_one_by_one(bodies: list[Any]) -> None:
    found = match_list(json.dumps(bodies).encode())
    alone = [match_group(json.dumps(body).encode()) for body in bodies]
    assert found == alone or (found is None and None in alone)


def test_a_list_of_plain_groups_is_recognised() -> None:
    bodies = [group(mark=mark, env_id=mark) for mark in range(3)]
    found = match_list(json.dumps(bodies, indent=1).encode())
    assert found is not None
    assert [(new.env_id, new.size) for new in found] == [(0, 2), (1, 2), (2, 2)]
    assert match_list(b"[]") == []
    assert match_list(json.dumps([group()] * (MAX_LIST + 1)).encode()) is None
    with pytest.raises(BodyError):
        parse(json.dumps([group()] * (MAX_LIST + 1)).encode(), many=True)


async def test_large_bodies_are_parsed_elsewhere_with_the_same_result() -> None:
    parser = Parser()
    numbers = group(4, 7, inference_logprobs=[[-0.123456] * 40_000] * 4, env_id=2)
    talk = {**numbers, "messages": [[{"role": "user", "content": "h\u00e9"}]] * 4}
    try:
        for body in (numbers, talk, talk):
            raw = json.dumps(body).encode()
            assert len(raw) > INLINE_BYTES
            (found,) = await parser.parse(raw, many=False)
            assert found == parse(raw, many=False)[0]
        many = await parser.parse(json.dumps([talk, numbers]).encode(), many=True)
        assert [(new.env_id, new.size) for new in many] == [(2, 4), (2, 4)]
        with pytest.raises(BodyError) as wrong:
            await parser.parse(json.dumps({**talk, "scores": ["nan"]}).encode(), many=False)
        assert wrong.value.details[0]["loc"] == ["body", "scores", 0]
        assert parser.child_pid is not None
    finally:
        await parser.close()


async def test_many_small_groups_hold_up_nobody_while_they_are_parsed() -> None:
    parser = Parser()
    talk = {"messages": [[{"role": "user", "content": "hi"}]] * 2}
    try:
        assert len(await parser.parse(json.dumps([group()] * MAX_LIST).encode(), many=True)) == MAX_LIST
        assert parser.child_pid is None, "plain numbers are recognised"
        raw = json.dumps([group(**talk)] * MAX_LIST).encode()
        assert len(raw) < INLINE_BYTES
        assert await parser.parse(raw, many=True) == parse(raw, many=True)
        assert parser.child_pid is not None
    finally:
        await parser.close()


async def test_a_child_that_dies_fails_one_body_and_the_next_gets_a_fresh_one() -> None:
    import os
    import signal

    parser = Parser()
    raw = json.dumps(group(images="x" * INLINE_BYTES)).encode()
    try:
        await parser.parse(raw, many=False)
        assert parser.child_pid is not None
        os.kill(parser.child_pid, signal.SIGKILL)
        with pytest.raises(WorkerLost):
            await parser.parse(raw, many=False)
        assert len(await parser.parse(raw, many=False)) == 1
    finally:
        await parser.close()


@given(st.binary(max_size=300), st.integers(0, 200))
def test_gzip_is_read_whole_within_its_limit_or_refused(data: bytes, limit: int) -> None:
    deflater = Deflater()
    packed = deflater.compress(data) + deflater.flush()
    if len(data) > limit:
        with pytest.raises(TooLarge):
            inflate(packed, limit)
    else:
        assert inflate(packed, limit) == data
        assert inflate(packed + packed, 2 * limit) == data + data
        short, long = gzip.compress(b"x"), gzip.compress(data * 50 + b"long" * 9)
        assert inflate(long + short + b"\0" * 512, 10**6) == data * 50 + b"long" * 9 + b"x"
        assert inflate(short + long, 10**6) == b"x" + data * 50 + b"long" * 9
    for cut in range(1, len(packed)):
        with pytest.raises(BadGzip):
            inflate(packed[:cut], 10**6)
