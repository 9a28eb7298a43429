"""The process that serves a package imports its folder as authors import it, and ends with its parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from hermes.envs.openenv import launcher
from tests.waiting import wait_until

APP = """
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
{imported}
print("what a package prints is no sign")
app = Starlette(routes=[Route("/", lambda request: PlainTextResponse(WORD))])
"""


@pytest.mark.parametrize("imported", ["from models import WORD", "from ..models import WORD"])
def test_a_folder_is_served_until_the_input_ends(tmp_path: Path, imported: str) -> None:
    folder = tmp_path / "some_env"
    (folder / "server").mkdir(parents=True)
    (folder / "models.py").write_text("WORD = 'here'\n")
    (folder / "server" / "app.py").write_text(APP.format(imported=imported))
    socket_path = tmp_path / "socket"
    command = [sys.executable, str(launcher.__file__), str(folder), str(socket_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "imported\n"
        wait_until(socket_path.exists)
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(socket_path), retries=5)) as client:
            assert client.get("http://localhost/").text == "here"
        process.stdin.close()  # as the system does when the parent is killed
        assert process.wait(60) == 0
