"""Commands that fill the workspace in several ways are ended; deleting goes on, and then writing too."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.config.settings import SandboxSettings
from hermes.sandbox import open_sandbox
from tests.sandbox.conftest import need

_LARGE = """
import itertools
for number in itertools.count():
    with open(f"f{number}", "wb") as file: file.write(bytes(1 << 20))
"""
_EMPTY = """
import itertools, os
for number in itertools.count():
    if number % 1000 == 0: os.mkdir(f"d{number // 1000}")
    open(f"d{number // 1000}/{number}", "w").close()
"""
_HOLES = """
import itertools, mmap
for number in itertools.count():
    with open(f"f{number}", "w+b") as file:
        file.truncate(1 << 24)
        with mmap.mmap(file.fileno(), 0) as room:
            for at in range(0, 1 << 24, 4096): room[at] = 1
"""
_HIDDEN = """
import itertools, os
os.mkdir("h"); os.chdir("h"); os.chmod(".", 0o300)
for number in itertools.count():
    with open(f"f{number}", "wb") as file: file.write(bytes(1 << 20))
"""
_DEEP = """
import itertools, os
for level in range(60): os.mkdir("d" * 200); os.chdir("d" * 200)
for number in itertools.count():
    with open(f"f{number}", "wb") as file: file.write(bytes(1 << 20))
"""
FILLS = {"large files": _LARGE, "empty files": _EMPTY, "holes": _HOLES, "hidden": _HIDDEN, "deep": _DEEP}
SETTINGS = {"bubblewrap": SandboxSettings(backend="bubblewrap", disk_mb=50)}
SETTINGS["docker"] = SETTINGS["bubblewrap"].model_copy(update={"backend": "docker"})
pytestmark = pytest.mark.timeout(300)
LIMIT = "the workspace has reached its limit of 50 MB"


@pytest.mark.parametrize("backend", SETTINGS)
@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
async def test_no_way_of_filling_the_workspace_goes_on(fill: str, backend: str) -> None:
    need(backend)
    sandbox = await open_sandbox(SETTINGS[backend], interactive=False)
    try:
        await sandbox.write_file("fill.py", fill.encode())
        result = await sandbox.run("python3 -I fill.py", timeout_s=240)
        assert not result.timed_out and result.exit_code != 0
        assert LIMIT in result.output
        result = await sandbox.run("echo more > more && cat more")
        assert LIMIT in result.output and not result.output.startswith("more")
        await sandbox.run("chmod -R u+rwx . && find . -mindepth 1 -delete", timeout_s=240)
        assert (await sandbox.run("echo more > more && cat more")).output == "more\n"
    finally:
        await sandbox.close()


async def test_a_background_command_is_ended_too() -> None:
    need("bubblewrap")
    sandbox = await open_sandbox(SETTINGS["bubblewrap"], interactive=False)
    try:
        await sandbox.write_file("fill.py", _LARGE.encode())
        filling = await sandbox.start("python3 -I fill.py")
        assert await filling.wait(240) not in (None, 0)
    finally:
        await sandbox.close()


async def test_what_takes_no_space_is_not_counted_and_a_given_workspace_has_no_limit(tmp_path: Path) -> None:
    need("bubblewrap")
    sparse = await open_sandbox(SETTINGS["bubblewrap"], interactive=False)
    own = await open_sandbox(SETTINGS["bubblewrap"], interactive=False, workspace=tmp_path)
    try:
        assert (await sparse.run("truncate -s 1G hole; sleep 2; echo more > more")).exit_code == 0
        assert (await own.run("head -c 80M /dev/zero > f; sleep 2; echo more > more")).exit_code == 0
    finally:
        await sparse.close()
        await own.close()
