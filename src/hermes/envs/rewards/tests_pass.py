"""Hidden tests of a function, run in a sandbox and judged outside of it.

The solution and the inputs of the tests go into a sandbox; the returned values come out as JSON and are
compared here. The expected values never enter the sandbox, and no test file does, so there is nothing to
edit, to patch, to read or to sign: exiting early, objects that equal everything and faked reports all amount
to not returning the right values.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hermes.core import JSON
from hermes.envs.rewards.result import GraderError, RewardResult
from hermes.sandbox.base import CommandResult

_HARNESS = """\
import io, json, os, sys
replies = os.fdopen(os.dup(1), "w")
nowhere = os.open(os.devnull, os.O_WRONLY)
os.dup2(nowhere, 1)
os.dup2(nowhere, 2)
sys.stdin, cases = io.StringIO(), json.load(sys.stdin)
namespace = {"__name__": "solution"}
source = open("solution.py", encoding="utf-8").read()
exec(compile(source, "solution.py", "exec"), namespace)
for case in cases["inputs"]:
    try:
        reply = {"value": namespace[cases["function"]](*case)}
        line = json.dumps(reply, allow_nan=False)
    except Exception as error:
        line = json.dumps({"error": type(error).__name__})
    replies.write(cases["mark"] + line + "\\n")
    replies.flush()
"""


class SandboxRunner(Protocol):
    """The part of a sandbox that a test run needs."""

    async def run(
        self, command: str, *, timeout_s: float | None = None, stdin: bytes | None = None
    ) -> CommandResult: ...

    async def write_file(self, path: str, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Case:
    """A call of the function and its expected return value, as JSON values."""

    arguments: tuple[JSON, ...]
    expected: JSON


async def tests_pass(
    sandbox: SandboxRunner, source: str, function: str, cases: Sequence[Case], *, timeout_s: float = 20.0
) -> RewardResult:
    """1 if every case passes. `sandbox` must be a fresh one of the grader's, not the rollout's."""
    if not cases:
        raise GraderError("there are no tests to pass")
    mark = f"@{secrets.token_hex(8)} "
    request = {"function": function, "mark": mark, "inputs": [list(case.arguments) for case in cases]}
    await sandbox.write_file("solution.py", source.encode("utf-8", "replace"))
    await sandbox.write_file("harness.py", _HARNESS.encode())
    probe = await sandbox.run("python3 -I -c 'print(40 + 2)'", timeout_s=30.0)
    if probe.exit_code != 0 or probe.output.strip() != "42":
        raise GraderError(f"the grader's sandbox cannot run Python: {probe.output.strip()[:200]}")
    result = await sandbox.run(
        "exec python3 -I harness.py", timeout_s=timeout_s, stdin=json.dumps(request).encode()
    )
    replies = _replies(result.output, mark)
    right = sum(_passes(case, reply) for case, reply in zip(cases, replies, strict=False))
    share = right / len(cases) if len(replies) <= len(cases) else 0.0
    detail = f"{right} of {len(cases)} tests pass"
    if result.timed_out:
        detail += f"; stopped after {timeout_s:g} s"
    return RewardResult(float(share == 1.0), {"tests": share}, detail)


def _replies(output: str, mark: str) -> list[JSON]:
    lines = (line.removeprefix(mark) for line in output.splitlines() if line.startswith(mark))
    return [_decoded(line) for line in lines]


def _decoded(line: str) -> JSON:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _passes(case: Case, reply: JSON) -> bool:
    return isinstance(reply, dict) and "value" in reply and same_value(reply["value"], case.expected)


def same_value(actual: JSON, expected: JSON) -> bool:
    """Equal as JSON: True is not 1, and 1.0 is 1 only where a float was expected."""
    if isinstance(expected, bool) or isinstance(actual, bool):
        return actual is expected
    if isinstance(expected, float):
        return isinstance(actual, int | float) and abs(actual - expected) <= 1e-9 * max(1.0, abs(expected))
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(expected)
            and all(same_value(left, right) for left, right in zip(actual, expected, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(actual, dict)
            and actual.keys() == expected.keys()
            and all(same_value(actual[key], value) for key, value in expected.items())
        )
    return type(actual) is type(expected) and bool(actual == expected)
