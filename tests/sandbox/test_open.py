"""Choosing a back end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.config.settings import SandboxSettings
from hermes.errors import HostError, SandboxError, UsageError
from hermes.sandbox import open_sandbox, sandbox_names, unusable_reason
from hermes.sandbox.base import Sandbox
from hermes.sandbox.local import without_secrets
from tests.sandbox.conftest import need


async def test_auto_is_local_for_a_person_and_isolated_for_nobody() -> None:
    need("bubblewrap")
    for interactive, backend in ((True, "local"), (False, "bubblewrap")):
        sandbox = await open_sandbox(SandboxSettings(), interactive=interactive)
        assert (sandbox.backend, sandbox.isolated) == (backend, not interactive)
        await sandbox.close()


PLUGIN = """
import asyncio, sys
from hermes.config.settings import SandboxSettings
from hermes.errors import HermesError
from hermes.sandbox import open_sandbox

try:
    print(asyncio.run(open_sandbox(SandboxSettings(backend=sys.argv[1]), interactive=False)))
except HermesError as error:
    print(type(error).__name__, error.message, "|", error.hint)
"""


def test_with_nothing_that_isolates_an_unattended_run_is_refused_with_the_fix(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PLUGIN, "auto"],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.startswith(
        "SandboxError no isolating sandbox works on this machine: bubblewrap is not installed"
    )
    assert "--sandbox local" in ran.stdout
    assert "apt install bubblewrap" in ran.stdout


async def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(UsageError, match="local, bubblewrap, docker") as error:
        await open_sandbox(SandboxSettings(backend="singularity"), interactive=False)
    assert "plug-ins" in error.value.hint
    assert unusable_reason("singularity") == "there is no sandbox 'singularity'"


def test_a_plug_in_is_found_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "moon.py").write_text(
        "async def open(settings, workspace): return f'on the moon, {workspace.fresh}'"
    )
    info = tmp_path / "moon-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moon\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hermes.sandboxes]\nmoon = moon:open\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    for backend, expected in (("moon", "on the moon, True"), ("mars", "local, bubblewrap, docker, moon")):
        ran = subprocess.run(
            [sys.executable, "-c", PLUGIN, backend], env=env, capture_output=True, text=True, check=True
        )
        assert expected in ran.stdout
    assert "moon" not in sandbox_names()


async def test_a_workspace_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(UsageError, match="not a directory"):
            await open_sandbox(SandboxSettings(backend="local"), interactive=True, workspace=path)


async def test_a_place_where_no_workspace_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(HostError, match="file"):
        await open_sandbox(SandboxSettings(backend="local"), interactive=True, workspaces=tmp_path / "file")


async def test_a_sandbox_that_cannot_be_opened_leaves_no_workspace(tmp_path: Path) -> None:
    if unusable_reason("docker") is None:
        pytest.skip("needs a machine without a container engine")
    with pytest.raises(SandboxError):
        await open_sandbox(SandboxSettings(backend="docker"), interactive=False, workspaces=tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_local_commands_do_not_get_variables_that_look_like_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-123456789")
    monkeypatch.setenv("DATABASE_URL", "postgres://user:password@host/db")
    monkeypatch.setenv("ORDINARY", "kept")
    sandbox = await open_sandbox(SandboxSettings(backend="local"), interactive=True)
    output = (await sandbox.run("env")).output
    await sandbox.close()
    assert "ORDINARY=kept" in output
    assert "sk-123456789" not in output
    assert "password@host" not in output


async def test_ordinary_files_do_not_pass_for_a_repository_that_runs_programs(
    local: Sandbox, tmp_path: Path
) -> None:
    files = {"HEAD": "ref: refs/heads/main\n", "refs/x": "", "objects/x": ""}
    files["config"] = (
        "[core]\nrepositoryformatversion = 0\nbare = false\nworktree = ..\n"
        f'fsmonitor = "touch {tmp_path}/ran; false"\n'
    )
    for name, text in files.items():
        await local.write_file(f"trap/{name}", text.encode())
    look = "cd trap && git status"
    ran = await local.run(look, env={"GIT_CONFIG_COUNT": "0"})
    assert (tmp_path / "ran").exists(), f"the trap itself does not work: {ran.output}"
    (tmp_path / "ran").unlink()
    await local.run(look)
    assert not (tmp_path / "ran").exists()


async def test_git_configuration_is_not_written_as_a_file(local: Sandbox) -> None:
    await local.run("git init -q .; mkdir sub; ln -s .git link")
    for path in (
        ".git/config",
        ".git/hooks/x",
        "sub/.git",
        "sub/../.GIT/config",
        "link/config",
        "sub/.git/config",
    ):
        with pytest.raises(PermissionError, match="git"):
            await local.write_file(path, b"[core]")
    await local.write_file(".gitignore", b"*")


def test_which_variables_are_left_out() -> None:
    kept = {"PATH": "/bin", "HOME": "/x", "KEYBOARD": "us", "PROXY": "http://proxy:8080"}
    left_out = {"A_TOKEN": "1", "github_token": "2", "DB_PASSWORD": "3", "X": "https://u:p@h/"}
    assert without_secrets(kept | left_out) == kept
