"""render → parse gives the same calls back, whatever is in them."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes.core import ToolCall
from hermes.models.parsers import get_parser, parser_names
from tests.models.parsers.hostile import MARKS, ODDITIES, hostile_answers, meaning, schema_of, unwritable

REFUSAL = r"cannot be written|would end it"
PREFIXES = ("", "I will look.\n", "<think>quoting <tool_call>{}</tool_call> here</think>\n")


@pytest.mark.parametrize("name", parser_names())
def test_hostile_calls_come_back_as_they_were_written(name: str) -> None:
    assert come_back(name, 1_500) >= 1_200


@pytest.mark.slow
@pytest.mark.parametrize("name", parser_names())
def test_ten_thousand_hostile_calls_come_back_as_they_were_written(name: str) -> None:
    assert come_back(name, 12_500) >= 10_000


def come_back(name: str, answers: int) -> int:
    """How many calls were written and read back; the rest could not be written, and was refused."""
    parser = get_parser(name)
    written = refused = 0
    for index, calls in enumerate(hostile_answers(answers)):
        if any(unwritable(parser.name, call) for call in calls):
            with pytest.raises(ValueError, match=REFUSAL):
                parser.render(calls)
            refused += len(calls)
            continue
        prefix = "" if "llama" in name else PREFIXES[index % len(PREFIXES)]
        parsed = parser.parse(prefix + parser.render(calls), [schema_of(call) for call in calls])
        assert meaning(parsed.tool_calls) == meaning(calls)
        assert parsed.content == ("I will look." if prefix.startswith("I") else "")
        written += len(calls)
    assert (refused > 0) == (parser.name in ("qwen3_coder", "glm45", "glm47"))
    return written


@pytest.mark.parametrize("name", parser_names())
def test_what_a_model_wrote_is_written_back_character_for_character(name: str) -> None:
    parser = get_parser(name)
    for calls in hostile_answers(500):
        if any(unwritable(parser.name, call) for call in calls):
            continue
        tools = [schema_of(call) for call in calls]
        text = parser.render(calls)
        again = parser.render(parser.parse(text, tools).tool_calls)
        assert meaning(parser.parse(again, tools).tool_calls) == meaning(calls)
        if parser.name not in ("qwen3_coder", "glm45", "glm47", "mistral"):
            assert again == text


TEXT = st.lists(st.one_of(st.sampled_from(MARKS + ODDITIES), st.text(max_size=4)), max_size=5).map("".join)
JSON_VALUES = st.recursive(
    st.one_of(
        TEXT, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=5,
)


@pytest.mark.parametrize("name", parser_names())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(arguments=st.dictionaries(TEXT, JSON_VALUES, max_size=3))
def test_any_arguments_come_back_or_are_refused(name: str, arguments: dict[str, object]) -> None:
    parser = get_parser(name)
    call = ToolCall("call_00000000", "tool", json.dumps(arguments, ensure_ascii=False))
    if unwritable(parser.name, call):
        with pytest.raises(ValueError, match=REFUSAL):
            parser.render([call])
        return
    parsed = parser.parse(parser.render([call]), [schema_of(call)])
    assert meaning(parsed.tool_calls) == meaning((call,))


@pytest.mark.parametrize("name", parser_names())
def test_no_calls_are_written_as_nothing(name: str) -> None:
    assert get_parser(name).render(()) == ""


@pytest.mark.parametrize(
    "name", ["mistral_v11", "deepseek_v3", "deepseek_v3_1", "kimi_k2", "qwen3_coder", "glm47"]
)
def test_a_name_that_would_need_quotes_is_refused_where_there_are_none(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be written unquoted"):
        get_parser(name).render([ToolCall("a", "two words", "{}")])


@pytest.mark.parametrize("name", ["hermes", "qwen", "longcat", "llama3_json", "llama4_json", "mistral"])
def test_any_name_survives_where_names_are_quoted(name: str) -> None:
    parser = get_parser(name)
    call = ToolCall("a", 'odd "name" </tool_call>\n{', '{"a": 1}')
    assert meaning(parser.parse(parser.render([call])).tool_calls) == meaning((call,))
