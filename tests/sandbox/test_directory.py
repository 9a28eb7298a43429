from __future__ import annotations

import pytest

from hermes.errors import SandboxError
from hermes.sandbox.base import Sandbox
from hermes.sandbox.directory import work_in


async def test_a_relative_directory_is_made_and_everything_is_relative_to_it(sandbox: Sandbox) -> None:
    await sandbox.write_file("top.txt", b"top")
    inside = await work_in(sandbox, "a dir/below")
    assert inside.workspace == f"{sandbox.workspace}/a dir/below"
    assert (inside.backend, inside.isolated) == (sandbox.backend, sandbox.isolated)
    await inside.write_file("sub/file.txt", b"here")
    assert await inside.read_file("sub/file.txt") == b"here"
    assert await sandbox.read_file("a dir/below/sub/file.txt") == b"here"
    assert await inside.read_file(f"{sandbox.workspace}/top.txt") == b"top"
    assert (await inside.run("pwd; cat ../../top.txt")).output == f"{inside.workspace}\ntop"
    assert (await inside.run("cat file.txt", cwd="sub")).output == "here"
    assert (await inside.run("cat top.txt", cwd=sandbox.workspace)).output == "top"


async def test_a_background_command_starts_in_the_directory_too(sandbox: Sandbox) -> None:
    inside = await work_in(sandbox, "place")
    process = await inside.start("pwd")
    assert await process.wait(30) == 0
    assert process.output().strip() == inside.workspace


async def test_an_absolute_directory_must_exist(sandbox: Sandbox) -> None:
    inside = await work_in(sandbox, "/usr/bin")
    assert (await inside.run("pwd")).output == "/usr/bin\n"
    assert inside.workspace == "/usr/bin"
    with pytest.raises(SandboxError, match="'/no/such/place' of the sandbox: there is no such directory"):
        await work_in(sandbox, "/no/such/place")


async def test_a_file_in_the_way_is_an_error_that_says_so(sandbox: Sandbox) -> None:
    await sandbox.write_file("taken", b"")
    with pytest.raises(SandboxError, match="'taken' of the sandbox"):
        await work_in(sandbox, "taken")
