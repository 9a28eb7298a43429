"""A malformed call is data, and never hides its neighbours."""

from __future__ import annotations

import json
import random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.config.settings import ParserName
from hermes.core import JSONObject, ToolCall
from hermes.models.parsers import ParsedText, get_parser, parser_names
from tests.models.parsers.hostile import MARKS, ODDITIES, hostile_answers, unwritable

FIRST: JSONObject = {"a": "one"}
VICTIM: JSONObject = {
    "path": "a b",
    "text": 'line } " ] end',
    "more": [1, {"name": "inner", "arguments": {}}],
}
LAST: JSONObject = {"y": "two; three"}


def _json(arguments: JSONObject) -> str:
    return json.dumps(arguments)


def _tag(tag: str):
    return lambda name, arguments: f'<{tag}>\n{{"name": "{name}", "arguments": {_json(arguments)}}}\n</{tag}>'


def _llama(name: str, arguments: JSONObject) -> str:
    return f'{{"name": "{name}", "parameters": {_json(arguments)}}}'


def _mistral(name: str, arguments: JSONObject) -> str:
    return f'{{"name": "{name}", "arguments": {_json(arguments)}}}'


def _mistral_v11(name: str, arguments: JSONObject) -> str:
    return f"[TOOL_CALLS]{name}{_json(arguments)}"


def _deepseek_v3(name: str, arguments: JSONObject) -> str:
    head = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}"
    return f"{head}\n```json\n{_json(arguments)}\n```<｜tool▁call▁end｜>"


def _deepseek_v3_1(name: str, arguments: JSONObject) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_json(arguments)}<｜tool▁call▁end｜>"


def _kimi(name: str, arguments: JSONObject) -> str:
    head = f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
    return f"{head}{_json(arguments)}<|tool_call_end|>"


def _bare(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _qwen3_coder(name: str, arguments: JSONObject) -> str:
    inside = "".join(f"<parameter={k}>\n{_bare(v)}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def _glm(line_break: str):
    def write(name: str, arguments: JSONObject) -> str:
        inside = "".join(
            f"<arg_key>{k}</arg_key>{line_break}<arg_value>{_bare(v)}</arg_value>{line_break}"
            for k, v in arguments.items()
        )
        return f"<tool_call>{name}{line_break}{inside}</tool_call>"

    return write


# parser: how it writes a call, then before the first, between two, after the last
FORMATS = {
    "hermes": (_tag("tool_call"), "", "\n", ""),
    "qwen": (_tag("tool_call"), "", "", ""),
    "longcat": (_tag("longcat_tool_call"), "", "\n", ""),
    "llama3_json": (_llama, "", "; ", ""),
    "llama4_json": (_llama, "<|python_tag|>", "\n", ""),
    "mistral": (_mistral, "[TOOL_CALLS] [", ", ", "]"),
    "mistral_v11": (_mistral_v11, "", "", ""),
    "deepseek_v3": (_deepseek_v3, "<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"),
    "deepseek_v3_1": (_deepseek_v3_1, "<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
    "deepseek_v31": (_deepseek_v3_1, "<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
    "kimi_k2": (_kimi, "<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
    "qwen3_coder": (_qwen3_coder, "", "\n", ""),
    "glm45": (_glm("\n"), "", "\n", ""),
    "glm47": (_glm(""), "", "", ""),
}


def _answer(name: str, victim: str) -> str:
    write, before, between, after = FORMATS[name]
    return before + between.join((write("first", FIRST), victim, write("last", LAST))) + after


BARE_ROWS = ("llama3_json", "llama4_json", "mistral")


def _reads_on(text: str, start: int) -> bool:
    """True if the object at `start` is good JSON to the answer's end, the next call being a value in it."""
    try:
        json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError as error:
        return error.pos >= len(text)
    return False


def _runnable(parsed: ParsedText) -> dict[str, JSONObject]:
    return {call.name: call.parsed() for call in parsed.tool_calls if call.error is None}


def test_every_parser_is_covered() -> None:
    assert set(FORMATS) == set(parser_names())


def test_the_settings_accept_exactly_the_parsers() -> None:
    assert set(get_args(ParserName)) == set(parser_names())


@pytest.mark.parametrize("name", FORMATS)
def test_the_formats_are_read_as_the_models_write_them(name: str) -> None:
    parsed = get_parser(name).parse(_answer(name, FORMATS[name][0]("victim", VICTIM)))
    assert _runnable(parsed) == {"first": FIRST, "victim": VICTIM, "last": LAST}
    assert len(parsed.tool_calls) == 3
    assert parsed.content == ""


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_cut_off_anywhere_leaves_its_neighbours_and_never_runs_with_half_its_arguments(
    name: str,
) -> None:
    parser = get_parser(name)
    victim = FORMATS[name][0]("victim", VICTIM)
    for cut in range(len(victim)):
        text = _answer(name, victim[:cut])
        runnable = _runnable(parser.parse(text))
        assert runnable.pop("victim", VICTIM) == VICTIM, victim[:cut]
        if name in BARE_ROWS and _reads_on(
            text, len(_answer(name, "").split(FORMATS[name][0]("last", LAST))[0]) - len(FORMATS[name][2])
        ):
            assert runnable == {"first": FIRST}
            continue
        assert runnable == {"first": FIRST, "last": LAST}, victim[:cut]


@pytest.mark.parametrize("name", FORMATS)
def test_a_missing_character_anywhere_leaves_the_neighbours_runnable(name: str) -> None:
    parser = get_parser(name)
    victim = FORMATS[name][0]("victim", VICTIM)
    for gap in range(1 if "llama" in name else 0, len(victim)):  # without its brace it is prose
        damaged = victim[:gap] + victim[gap + 1 :]
        runnable = _runnable(parser.parse(_answer(name, damaged)))
        assert runnable.get("first") == FIRST, damaged
        assert runnable.get("last") == LAST, damaged
        assert "inner" not in runnable, damaged


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_that_breaks_off_runs_only_what_is_complete(name: str) -> None:
    parser = get_parser(name)
    text = _answer(name, FORMATS[name][0]("victim", VICTIM))
    complete = {"first": FIRST, "victim": VICTIM, "last": LAST}
    for cut in range(len(text)):
        for tool, arguments in _runnable(parser.parse(text[:cut])).items():
            assert arguments == complete[tool], text[:cut]


@pytest.mark.parametrize(
    "name", ["hermes", "longcat", "deepseek_v3", "deepseek_v3_1", "kimi_k2", "mistral_v11"]
)
def test_a_malformed_call_keeps_its_name_its_reason_and_its_whole_text(name: str) -> None:
    write = FORMATS[name][0]
    damaged = write("victim", {"x": 1}).replace('{"x": 1}', '{"x": oops}')
    text = _answer(name, damaged)
    bad = next(call for call in get_parser(name).parse(text).tool_calls if call.error)
    assert bad.name == "victim"
    assert "invalid JSON" in (bad.error or "")
    assert bad.arguments.strip() == damaged
    with pytest.raises(ValueError, match="invalid JSON"):
        bad.parsed()


@pytest.mark.parametrize("name", FORMATS)
def test_a_malformed_call_is_written_back_as_it_was(name: str) -> None:
    write, before, _, after = FORMATS[name]
    parser = get_parser(name)
    call = write("victim", {"x": 1})
    damaged = call.replace('"x": 1', '"x": oops').replace("</parameter>", "").replace("</arg_key>", "")
    assert damaged != call
    parsed = parser.parse(before + damaged + after)
    assert [call.error is None for call in parsed.tool_calls] == [False]
    assert damaged.strip() in parser.render(parsed.tool_calls)
    assert [c.error for c in parser.parse(parser.render(parsed.tool_calls)).tool_calls] == [
        c.error for c in parsed.tool_calls
    ]


def test_a_call_quoted_in_an_argument_that_breaks_off_is_not_run() -> None:
    quoted = _qwen3_coder("rm", {"path": "/"})
    text = f"<tool_call>\n<function=write>\n<parameter=text>\nAn example:\n{quoted}\nAnd then"
    assert _runnable(get_parser("qwen3_coder").parse(text)) == {}
    text = f"<tool_call>write\n<arg_key>text</arg_key>\n<arg_value>Like {_glm('')('rm', {'p': '/'})} but"
    assert _runnable(get_parser("glm45").parse(text)) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<tool_call>{"arguments": {}}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>', 'no "arguments"'),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "must be a JSON object, not list"),
        ('<tool_call>{"name": "f", "arguments": "x"}</tool_call>', "must be a JSON object, not str"),
        ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', "NaN is not a JSON value"),
        ('<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>', "out of range"),
        ('<tool_call>{"name": "f", "arguments": {}} and more</tool_call>', "text after the call's JSON"),
        ("<tool_call>f(x=1)</tool_call>", "expected an object"),
        ("<tool_call>" + '{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_said(text: str, reason: str) -> None:
    (call,) = get_parser("hermes").parse(text).tool_calls
    assert reason in (call.error or "")


@pytest.mark.parametrize("name", parser_names())
def test_parsing_damaged_and_shuffled_answers_never_raises(name: str) -> None:
    parser = get_parser(name)
    rng = random.Random(7)
    for calls in hostile_answers(1_500):
        writable = [call for call in calls if not unwritable(parser.name, call)]
        text = parser.render(writable) + rng.choice(MARKS)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(text) + 1)
            end = place + rng.choice((0, 0, 1, 10))
            text = text[:place] + rng.choice(("", rng.choice(MARKS), rng.choice(ODDITIES))) + text[end:]
        _check(parser.parse(text), text)


@pytest.mark.parametrize("name", parser_names())
@settings(deadline=None)
@given(text=st.lists(st.one_of(st.sampled_from(MARKS + ODDITIES), st.text(max_size=5))).map("".join))
def test_parsing_any_text_never_raises(name: str, text: str) -> None:
    _check(get_parser(name).parse(text), text)


def _check(parsed: ParsedText, text: str) -> None:
    for call in parsed.tool_calls:
        if call.error is None:
            assert isinstance(call.parsed(), dict)
            assert call.name
        else:
            assert call.arguments in text
    assert parsed.reasoning is None or parsed.reasoning.strip() == parsed.reasoning != ""


def test_a_foreign_malformed_call_is_written_without_raising() -> None:
    call = ToolCall("call_1", "f", '{"half', error="cut off")
    for name in parser_names():
        text = get_parser(name).render([call])
        assert _runnable(get_parser(name).parse(text)) == {}
