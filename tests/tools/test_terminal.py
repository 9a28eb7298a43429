"""Commands in real sandboxes: output, exit codes, time-outs that leave nothing behind, approval."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from hermes.core import ToolErrorKind
from hermes.safety.approval import ApprovalPolicy, PolicyApprover
from hermes.tools import registry
from hermes.tools.base import Workbench
from tests.tools.bench import call, error, open_bench, raw_call, text


async def test_a_command_gives_its_output_and_exit_code(bench: Workbench) -> None:
    message, result = await call(bench, "terminal", command="echo out; echo err >&2; pwd")
    assert json.loads(message.content) == {
        "exit_code": 0,
        "output": f"out\nerr\n{bench.sandbox.workspace}\n",
    }
    assert (result.ok, result.exit_code) == (True, 0)


async def test_a_non_zero_exit_is_a_failure_whose_output_the_model_reads(bench: Workbench) -> None:
    message, result = await call(bench, "terminal", command="echo before; exit 3")
    assert json.loads(message.content) == {"exit_code": 3, "output": "before\n"}
    assert (result.ok, result.error_kind, result.exit_code) == (False, ToolErrorKind.FAILED, 3)


async def test_files_stay_between_commands_and_directories_do_not(bench: Workbench) -> None:
    await text(bench, "terminal", command="mkdir sub && echo kept > sub/file && cd sub")
    assert json.loads(await text(bench, "terminal", command="cat sub/file"))["output"] == "kept\n"
    inside = json.loads(await text(bench, "terminal", command="pwd", workdir="sub"))
    assert inside["output"] == f"{bench.sandbox.workspace}/sub\n"


async def test_a_missing_working_directory_is_named(bench: Workbench) -> None:
    message, result = await call(bench, "terminal", command="pwd", workdir="nowhere")
    assert not result.ok
    assert "nowhere" in message.content


BEAT = "while :; do echo x >> beat; sleep 0.05; done"


async def beats_on(bench: Workbench) -> bool:
    """Whether a process that runs BEAT is still alive; it must have been at some time."""
    before = await bench.sandbox.read_file("beat")
    assert before
    await asyncio.sleep(0.4)
    return await bench.sandbox.read_file("beat") != before


async def test_a_time_out_kills_the_whole_tree_and_keeps_the_output(bench: Workbench) -> None:
    command = f"echo begun; (setsid sh -c '{BEAT}' &) ; sleep 60"
    message, result = await call(bench, "terminal", command=command, timeout=2)
    shown = json.loads(message.content)
    assert shown["output"].startswith("begun\n")
    assert shown["error"] == "stopped after 2 s, with every process it had started"
    assert (result.error_kind, result.exit_code) == (ToolErrorKind.TIMEOUT, 124)
    assert not await beats_on(bench)


async def test_the_frameworks_hard_stop_kills_the_tree_too(bench: Workbench) -> None:
    hasty = replace(registry.get("terminal"), timeout_s=2.0)
    arguments = json.dumps({"command": f"({BEAT}) & sleep 60"})
    _, result = await raw_call(bench, [hasty], "terminal", arguments)
    assert result.error_kind is ToolErrorKind.TIMEOUT
    async with asyncio.timeout(10):  # a cancelled call does not wait for the end of what it killed
        while await beats_on(bench):
            pass


async def test_a_call_that_cannot_be_run_is_bad_arguments(local: Workbench) -> None:
    for timeout in (0, 601, "5"):
        kind, message = await error(local, "terminal", command="true", timeout=timeout)
        assert (kind, message.startswith("timeout: ")) == ("bad_arguments", True)
    for command in ("", "a\0b"):
        kind, _ = await error(local, "terminal", command=command)
        assert kind == "bad_arguments"


async def test_a_command_line_longer_than_the_system_takes_is_an_error(bench: Workbench) -> None:
    kind, message = await error(bench, "terminal", command="true " + "x" * 3_000_000)
    assert (kind, "too long" in message) == ("failed", True)


async def test_long_output_is_saved_as_plain_text(bench: Workbench) -> None:
    message, result = await call(bench, "terminal", command="seq 1 40000; exit 2")
    assert result.saved_path is not None
    assert result.exit_code == 2
    assert 'exit_code="2">\n1\n2\n3\n' in message.content
    tail = json.loads(await text(bench, "terminal", command=f"tail -n 1 {result.saved_path}"))
    assert tail["output"] == "40000\n"


async def test_parallel_commands_each_get_their_own_output(bench: Workbench) -> None:
    results = await asyncio.gather(
        *(text(bench, "terminal", command=f"sleep 0.1; echo {number}") for number in range(12))
    )
    assert [json.loads(content)["output"] for content in results] == [f"{number}\n" for number in range(12)]


async def test_a_background_process_is_written_to_polled_waited_for_and_listed(bench: Workbench) -> None:
    command = "while read line; do echo got $line; [ $line = end ] && exit 0; done"
    started = json.loads(await text(bench, "terminal", command=command, background=True))
    name = started["process_id"]
    assert started["status"] == "running"
    await text(bench, "process", action="write", process_id=name, text="one\n")
    running = json.loads(await text(bench, "process", action="wait", process_id=name, timeout=0.1))
    async with asyncio.timeout(10):
        while not running["output"]:
            running = json.loads(await text(bench, "process", action="poll", process_id=name))
    assert (running["status"], running["output"]) == ("running", "got one\n")
    await text(bench, "process", action="write", process_id=name, text="end\n")
    ended = json.loads(await text(bench, "process", action="wait", process_id=name))
    assert (ended["status"], ended["exit_code"]) == ("exited", 0)
    assert ended["output"] == "got one\ngot end\n"
    assert json.loads(await text(bench, "process", action="list")) == [
        {"process_id": name, "command": command, "status": "exited", "exit_code": 0}
    ]
    kind, message = await error(bench, "process", action="write", process_id=name, text="late\n")
    assert (kind, message) == ("failed", f"process {name} has exited with code 0")


async def test_a_killed_background_process_takes_its_children_along(bench: Workbench) -> None:
    command = f"({BEAT}) & sleep 60"
    started = json.loads(await text(bench, "terminal", command=command, background=True))
    name = started["process_id"]
    async with asyncio.timeout(10):
        while (await call(bench, "terminal", command="test -s beat"))[1].exit_code:
            pass
    assert await beats_on(bench)
    killed = json.loads(await text(bench, "process", action="kill", process_id=name))
    assert killed["status"] == "exited"
    assert not await beats_on(bench)


async def test_a_background_process_that_fails_is_a_failure_when_it_is_waited_for(bench: Workbench) -> None:
    started = json.loads(await text(bench, "terminal", command="exit 9", background=True))
    _, result = await call(bench, "process", action="wait", process_id=started["process_id"])
    assert (result.ok, result.exit_code) == (False, 9)


async def test_a_bad_process_call_says_what_is_wrong(local: Workbench) -> None:
    actions = '"list", "poll", "wait", "write", "kill"'
    for arguments, reason in (
        ({"action": "poll"}, "poll needs a process_id"),
        ({"action": "poll", "process_id": "nope"}, "no process 'nope'; known: none"),
        ({"action": "sing"}, f'action: expected one of {actions}, got "sing"'),
    ):
        assert await error(local, "process", **arguments) == ("bad_arguments", reason)
    started = json.loads(await text(local, "terminal", command="sleep 60", background=True))
    nothing_to_write = await error(local, "process", action="write", process_id=started["process_id"])
    assert nothing_to_write == ("bad_arguments", "write needs a text")


@pytest.mark.parametrize("background", [False, True])
async def test_a_refused_command_does_not_run(tmp_path: Path, background: bool) -> None:
    approver = PolicyApprover(ApprovalPolicy(allow=(), deny=(), interactive=False, isolated=False), None)
    async with open_bench("local", tmp_path, approver) as bench:
        kind, _ = await error(bench, "terminal", command="touch canary", background=background)
        assert kind == "refused"
        assert await text(bench, "terminal", command="ls") == '{"exit_code": 0, "output": ""}'
    assert list(tmp_path.iterdir()) == []


async def test_a_working_directory_outside_the_workspace_needs_approval(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    async def ask(kind: str, action: str) -> str:
        asked.append((kind, action))
        return "no"

    workspace = tmp_path / "workspace"
    workspace.mkdir()
    policy = ApprovalPolicy(allow=(), deny=(), interactive=True, isolated=False)
    async with open_bench("local", workspace, PolicyApprover(policy, ask)) as bench:
        kind, _ = await error(bench, "terminal", command="ls", workdir="..")
    assert kind == "refused"
    assert asked == [("path", f"work in {tmp_path}")]
