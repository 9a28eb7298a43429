"""Which command lines run unasked, which are asked about; every unasked one is then really run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hermes.safety.approval import ApprovalPolicy, Verdict
from hermes.safety.private import PrivatePlaces
from tests.security.command_lines import ASKED, UNASKED
from tests.security.workspace import CANARY, git, make_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("home"))


def policy(workspace: Path, home: Path | None = None) -> ApprovalPolicy:
    home = (home or workspace.parent).resolve()
    places = PrivatePlaces(home, home / ".hermes", home / ".hermes/workspaces")
    return ApprovalPolicy((), (), interactive=True, isolated=False, workspace=str(workspace), places=places)


def test_the_table_is_as_long_as_it_claims() -> None:
    assert len(set(UNASKED)) + len(set(ASKED)) >= 300


@pytest.mark.parametrize("command", UNASKED)
def test_commands_that_only_look_are_not_asked_about(project: Path, command: str) -> None:
    assert policy(project).decide(command) is Verdict.ALLOW


@pytest.mark.parametrize("command", ASKED)
def test_commands_that_could_do_more_are_asked_about(project: Path, command: str) -> None:
    assert policy(project).decide(command) is Verdict.ASK


def test_what_runs_unasked_shows_no_secret_and_changes_nothing(project: Path) -> None:
    shell = shutil.which("bash") or "/bin/sh"
    environ = {"HOME": str(project.parent), "PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null"}
    before = _snapshot(project.parent)
    for command in UNASKED:
        done = subprocess.run(
            [shell, "-c", command],
            cwd=project,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert CANARY.encode() not in done.stdout + done.stderr, command
    assert _snapshot(project.parent) == before


def _snapshot(top: Path) -> dict[str, bytes | None]:
    return {
        str(path): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in sorted(top.rglob("*"))
        if path.name != "index"  # git refreshes what it knows about times
    }


@pytest.mark.parametrize("program", ["ls -l", "pip --version", "ls"])
def test_a_program_that_the_workspace_puts_on_the_path_is_asked_about(
    project: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert policy(project).decide("ls -l") is Verdict.ALLOW
    for folder in (str(project / ".venv/bin"), ".venv/bin", "", "."):
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        assert policy(project).decide(program) is Verdict.ASK


PRINTING = (
    "git show",
    "git show HEAD~1:a.txt",
    "git diff HEAD~1",
    "git log -p",
    "git log --pat",
    "git blame a.txt",
)
LISTING = ("git log --oneline -5", "git log --stat --format=%h", "git status", "git ls-files", "git log -n 3")


@pytest.mark.parametrize(
    ("name", "private"),
    [
        (".env", True),
        ("deploy/id_rsa", True),
        ("x/.ssh/config", True),
        ("Server.PEM", True),
        (".env.example", False),
        ("notes.txt", False),
    ],
)
def test_git_is_asked_about_contents_where_a_credential_was_committed_once(
    tmp_path: Path, name: str, private: bool
) -> None:
    project = make_project(tmp_path)
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text(CANARY)
    git(project, "add", "-f", name)
    for state in ("added", "committed", "removed"):
        if state == "removed":
            git(project, "rm", "-q", "--cached", name)
        if state != "added":
            git(project, "commit", "-q", "-m", state)
        for command in PRINTING:
            expected = Verdict.ASK if private else Verdict.ALLOW
            assert policy(project).decide(command) is expected, (command, state)
        for command in LISTING:
            assert policy(project).decide(command) is Verdict.ALLOW, (command, state)


HOSTILE = {
    "core.fsmonitor": "./evil",
    "core.pager": "./evil",
    "core.worktree": "/",
    "core.hooksPath": "hooks",
    "core.sshCommand": "./evil",
    "core.attributesFile": "attributes",
    "core.gitProxy": "./evil",
    "core.alternateRefsCommand": "./evil",
    "diff.external": "./evil",
    "diff.x.command": "./evil",
    "diff.x.textconv": "./evil",
    "filter.x.clean": "./evil",
    "filter.x.process": "./evil",
    "merge.x.driver": "./evil",
    "gpg.program": "./evil",
    "include.path": "../more",
    "includeIf.gitdir:/.path": "../more",
    "remote.o.promisor": "true",
    "remote.o.uploadpack": "./evil",
    "extensions.partialClone": "o",
    "extensions.worktreeConfig": "true",
    "alias.status": "!./evil",
    "pager.log": "./evil",
    "credential.helper": "!./evil",
    "submodule.x.update": "!./evil",
    "blame.ignoreRevsFile": "/etc/passwd",
}


@pytest.mark.parametrize("key", HOSTILE)
def test_git_is_asked_about_where_the_repository_configures_programs_or_places(
    tmp_path: Path, key: str
) -> None:
    project = make_project(tmp_path)
    (project / ".git/config").write_text((project / ".git/config").read_text() + _section(key))
    for command in ("git status", "git diff", "git log -p", "git blame a.txt"):
        assert policy(project).decide(command) is Verdict.ASK, command


def _section(key: str) -> str:
    section, _, name = key.rpartition(".")
    first, dot, subsection = section.partition(".")
    title = f'[{first} "{subsection}"]' if dot else f"[{first}]"
    return f"{title}\n\t{name} = {HOSTILE[key]}\n"


def test_a_hook_an_alternate_or_an_inner_repository_makes_git_asked_about(tmp_path: Path) -> None:
    hooked, borrowing, nested = (make_project(tmp_path / name) for name in ("a", "b", "c"))
    hook = hooked / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    (borrowing / ".git/objects/info").mkdir(exist_ok=True)
    (borrowing / ".git/objects/info/alternates").write_text("/elsewhere\n")
    inner = nested / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    git(inner, "commit", "-q", "--allow-empty", "-m", "x")
    git(nested, "add", "inner")
    for project in (hooked, borrowing, nested):
        assert policy(project, project.parent).decide("git status") is Verdict.ASK


def test_a_repository_around_the_workspace_is_asked_about(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    assert policy(project / "src", tmp_path).decide("git status") is Verdict.ASK
    assert policy(project / "src", tmp_path).decide("git show HEAD:a.txt") is Verdict.ASK
    other = tmp_path / "other"
    other.mkdir()
    (other / ".git").write_text(f"gitdir: {project}/.git\n")
    assert policy(other, tmp_path).decide("git log") is Verdict.ASK


def test_git_status_runs_nothing_in_a_hostile_repository_that_is_not_asked_about(tmp_path: Path) -> None:
    """The probe of the audit: if the decision were wrong, the program would really run."""
    project = make_project(tmp_path)
    evil = project / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    evil.chmod(0o755)
    git(project, "config", "core.fsmonitor", str(evil))
    git(project, "status")
    assert (tmp_path / "ran").exists(), "the probe works"
    assert policy(project).decide("git status") is Verdict.ASK
