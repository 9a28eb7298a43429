"""Python in real sandboxes: the code travels as a file and is shown to the approver."""

from __future__ import annotations

import json
from pathlib import Path

from hermes.core import ToolErrorKind
from hermes.safety.approval import ApprovalPolicy, PolicyApprover
from hermes.tools.base import Workbench
from tests.tools.bench import call, error, open_bench, text


async def test_code_runs_and_its_output_comes_back(bench: Workbench) -> None:
    lines = [
        "import sys",
        "print('it''s $HOME `x` \"é\"')",
        "print('err', file=sys.stderr)",
        "open('made', 'w').write('x')",
    ]
    shown = json.loads(await text(bench, "execute_code", code="\n".join(lines)))
    assert shown == {"exit_code": 0, "output": 'its $HOME `x` "é"\nerr\n'}
    assert await bench.sandbox.read_file("made") == b"x"


async def test_modules_of_the_workspace_can_be_imported(bench: Workbench) -> None:
    await bench.sandbox.write_file("mine.py", b"value = 7\n")
    shown = json.loads(await text(bench, "execute_code", code="import mine; print(mine.value)"))
    assert shown["output"] == "7\n"


async def test_a_failing_script_is_a_failure_with_its_traceback(bench: Workbench) -> None:
    message, result = await call(bench, "execute_code", code="print('before')\n1 / 0")
    assert (result.error_kind, result.exit_code) == (ToolErrorKind.FAILED, 1)
    output = json.loads(message.content)["output"]
    assert output.startswith("before\n")
    assert "ZeroDivisionError" in output


async def test_a_script_is_stopped_at_its_time_out_and_its_output_kept(bench: Workbench) -> None:
    code = "print('begun')\nimport time\ntime.sleep(60)"
    message, result = await call(bench, "execute_code", code=code, timeout=3)
    assert result.error_kind is ToolErrorKind.TIMEOUT
    assert json.loads(message.content)["output"].startswith("begun\n")


async def test_scripts_leave_nothing_in_the_workspace_that_git_or_a_search_would_see(
    bench: Workbench,
) -> None:
    await text(bench, "execute_code", code="print('needle')")
    assert await text(bench, "search_files", pattern="needle") == "no matches"
    assert await text(bench, "search_files", pattern="*.py", target="files", path=".hermes") == "no matches"
    assert await bench.sandbox.read_file(".hermes/.gitignore") == b"*\n"


async def test_the_approver_sees_the_code_and_a_refusal_stops_it(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    async def ask(kind: str, action: str) -> str:
        asked.append((kind, action))
        return "no"

    approver = PolicyApprover(ApprovalPolicy(allow=(), deny=(), interactive=True, isolated=False), ask)
    async with open_bench("local", tmp_path, approver) as bench:
        kind, _ = await error(bench, "execute_code", code="open('canary', 'w')\n")
    assert kind == "refused"
    assert len(asked) == 1
    assert asked[0][0] == "command"
    assert asked[0][1].startswith("python3 -c ")
    assert "canary" in asked[0][1]
    assert list(tmp_path.iterdir()) == []
