"""A chat in the home directory: Hermes's files, credentials and dotfiles are asked about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes.agent.build import RolloutPlan, new_header, open_agent, open_writer
from hermes.config.load import load
from hermes.core import Source
from hermes.errors import ToolError, UsageError
from hermes.models.open import open_model
from hermes.safety.approval import Answer, ApprovalPolicy, PolicyApprover
from hermes.safety.private import PrivatePlaces
from hermes.tools.base import Workbench
from hermes.tools.builtin.vision import vision_analyze
from hermes.tools.scratch import write_scratch
from tests.security.workspace import CANARY, make_project
from tests.tools.bench import call, open_bench

PRIVATE = (
    *(".ssh/id_rsa", ".bashrc", ".hermes/.env", ".hermes/config.yaml", ".hermes/mcp_pins.json"),
    *(".ssh/authorized_keys", ".config/app/token", ".profile", "project/.env", "project/out/id_rsa"),
    *("project/link2bashrc", "project/server.key", ".HERMES/../.bashrc", "./project/../.bashrc"),
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = make_project(tmp_path)
    (project / "link2bashrc").symlink_to(tmp_path / ".bashrc")
    (tmp_path / ".HERMES").mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / ".hermes"))
    return tmp_path


class Questions:
    def __init__(self, reply: Answer) -> None:
        self.reply: Answer = reply
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, kind: str, action: str) -> Answer:
        self.asked.append((kind, action))
        return self.reply


def _approver(home: Path, questions: Questions) -> PolicyApprover:
    places = PrivatePlaces.of(home / ".hermes")
    rules = ApprovalPolicy((), (), interactive=True, isolated=False, workspace=str(home), places=places)
    return PolicyApprover(rules, questions)


def _bench_home(bench: Workbench, home: Path) -> Workbench:
    bench.resources |= {"home": home / ".hermes", "environ": {}}
    return bench


CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("read_file", {}),
    ("write_file", {"content": "export PATH=evil"}),
    ("patch", {"old": "x", "new": "evil"}),
    ("search_files", {"pattern": "c"}),
    ("dataset_inspect", {}),
)


@pytest.mark.parametrize("path", PRIVATE)
async def test_every_file_tool_asks_before_it_touches_a_private_file(home: Path, path: str) -> None:
    before = {file: file.read_bytes() for file in home.rglob("*") if file.is_file()}
    questions = Questions("no")
    for absolute in (False, True):
        async with open_bench("local", home, _approver(home, questions)) as bench:
            _bench_home(bench, home)
            for tool, arguments in CALLS:
                target = str(home / path) if absolute else path
                message, result = await call(bench, tool, path=target, **arguments)
                assert result.error_kind == "refused", (tool, message.content)
                assert CANARY not in message.content
            with pytest.raises(ToolError):
                await vision_analyze({"image": target, "question": "?"}, bench)
    assert len(questions.asked) == 2 * (len(CALLS) + 1)
    assert {kind for kind, _ in questions.asked} == {"path"}
    assert {file: file.read_bytes() for file in home.rglob("*") if file.is_file()} == before


async def test_a_person_sees_what_would_be_written(home: Path) -> None:
    questions = Questions("once")
    async with open_bench("local", home, _approver(home, questions)) as bench:
        _bench_home(bench, home)
        await call(bench, "write_file", path=".bashrc", content="alias ls=evil")
        await call(bench, "patch", path=".bashrc", old="evil", new="worse")
    (_, written), (_, changed) = questions.asked
    assert written == f"write {home}/.bashrc (it is a dotfile of your home)\nalias ls=evil"
    assert changed == f"change {home}/.bashrc (it is a dotfile of your home)\n-evil\n+worse"


async def test_ordinary_files_of_the_home_are_not_asked_about(home: Path) -> None:
    questions = Questions("no")
    async with open_bench("local", home, _approver(home, questions)) as bench:
        _bench_home(bench, home)
        for tool, arguments in CALLS[:2]:
            _, result = await call(bench, tool, path="project/README.md", **arguments)
            assert result.ok
        message, result = await call(bench, "terminal", command="cat project/a.txt && ls project")
        assert result.ok, message.content
    assert not questions.asked


@pytest.mark.parametrize("target", ["content", "files"])
async def test_a_search_of_the_home_leaves_private_files_out(home: Path, target: str) -> None:
    (home / "found.txt").write_text(f"{CANARY}\n")
    pattern = CANARY if target == "content" else "*"
    questions = Questions("no")
    async with open_bench("local", home, _approver(home, questions)) as bench:
        _bench_home(bench, home)
        for path in (".", str(home), "./project/.."):
            message, result = await call(
                bench, "search_files", pattern=pattern, target=target, path=path, limit=300
            )
            assert result.ok
            names = {line.partition(":")[0].removeprefix(f"{home}/") for line in message.content.splitlines()}
            private = {name for name in names if name.startswith(".") or name.endswith((".env", ".key"))}
            assert "found.txt" in names and not private, names
    assert not questions.asked


@pytest.mark.parametrize(
    "command",
    [
        *("cat .ssh/id_rsa", "cat .bashrc", "ls .ssh", "cat .hermes/.env", "cat .h*/.env", "cat .*rc"),
        *("grep -r canary .", "grep -rn x .ssh", "cd .ssh && cat id_rsa", "cd .ssh; ls", "wc .bashrc"),
        *("diff . project", "cat project/out/id_rsa", "head -1 project/.env", "base64 .ssh/id_rsa"),
        *("find .ssh -type f", "stat .hermes/config.yaml", "cat < .bashrc", "echo $(cat .bashrc)"),
    ],
)
async def test_commands_ask_before_they_read_a_private_file(home: Path, command: str) -> None:
    questions = Questions("no")
    async with open_bench("local", home, _approver(home, questions)) as bench:
        _bench_home(bench, home)
        message, result = await call(bench, "terminal", command=command)
    assert result.error_kind == "refused" and CANARY not in message.content
    assert questions.asked == [("command", command)]


async def test_the_directory_of_a_command_is_part_of_the_question(home: Path) -> None:
    questions = Questions("once")
    async with open_bench("local", home, _approver(home, questions)) as bench:
        _bench_home(bench, home)
        await call(bench, "terminal", command="cat id_rsa", workdir=".ssh")
        await call(bench, "terminal", command="cat a.txt", workdir="project")
    assert questions.asked == [
        ("path", f"work in {home}/.ssh (it is a dotfile of your home)"),
        ("command", f"cd {home}/.ssh && cat id_rsa"),
    ]


async def test_scratch_files_do_not_follow_a_link_of_the_workspace(home: Path) -> None:
    project = home / "project"
    (project / ".hermes").symlink_to(home / ".ssh")
    async with open_bench("local", project) as bench:
        _bench_home(bench, home)
        with pytest.raises(PermissionError):
            await write_scratch(bench, "results/x.txt", b"x")
    assert [path.name for path in (home / ".ssh").iterdir()] == ["id_rsa"]


async def test_scratch_files_of_a_chat_in_the_home_can_be_read_again(home: Path) -> None:
    questions = Questions("no")
    async with open_bench("local", home, _approver(home, questions)) as bench:
        _bench_home(bench, home)
        path = await write_scratch(bench, "results/x.txt", b"saved")
        message, result = await call(bench, "read_file", path=path)
    assert result.ok and "saved" in message.content and not questions.asked


async def test_an_isolated_agent_is_not_given_the_whole_home(home: Path) -> None:
    config = load({"sandbox.backend": "bubblewrap"}, {"HERMES_HOME": str(home / ".hermes-new")})
    model = open_model(config, "custom/m", "http://127.0.0.1:9/v1")
    plan = RolloutPlan(toolsets=("terminal",), workspace=home)
    with open_writer(config) as writer, pytest.raises(UsageError, match="contains your home"):
        async with open_agent(config, writer, model, new_header(Source.CHAT, model), plan):
            pass


def test_a_dotfolder_that_the_user_works_in_is_no_dotfile_of_the_home(home: Path) -> None:
    places = PrivatePlaces.of(home / ".hermes")
    chosen = home / ".config/nvim"
    assert places.reason(chosen / "init.lua", chosen) is None
    assert places.reason(home / ".config/other", chosen) is not None
    assert places.reason(chosen / ".env", chosen) is not None
    assert places.reason(home / ".hermes/workspaces/w1/a.txt", home / ".hermes/workspaces/w1") is None
