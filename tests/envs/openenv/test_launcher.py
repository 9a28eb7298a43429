"""The process that serves a package imports its folder as authors import it, and ends with its parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from hermes.envs.openenv import launcher

APP = """
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
{imported}
print("what a package prints is no port")
app = Starlette(routes=[Route("/", lambda request: PlainTextResponse(WORD))])
"""


@pytest.mark.parametrize("imported", ["from models import WORD", "from ..models import WORD"])
def test_a_folder_is_served_until_the_input_ends(tmp_path: Path, imported: str) -> None:
    folder = tmp_path / "some_env"
    (folder / "server").mkdir(parents=True)
    (folder / "models.py").write_text("WORD = 'here'\n")
    (folder / "server" / "app.py").write_text(APP.format(imported=imported))
    command = [sys.executable, str(launcher.__file__), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        port = int(process.stdout.readline())
        with urlopen(f"http://127.0.0.1:{port}/", timeout=60) as reply:
            assert reply.read() == b"here"
        process.stdin.close()  # as the system does when the parent is killed
        assert process.wait(60) == 0
