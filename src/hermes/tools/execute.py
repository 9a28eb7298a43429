"""Runs one tool call; every outcome is a message for the model and a typed result.

Promises: arguments reach a handler only if they are valid JSON and match the tool's schema, without coercion;
a handler is stopped at its time limit; a result over its budget is saved in the sandbox and previewed; the
result can be stored (no NUL, no lone surrogate). An exception of a tool is never propagated, with two
exceptions: a `SandboxError`, which is not the policy's fault and ends the trajectory, and cancellation. Time
spent waiting for the user does not count towards the time limit.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hermes.core import JSON, JSONObject, Message, Role, ToolCall, ToolErrorKind, ToolResult
from hermes.errors import HermesError, SandboxError, ToolError
from hermes.safety.approval import Approver
from hermes.safety.json_schema import violations
from hermes.tools import result_budget
from hermes.tools.base import Tool, ToolOutput, Workbench

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError  # type: ignore[import-untyped]

_MAX_PROBLEMS = 5
_VALUE_CHARS = 120
_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


def read_arguments(call: ToolCall, schema: JSONObject) -> JSONObject:
    """The arguments of a call; ToolError(bad_arguments) names error, location and expected value."""
    try:
        arguments = call.parsed()
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except RecursionError:
        raise _argument_error("the arguments are nested too deeply") from None
    except UnicodeEncodeError:
        raise _argument_error("the arguments hold half a surrogate pair, which no text can hold") from None
    except ValueError as error:
        raise _argument_error(f"the arguments are not valid JSON: {error}") from None
    problems = _problems(arguments, schema)
    if problems:
        raise _argument_error("; ".join(problems))
    return arguments


def _problems(arguments: JSONObject, schema: JSONObject) -> list[str]:
    errors = sorted(violations(arguments, schema), key=lambda error: [str(part) for part in error.path])
    problems = [_describe(error) for error in errors[:_MAX_PROBLEMS]]
    if len(errors) > _MAX_PROBLEMS:
        problems.append(f"and {len(errors) - _MAX_PROBLEMS} more")
    return problems


def _describe(error: ValidationError) -> str:
    where = _dotted(error.absolute_path)
    match error.validator:
        case "type":
            expected = error.validator_value
            names = expected if isinstance(expected, str) else " or ".join(expected)
            return f"{where}: expected {names}, got {_TYPES.get(type(error.instance), 'null')}"
        case "enum":
            allowed = ", ".join(json.dumps(value, ensure_ascii=False) for value in error.validator_value)
            return f"{where}: expected one of {allowed}, got {_short(error.instance)}"
        case "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            return f"{where}: missing {', '.join(missing)}"
        case "additionalProperties" if error.validator_value is False:
            properties = error.schema.get("properties", {})
            extra = ", ".join(name for name in error.instance if name not in properties)
            return f"{where}: unknown {extra[:_VALUE_CHARS]}; known: {', '.join(properties) or 'none'}"
        case rule:
            return f"{where}: {_short(error.instance)} breaks {rule} {_short(error.validator_value)}"


def _dotted(path: Iterable[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".") or "arguments"


def _short(value: JSON) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE_CHARS else f"{text[:_VALUE_CHARS]} …"


def _argument_error(message: str) -> ToolError:
    return ToolError(message, kind=ToolErrorKind.BAD_ARGUMENTS)


_ERROR_CHARS = 4_000
_KINDS = frozenset(ToolErrorKind)

logger = logging.getLogger(__name__)


async def run_tool_call(
    call: ToolCall, offered: Mapping[str, Tool], bench: Workbench
) -> tuple[Message, ToolResult]:
    """Runs a call with the tools that were offered; raises only SandboxError and CancelledError."""
    started = time.perf_counter()
    output, max_chars = await _output(call, offered, bench)
    fitted = await result_budget.fit(output, max_chars, call.id, bench)
    message = Message(Role.TOOL, fitted.content, tool_call_id=call.id, name=call.name, images=output.images)
    result = ToolResult(
        call_id=call.id,
        name=call.name,
        ok=output.ok,
        duration_ms=(time.perf_counter() - started) * 1000,
        error_kind=None if output.ok else ToolErrorKind(output.kind),
        exit_code=output.exit_code,
        result_chars=fitted.result_chars,
        saved_path=fitted.saved_path,
    )
    return message, result


async def _output(
    call: ToolCall, offered: Mapping[str, Tool], bench: Workbench
) -> tuple[ToolOutput, int | None]:
    """The output of the call and its budget; an error is short and has none."""
    try:
        tool = _find(call, offered)
        arguments = read_arguments(call, tool.parameters)
        return await _handle(tool, arguments, bench), tool.max_result_chars
    except SandboxError:
        raise
    except ToolError as error:
        return _failure(error.message, error.kind), None
    except HermesError as error:
        return _failure(error.message, ToolErrorKind.FAILED), None
    except Exception as error:
        logger.exception("tool %s crashed", call.name)
        return _failure(f"{call.name} crashed: {type(error).__name__}: {error}", ToolErrorKind.CRASHED), None


def _find(call: ToolCall, offered: Mapping[str, Tool]) -> Tool:
    if call.error is not None:
        raise ToolError(f"the call cannot be read: {call.error}", kind=ToolErrorKind.BAD_ARGUMENTS)
    if call.name not in offered:
        names = ", ".join(offered) or "none"
        raise ToolError(f"no tool is named '{call.name}'; tools: {names}", kind=ToolErrorKind.UNKNOWN_TOOL)
    return offered[call.name]


async def _handle(tool: Tool, arguments: JSONObject, bench: Workbench) -> ToolOutput:
    try:
        async with asyncio.timeout(tool.timeout_s) as limit:
            output = await tool.handler(arguments, _pause_limit_for_user(bench, limit))
    except TimeoutError:
        if not limit.expired():
            raise
        message = f"{tool.name} was stopped: it took longer than {tool.timeout_s:g} s"
        raise ToolError(message, kind=ToolErrorKind.TIMEOUT) from None
    return _check_output(output)


def _check_output(output: object) -> ToolOutput:
    """Validates the output, since a handler may come from a plug-in."""
    if isinstance(output, str):
        return ToolOutput(output)
    if not isinstance(output, ToolOutput):
        raise TypeError(f"a tool returns text or a ToolOutput, not {type(output).__name__}")
    if not output.ok and output.kind not in _KINDS:
        raise ValueError(f"'{output.kind}' is no kind of tool error")
    return output


def _failure(message: str, kind: str) -> ToolOutput:
    text = message if len(message) <= _ERROR_CHARS else f"{message[:_ERROR_CHARS]} …"
    if kind not in _KINDS:
        text, kind = f"{text} (reported as '{kind}', which is no kind of tool error)", ToolErrorKind.CRASHED
    content = json.dumps({"error": text, "kind": str(kind)}, ensure_ascii=False)
    return ToolOutput(content, ok=False, kind=kind)


def _pause_limit_for_user(bench: Workbench, limit: asyncio.Timeout) -> Workbench:
    """The same bench, on which waiting for the user pauses the time limit."""
    ask = bench.ask_user

    async def ask_user(question: str, choices: tuple[str, ...]) -> str:
        assert ask is not None
        with _pause(limit):
            return await ask(question, choices)

    approver = _PausingApprover(bench.approver, limit)
    return replace(bench, approver=approver, ask_user=None if ask is None else ask_user)


@dataclass(frozen=True, slots=True)
class _PausingApprover:
    approver: Approver
    limit: asyncio.Timeout

    async def approve(self, kind: str, action: str) -> None:
        with _pause(self.limit):
            await self.approver.approve(kind, action)


@contextmanager
def _pause(limit: asyncio.Timeout) -> Iterator[None]:
    now = asyncio.get_running_loop().time
    until, began = limit.when(), now()
    _reschedule(limit, None)
    try:
        yield
    finally:
        if until is not None:
            _reschedule(limit, until + now() - began)


def _reschedule(limit: asyncio.Timeout, when: float | None) -> None:
    with suppress(RuntimeError):  # the call and its limit have ended; a tool may keep its bench
        limit.reschedule(when)
