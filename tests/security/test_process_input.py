"""One yes to a background interpreter does not cover what is typed into it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes.safety.approval import Answer, ApprovalPolicy, PolicyApprover
from tests.tools.bench import call, open_bench


class Person:
    def __init__(self, *replies: Answer) -> None:
        self.replies = list(replies)
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, kind: str, action: str) -> Answer:
        self.asked.append((kind, action))
        return self.replies.pop(0)


def _policy(workspace: Path, *, isolated: bool = False, deny: tuple[str, ...] = ()) -> ApprovalPolicy:
    return ApprovalPolicy((), deny, interactive=True, isolated=isolated, workspace=str(workspace))


@pytest.mark.parametrize("command", ["python3 -i", "bash"])
async def test_what_is_typed_into_a_running_program_is_asked_about(tmp_path: Path, command: str) -> None:
    person = Person("once", "no", "once")
    async with open_bench("local", tmp_path, PolicyApprover(_policy(tmp_path), person)) as bench:
        message, _ = await call(bench, "terminal", command=command, background=True)
        name = json.loads(message.content)["process_id"]
        text = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
        _, result = await call(bench, "process", action="write", process_id=name, text=text)
        assert result.error_kind == "refused"
        _, result = await call(bench, "process", action="write", process_id=name, text="1\n")
        assert result.ok
        await call(bench, "process", action="kill", process_id=name)
    assert [kind for kind, _ in person.asked][-2:] == ["process_input", "process_input"]
    action = person.asked[-2][1]
    assert text in action and json.dumps(command) in action
    assert not (tmp_path / "ran").exists()


async def test_a_denied_command_is_denied_as_input_too(tmp_path: Path) -> None:
    approver = PolicyApprover(_policy(tmp_path, isolated=True, deny=("git push",)))
    await approver.approve("process_input", "to process 1:\nls\n")
    with pytest.raises(Exception, match="denied by the user's rule"):
        await approver.approve("process_input", "to process 1:\ngit push\n")
