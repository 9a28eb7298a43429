"""Every way a call can go: one message for the model, one typed result, nothing raised."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import string

import pytest

from hermes.core import JSONObject, Role, ToolErrorKind
from hermes.errors import ProviderError, SandboxError, ToolError
from hermes.tools.base import Handler, Tool, ToolOutput, Workbench
from tests.tools.bench import raw_call

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA: JSONObject = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "items": {"type": "array", "items": {"type": "object", "properties": {"size": {"enum": ["s", "l"]}}}},
    },
    "required": ["text"],
    "additionalProperties": False,
}


def tool(handler: Handler, **fields: object) -> Tool:
    return Tool("probe", "test", "A probe.", SCHEMA, handler, **fields)  # type: ignore[arg-type]


async def _echo(arguments: JSONObject, bench: Workbench) -> str:
    return json.dumps(arguments, sort_keys=True)


async def test_a_good_call_gives_the_tools_text_and_an_ok_result(desk: Workbench) -> None:
    message, result = await raw_call(desk, [tool(_echo)], "probe", '{"text": "é", "count": 2}', "call_7")
    assert (message.role, message.tool_call_id, message.name) == (Role.TOOL, "call_7", "probe")
    assert json.loads(message.content) == {"text": "é", "count": 2}
    assert (result.call_id, result.name, result.ok, result.error_kind) == ("call_7", "probe", True, None)
    assert result.result_chars == len(message.content)
    assert result.duration_ms > 0


async def test_a_malformed_call_is_answered_with_its_reason(desk: Workbench) -> None:
    message, result = await raw_call(desk, [tool(_echo)], "probe", "{...", error="no closing tag")
    assert json.loads(message.content) == {
        "error": "the call cannot be read: no closing tag",
        "kind": "bad_arguments",
    }
    assert (result.ok, result.error_kind) == (False, ToolErrorKind.BAD_ARGUMENTS)


async def test_an_unknown_tool_is_a_failure_that_lists_what_was_offered(desk: Workbench) -> None:
    message, result = await raw_call(desk, [tool(_echo)], "prob", "{}")
    assert json.loads(message.content)["error"] == "no tool is named 'prob'; tools: probe"
    assert result.error_kind is ToolErrorKind.UNKNOWN_TOOL


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("{", "not valid JSON: Expecting property name"),
        ("[1]", "must be a JSON object, not list"),
        ('"text"', "must be a JSON object, not str"),
        ("", "arguments: missing text"),
        ('{"text": 5}', "text: expected string, got integer"),
        ('{"text": null}', "text: expected string, got null"),
        ('{"text": "5", "count": "5"}', "count: expected integer, got string"),
        ('{"text": "5", "count": true}', "count: expected integer, got boolean"),
        ('{"text": "5", "count": 50}', "count: 50 breaks maximum 9"),
        ('{"text": "5", "items": [{}, {"size": "m"}]}', 'items[1].size: expected one of "s", "l", got "m"'),
        ('{"text": "5", "txet": 1}', "arguments: unknown txet; known: text, count, items"),
        ('{"text": 1, "count": "x"}', "count: expected integer, got string; text: expected string"),
        ('{"text": "a", "count": NaN}', "Out of range float values"),
        ('{"text": "a", "count": 1e999}', "Out of range float values"),
        (r'{"text": "\ud800"}', "half a surrogate pair"),
        ("[" * 100_000, "nested too deeply"),
        ('{"text": ' + "9" * 5000 + "}", "not valid JSON: Exceeds the limit"),
    ],
)
async def test_bad_arguments_are_named_by_path_and_expectation(
    desk: Workbench, arguments: str, reason: str
) -> None:
    message, result = await raw_call(desk, [tool(_echo)], "probe", arguments)
    assert reason in json.loads(message.content)["error"]
    assert result.error_kind is ToolErrorKind.BAD_ARGUMENTS


async def test_a_long_bad_value_is_not_repeated_in_full(desk: Workbench) -> None:
    message, _ = await raw_call(desk, [tool(_echo)], "probe", json.dumps({"text": "a", "count": [0] * 9999}))
    assert len(message.content) < 1000


async def test_a_tool_that_takes_too_long_is_stopped(desk: Workbench) -> None:
    stopped = asyncio.Event()

    async def slow(arguments: JSONObject, bench: Workbench) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return ""

    message, result = await raw_call(desk, [tool(slow, timeout_s=0.05)], "probe", '{"text": ""}')
    assert json.loads(message.content)["error"] == "probe was stopped: it took longer than 0.05 s"
    assert result.error_kind is ToolErrorKind.TIMEOUT
    assert stopped.is_set()


async def test_time_in_which_a_person_decides_does_not_count(desk: Workbench) -> None:
    class Slow:
        async def approve(self, kind: str, action: str) -> None:
            await asyncio.sleep(0.3)

    async def answer(question: str, choices: tuple[str, ...]) -> str:
        await asyncio.sleep(0.3)
        return "yes"

    async def asks(arguments: JSONObject, bench: Workbench) -> str:
        await bench.approver.approve("command", "true")
        assert bench.ask_user is not None
        return await bench.ask_user("?", ())

    async def asks_and_hangs(arguments: JSONObject, bench: Workbench) -> str:
        await bench.approver.approve("command", "true")
        await asyncio.sleep(60)
        return ""

    desk.approver, desk.ask_user = Slow(), answer
    message, result = await raw_call(desk, [tool(asks, timeout_s=0.5)], "probe", '{"text": ""}')
    assert (message.content, result.ok) == ("yes", True)
    _, result = await raw_call(desk, [tool(asks_and_hangs, timeout_s=0.1)], "probe", '{"text": ""}')
    assert result.error_kind is ToolErrorKind.TIMEOUT


async def test_a_bench_kept_beyond_its_call_can_still_ask(desk: Workbench) -> None:
    kept: list[Workbench] = []

    async def keep(arguments: JSONObject, bench: Workbench) -> str:
        kept.append(bench)
        return "kept"

    await raw_call(desk, [tool(keep)], "probe", '{"text": ""}')
    await kept[0].approver.approve("command", "true")
    assert kept[0].ask_user is None


@pytest.mark.parametrize("kind", list(ToolErrorKind))
async def test_a_tool_error_keeps_its_kind_and_message(desk: Workbench, kind: ToolErrorKind) -> None:
    async def fails(arguments: JSONObject, bench: Workbench) -> str:
        raise ToolError("it is so", "a hint for a person", kind=kind)

    message, result = await raw_call(desk, [tool(fails)], "probe", '{"text": ""}')
    assert json.loads(message.content) == {"error": "it is so", "kind": kind.value}
    assert result.error_kind is kind


async def test_an_expected_failure_of_another_kind_is_a_failed_call(desk: Workbench) -> None:
    async def fails(arguments: JSONObject, bench: Workbench) -> str:
        raise ProviderError("the endpoint is down")

    message, result = await raw_call(desk, [tool(fails)], "probe", '{"text": ""}')
    assert json.loads(message.content)["error"] == "the endpoint is down"
    assert result.error_kind is ToolErrorKind.FAILED


@pytest.mark.parametrize(
    "raised", [RuntimeError("boom"), TimeoutError("inner"), KeyError("x"), ExceptionGroup("g", [OSError()])]
)
async def test_a_tools_bug_is_reported_logged_and_not_raised(
    desk: Workbench, raised: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def crashes(arguments: JSONObject, bench: Workbench) -> str:
        raise raised

    with caplog.at_level(logging.ERROR):
        message, result = await raw_call(desk, [tool(crashes)], "probe", '{"text": ""}')
    assert f"probe crashed: {type(raised).__name__}" in json.loads(message.content)["error"]
    assert result.error_kind is ToolErrorKind.CRASHED
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize("returned", [None, b"bytes", 5, ToolOutput("x", ok=False, kind="unheard-of")])
async def test_a_tool_that_returns_nonsense_has_crashed(desk: Workbench, returned: object) -> None:
    async def nonsense(arguments: JSONObject, bench: Workbench) -> str:
        return returned  # type: ignore[return-value]

    _, result = await raw_call(desk, [tool(nonsense)], "probe", '{"text": ""}')
    assert result.error_kind is ToolErrorKind.CRASHED


async def test_an_error_of_no_known_kind_has_crashed(desk: Workbench) -> None:
    async def fails(arguments: JSONObject, bench: Workbench) -> str:
        raise ToolError("odd", kind="unheard-of")

    message, result = await raw_call(desk, [tool(fails)], "probe", '{"text": ""}')
    assert "unheard-of" in message.content
    assert result.error_kind is ToolErrorKind.CRASHED


@pytest.mark.parametrize("schema", [{"$ref": "http://127.0.0.1:9/schema.json"}, {"type": "no-such-type"}])
async def test_a_tool_with_a_broken_schema_has_crashed_without_a_download(
    desk: Workbench, schema: JSONObject
) -> None:
    broken = Tool("probe", "test", "A probe.", schema, _echo)
    message, result = await raw_call(desk, [broken], "probe", "{}")
    assert result.error_kind is ToolErrorKind.CRASHED
    assert "Connection refused" not in message.content


async def test_a_sandbox_failure_gets_out_for_it_is_not_the_models(desk: Workbench) -> None:
    async def dies(arguments: JSONObject, bench: Workbench) -> str:
        raise SandboxError("the sandbox died")

    with pytest.raises(SandboxError):
        await raw_call(desk, [tool(dies)], "probe", '{"text": ""}')


async def test_cancellation_gets_out(desk: Workbench) -> None:
    began = asyncio.Event()

    async def waits(arguments: JSONObject, bench: Workbench) -> str:
        began.set()
        await asyncio.sleep(60)
        return ""

    task = asyncio.create_task(raw_call(desk, [tool(waits)], "probe", '{"text": ""}'))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_failed_output_keeps_its_text_exit_code_and_images(desk: Workbench) -> None:
    async def fails(arguments: JSONObject, bench: Workbench) -> ToolOutput:
        return ToolOutput("what it printed", ok=False, exit_code=3, images=("data:image/png;base64,AA",))

    message, result = await raw_call(desk, [tool(fails)], "probe", '{"text": ""}')
    assert (message.content, message.images) == ("what it printed", ("data:image/png;base64,AA",))
    assert (result.error_kind, result.exit_code) == (ToolErrorKind.FAILED, 3)


async def test_a_result_is_made_storable(desk: Workbench) -> None:
    async def dirty(arguments: JSONObject, bench: Workbench) -> str:
        return "a\0b\ud800c\U0001f600"

    message, _ = await raw_call(desk, [tool(dirty)], "probe", '{"text": ""}')
    assert message.content == "a\\x00b\\ud800c\U0001f600"
    message.content.encode("utf-8")


@pytest.mark.asyncio(loop_scope="function")
async def test_an_oversized_result_is_saved_in_the_sandbox_and_previewed(bench: Workbench) -> None:
    full = "".join(random.Random(1).choices(string.ascii_letters + "é\n", k=5_000))

    async def talks(arguments: JSONObject, bench: Workbench) -> str:
        return full

    message, result = await raw_call(bench, [tool(talks, max_result_chars=4_999)], "probe", '{"text": ""}')
    assert result.ok
    assert result.result_chars == 5_000
    assert result.saved_path is not None
    assert result.saved_path.startswith(".hermes/results/call_1-")
    assert (await bench.sandbox.read_file(result.saved_path)).decode() == full
    opening, rest = message.content.split("\n", 1)
    assert opening == f'<persisted-output path="{result.saved_path}" chars="5000">'
    assert rest.startswith(full[:1_500])
    assert rest.endswith(f"… 3000 characters left out …\n{full[-500:]}\n</persisted-output>")


async def test_a_result_at_its_budget_is_left_alone(desk: Workbench) -> None:
    async def talks(arguments: JSONObject, bench: Workbench) -> str:
        return "x" * 5_000

    message, result = await raw_call(desk, [tool(talks, max_result_chars=5_000)], "probe", '{"text": ""}')
    assert (len(message.content), result.saved_path) == (5_000, None)


async def test_an_output_with_a_plain_form_is_saved_in_that_form(desk: Workbench) -> None:
    async def talks(arguments: JSONObject, bench: Workbench) -> ToolOutput:
        return ToolOutput(json.dumps({"output": "a\n" * 3000}), ok=False, exit_code=1, full="a\n" * 3000)

    message, result = await raw_call(desk, [tool(talks, max_result_chars=1_000)], "probe", '{"text": ""}')
    assert result.saved_path is not None
    assert await desk.sandbox.read_file(result.saved_path) == b"a\n" * 3000
    assert 'chars="6000" exit_code="1">' in message.content


@pytest.mark.parametrize(
    "call_id", ["../../evil", "/etc/passwd", "a" * 500, "", ".", "functions.f:0", "é\0\ud800"]
)
async def test_a_hostile_call_id_cannot_choose_where_a_result_is_saved(desk: Workbench, call_id: str) -> None:
    async def talks(arguments: JSONObject, bench: Workbench) -> str:
        return "x" * 5_000

    _, result = await raw_call(desk, [tool(talks, max_result_chars=10)], "probe", '{"text": ""}', call_id)
    assert result.saved_path is not None
    folder, name = result.saved_path.rsplit("/", 1)
    assert folder == ".hermes/results"
    assert len(name) < 100
    assert set(name) <= set(string.ascii_letters + string.digits + "_-.")
    assert await desk.sandbox.read_file(result.saved_path) == b"x" * 5_000


async def test_a_server_that_repeats_its_ids_does_not_overwrite_an_earlier_result(desk: Workbench) -> None:
    async def talks(arguments: JSONObject, bench: Workbench) -> str:
        return str(arguments["text"]) * 100

    paths = [
        (await raw_call(desk, [tool(talks, max_result_chars=10)], "probe", json.dumps({"text": text})))[1]
        for text in ("a", "b")
    ]
    assert [await desk.sandbox.read_file(str(result.saved_path)) for result in paths] == [
        b"a" * 100,
        b"b" * 100,
    ]


@pytest.mark.asyncio(loop_scope="function")
async def test_a_result_that_cannot_be_saved_is_still_previewed(local: Workbench) -> None:
    async def talks(arguments: JSONObject, bench: Workbench) -> str:
        return "x" * 5_000

    await local.sandbox.write_file(".hermes", b"in the way")
    message, result = await raw_call(local, [tool(talks, max_result_chars=10)], "probe", '{"text": ""}')
    assert result.ok
    assert result.saved_path is None
    assert message.content.startswith('<persisted-output not_saved="')
    assert "x" * 1_500 in message.content


async def test_parallel_calls_do_not_disturb_each_other(desk: Workbench) -> None:
    async def answers(arguments: JSONObject, bench: Workbench) -> str:
        await asyncio.sleep(random.random() / 50)
        if arguments["count"] == 3:
            raise RuntimeError("one of them crashes")
        return str(arguments["text"]) * 100

    calls = [
        raw_call(
            desk,
            [tool(answers, max_result_chars=10)],
            "probe",
            json.dumps({"text": f"{number:03}", "count": number % 9 + 1}),
            f"call_{number}",
        )
        for number in range(100)
    ]
    for number, (message, result) in enumerate(await asyncio.gather(*calls)):
        assert message.tool_call_id == result.call_id == f"call_{number}"
        assert result.ok == (number % 9 != 2)
        if result.saved_path:
            assert await desk.sandbox.read_file(result.saved_path) == f"{number:03}".encode() * 100
