"""What is a call and what is not: thinking, prose, markup in arguments, types, ids."""

from __future__ import annotations

import json
import re

import pytest

from hermes.core import JSON, ToolCall
from hermes.errors import UsageError
from hermes.models.parsers import get_parser, parser_names
from tests.models.parsers.hostile import meaning

CALL = ToolCall("call_00000000", "rm", '{"path": "/"}')
SAFE = ToolCall("call_00000000", "ls", "{}")


def _names(parser: str, text: str) -> list[str]:
    return [call.name for call in get_parser(parser).parse(text).tool_calls if call.error is None]


def test_an_unknown_parser_is_refused_with_the_names_that_come_close() -> None:
    with pytest.raises(UsageError) as caught:
        get_parser("deepseek_v3.1")
    assert "deepseek_v3.1" in caught.value.message
    assert "deepseek_v3_1" in caught.value.hint


def test_the_promised_parsers_exist() -> None:
    promised = "hermes qwen longcat llama3_json llama4_json mistral qwen3_coder glm45 glm47"
    promised += " deepseek_v3 deepseek_v3_1 deepseek_v31 kimi_k2"
    assert set(promised.split()) <= set(parser_names())


@pytest.mark.parametrize("name", parser_names())
def test_text_without_calls_is_left_exactly_as_it_is(name: str) -> None:
    for text in (
        "",
        "  Hello,\n\n world {} [1] <b> ; ",
        '{"name": "Ada", "age": 36}',
        "use `<tool` and </div>",
    ):
        parsed = get_parser(name).parse(text)
        assert (parsed.content, parsed.reasoning, parsed.tool_calls) == (text, None, ())


@pytest.mark.parametrize("name", parser_names())
def test_a_call_quoted_inside_thinking_is_not_run(name: str) -> None:
    parser = get_parser(name)
    parsed = parser.parse(f"<think>\nI could do {parser.render([CALL])} but no\n</think>\nDone.")
    assert parsed.tool_calls == ()
    assert parsed.content == "Done."
    assert parsed.reasoning == f"I could do {parser.render([CALL])} but no"


@pytest.mark.parametrize("name", parser_names())
def test_a_call_after_thinking_is_run(name: str) -> None:
    parser = get_parser(name)
    parsed = parser.parse(f"<think>maybe {parser.render([CALL])}</think>\n\n{parser.render([SAFE])}")
    assert meaning(parsed.tool_calls) == meaning((SAFE,))
    assert parsed.content == ""


@pytest.mark.parametrize("name", parser_names())
def test_thinking_that_never_ends_swallows_the_rest(name: str) -> None:
    parser = get_parser(name)
    parsed = parser.parse(f"<think>then {parser.render([CALL])}\nand")
    assert parsed.tool_calls == ()
    assert parsed.content == ""
    assert parsed.reasoning == f"then {parser.render([CALL])}\nand"


@pytest.mark.parametrize("name", parser_names())
def test_thinking_that_the_prompt_had_opened_is_thinking(name: str) -> None:
    parser = get_parser(name)
    parsed = parser.parse(f"{parser.render([CALL])} would be wrong.\n</think>\n{parser.render([SAFE])}")
    assert meaning(parsed.tool_calls) == meaning((SAFE,))
    assert parsed.reasoning == f"{parser.render([CALL])} would be wrong."


@pytest.mark.parametrize("name", parser_names())
def test_think_tags_inside_an_argument_are_part_of_the_argument(name: str) -> None:
    parser = get_parser(name)
    call = ToolCall("call_00000000", "write", json.dumps({"text": "a </think> b <think> c"}))
    parsed = parser.parse(parser.render([call, SAFE]))
    assert meaning(parsed.tool_calls) == meaning((call, SAFE))
    assert parsed.reasoning is None


def test_several_thoughts_are_joined_and_empty_ones_are_none() -> None:
    hermes = get_parser("hermes")
    assert hermes.parse("<think>a</think> x <think>b</think> y").reasoning == "a\nb"
    assert hermes.parse("<think>a</think> x <think>b</think> y").content == "x\ny"
    assert hermes.parse("<think>\n\n</think>\n\nx").reasoning is None


def test_a_stray_end_of_thinking_after_real_thinking_is_text() -> None:
    text = '<think>a</think><tool_call>{"name": "f", "arguments": {}}</tool_call> and </think> is a tag'
    parsed = get_parser("hermes").parse(text)
    assert [call.name for call in parsed.tool_calls] == ["f"]
    assert parsed.content == "and </think> is a tag"


@pytest.mark.parametrize("name", parser_names())
def test_a_malformed_call_in_thinking_does_not_hide_where_the_thinking_ends(name: str) -> None:
    parser = get_parser(name)
    quoted, real = parser.render([CALL]), parser.render([SAFE])
    for end in range(quoted.index("rm"), quoted.index("/") + 1):
        text = f"{quoted}\n{quoted[:end]} is how it would begin.</think>\n{real}"
        assert meaning(parser.parse(text).tool_calls) == meaning((SAFE,)), text


@pytest.mark.parametrize("name", [name for name in parser_names() if "llama" not in name])
def test_a_malformed_call_does_not_reach_into_the_thinking_behind_it(name: str) -> None:
    parser = get_parser(name)
    quoted, real = parser.render([CALL]), parser.render([SAFE])
    for end in range(quoted.index("rm"), quoted.index("/") + 1):
        text = f"{quoted[:end]} no. <think>Perhaps {quoted}?</think> {real}"
        assert _names(name, text) == ["ls"], text


@pytest.mark.parametrize(
    "name", ["hermes", "deepseek_v3", "deepseek_v3_1", "kimi_k2", "mistral", "mistral_v11"]
)
def test_think_tags_in_the_strings_of_a_malformed_call_are_not_thinking(name: str) -> None:
    parser = get_parser(name)
    call = ToolCall("call_00000000", "write", '{"text": "a <think> b", "more": "</think>", "x": 12321}')
    text = parser.render([SAFE, call, SAFE]).replace("12321", "oops")
    assert _names(name, text) == ["ls", "ls"]
    assert get_parser(name).parse(text).reasoning is None


def test_a_mistral_array_that_breaks_off_does_not_reach_into_the_next() -> None:
    text = '[TOOL_CALLS] [{"name": "a", "arguments": {}}, oops [TOOL_CALLS]b{}[TOOL_CALLS] [{"name": "c"}]'
    assert _names("mistral", text) == ["a", "b", "c"]


def test_mistral_thinking_has_brackets_of_its_own() -> None:
    parsed = get_parser("mistral").parse('[THINK][TOOL_CALLS]rm{"path": "/"}[/THINK][TOOL_CALLS]ls{}')
    assert [call.name for call in parsed.tool_calls] == ["ls"]


@pytest.mark.parametrize("name", ["llama3_json", "llama4_json"])
def test_llama_json_in_prose_is_not_run(name: str) -> None:
    call = '{"name": "rm", "parameters": {"path": "/"}}'
    for text in (
        f"You could send {call}",
        f"Example:\n{call}",
        f"```json\n{call}\n```",
        f"[{call}]",
        f"1. {call}",
    ):
        assert _names(name, text) == []
        assert get_parser(name).parse(text).content == text


@pytest.mark.parametrize("name", ["llama3_json", "llama4_json"])
def test_llama_calls_stand_at_the_beginning_with_or_without_a_tag(name: str) -> None:
    one, two = '{"name": "a", "parameters": {}}', '{"name": "b", "arguments": {"x": 1}}'
    assert _names(name, f" \n{one}") == ["a"]
    assert _names(name, f"<|python_tag|>{one}") == ["a"]
    assert _names(name, f"{one}; {two}") == ["a", "b"]
    assert _names(name, f"{one}\n{two}") == ["a", "b"]
    parsed = get_parser(name).parse(f"{one}\n\nThat lists them; then {two}")
    assert [call.name for call in parsed.tool_calls] == ["a"]
    assert parsed.content == f"That lists them; then {two}"


def test_llama_code_behind_a_tag_is_a_call_that_cannot_be_run() -> None:
    (call,) = get_parser("llama3_json").parse('<|python_tag|>search.call(query="x")').tool_calls
    assert call.error
    assert "search.call" in call.arguments


@pytest.mark.parametrize("name", ["glm45", "glm47"])
def test_glm_calls_without_arguments_are_seen(name: str) -> None:
    for text in (
        "<tool_call>now</tool_call>",
        "<tool_call>now\n</tool_call>",
        "<tool_call>\nnow\n</tool_call>",
    ):
        assert _names(name, text) == ["now"]


def test_arguments_written_as_a_string_are_not_encoded_twice() -> None:
    text = '<tool_call>{"name": "f", "arguments": "{\\"x\\": \\"1\\"}"}</tool_call>'
    (call,) = get_parser("hermes").parse(text).tool_calls
    assert call.arguments == '{"x": "1"}'
    assert call.parsed() == {"x": "1"}


@pytest.mark.parametrize("arguments", ['{ "x" :1.50, "y":"\\u00e9" }', "{}", '{\n  "x": 1\n}'])
def test_the_argument_text_is_kept_character_for_character(arguments: str) -> None:
    for name in (
        "hermes",
        "llama3_json",
        "mistral",
        "mistral_v11",
        "deepseek_v3",
        "deepseek_v3_1",
        "kimi_k2",
    ):
        parser = get_parser(name)
        (call,) = parser.parse(parser.render([ToolCall("a", "f", arguments)])).tool_calls
        assert call.arguments == arguments


def _typed(name: str, text: str, schema: JSON) -> JSON:
    parameter = f"<parameter=x>\n{text}\n</parameter>"
    write = {
        "qwen3_coder": f"<tool_call>\n<function=f>\n{parameter}\n</function>\n</tool_call>",
        "glm45": f"<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>",
    }
    parameters = {"type": "object", "properties": {"x": schema}} if schema is not None else {}
    parameters["$defs"] = {"Word": {"enum": ["1", "2"]}}
    tool = {"name": "f", "parameters": parameters}
    plain, wrapped = (
        get_parser(name).parse(write[name], [form]).tool_calls[0].parsed()["x"]
        for form in (tool, {"type": "function", "function": tool})
    )
    assert plain == wrapped
    return plain


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45"])
@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("123", {"type": "string"}, "123"),
        ("true", {"type": "string"}, "true"),
        ('{"a": 1}', {"type": "string"}, '{"a": 1}'),
        ('"quoted"', {"type": "string"}, '"quoted"'),
        ("123", {"type": "integer"}, 123),
        ("1.5", {"type": "number"}, 1.5),
        ("True", {"type": "boolean"}, True),
        ("false", {"type": "boolean"}, False),
        ('[1, "2"]', {"type": "array"}, [1, "2"]),
        ("many", {"type": "integer"}, "many"),
        ("123", {"type": ["string", "null"]}, "123"),
        ("null", {"type": ["string", "null"]}, None),
        ("7", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, 7),
        ("7", {"enum": ["7", "8"]}, "7"),
        ("1", {"$ref": "#/$defs/Word"}, "1"),
        ("123", None, 123),
        ("some text", None, "some text"),
        ('"quoted"', None, '"quoted"'),
        ("1e999", None, "1e999"),
        ("NaN", {"type": "number"}, "NaN"),
    ],
)
def test_the_schema_decides_what_bare_text_means(name: str, text: str, schema: JSON, value: JSON) -> None:
    found = _typed(name, text, schema)
    assert found == value
    assert type(found) is type(value)


def test_a_value_keeps_its_own_line_breaks() -> None:
    call = ToolCall("a", "f", json.dumps({"x": "\n\n  indented\n\n", "y": "", "z": "\n"}))
    for name in ("qwen3_coder", "glm45", "glm47"):
        parser = get_parser(name)
        assert meaning(parser.parse(parser.render([call])).tool_calls) == meaning((call,))


@pytest.mark.parametrize(
    "name", ["hermes", "qwen", "longcat", "deepseek_v3", "qwen3_coder", "glm47", "llama3_json"]
)
def test_ids_are_call_and_eight_hex_digits_and_differ(name: str) -> None:
    parser = get_parser(name)
    ids = [call.id for call in parser.parse(parser.render([SAFE, SAFE, CALL])).tool_calls]
    assert len(set(ids)) == 3
    assert all(re.fullmatch(r"call_[0-9a-f]{8}", found) for found in ids)


@pytest.mark.parametrize("name", ["mistral", "mistral_v11"])
def test_mistral_ids_are_nine_letters_and_digits_and_kept_where_given(name: str) -> None:
    parser = get_parser(name)
    broken, good = '{"name": "a", "arguments": {"x": }}', '{"name": "b", "arguments": {}, "id": "Abc123xyz"}'
    ids = [call.id for call in parser.parse(f"[TOOL_CALLS] [{broken}, {good}]").tool_calls]
    assert all(re.fullmatch(r"[A-Za-z0-9]{9}", found) for found in ids)
    assert ids[1] == "Abc123xyz"
    (call,) = parser.parse("[TOOL_CALLS]f[CALL_ID]Abc123xyz[ARGS]{}").tool_calls
    assert (call.id, call.name, call.arguments) == ("Abc123xyz", "f", "{}")


def test_kimi_ids_are_kept_and_name_the_tool() -> None:
    parser = get_parser("kimi_k2")
    call = ToolCall("functions.get.time:12", "get.time", "{}")
    assert parser.parse(parser.render([call])).tool_calls == (call,)
    (made,) = parser.parse(parser.render([SAFE])).tool_calls
    assert (made.id, made.name) == ("functions.ls:0", "ls")


def test_both_mistral_forms_are_read_whichever_is_written() -> None:
    for name in ("mistral", "mistral_v11"):
        for other in ("mistral", "mistral_v11"):
            text = get_parser(other).render([SAFE, CALL])
            assert meaning(get_parser(name).parse(text).tool_calls) == meaning((SAFE, CALL))


def test_text_around_calls_stays_in_order() -> None:
    one, two = '<tool_call>{"name": "f", "arguments": {}}</tool_call>', '<tool_call>{"name": "g"}</tool_call>'
    parsed = get_parser("hermes").parse(f"One.\n{one}\n Two. \n{two}\nThree.")
    assert parsed.content == "One.\nTwo.\nThree."
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("f", "{}"), ("g", "{}")]


def test_a_missing_closing_tag_is_forgiven_where_the_json_is_complete() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n'
    assert _names("hermes", call) == ["f"]
    assert _names("hermes", call + call + "</tool_call>") == ["f", "f"]
