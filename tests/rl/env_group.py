"""`hermes env serve --replicas 2` of a file whose processes wait until a test ends them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WAITING_ENV = """
import os, pathlib, sys, time
folder = pathlib.Path({folder!r})
(folder / f"pid-{{os.getpid()}}").write_text(os.environ["_HERMES_ENV_REPLICA"])
while not (folder / "done").exists():
    time.sleep(0.05)
sys.exit(int((folder / "done").read_text()))
"""
"""Not an environment yet: its import waits, so that nothing but the processes themselves is tested."""


class Served:
    """`hermes env serve --replicas 2` of a file whose processes wait until they are told how to end."""

    def __init__(self, folder: Path, *options: str, **variables: str) -> None:
        self.folder = folder
        file = folder / "waiting.py"
        file.write_text(WAITING_ENV.format(folder=str(folder)))
        self.output = folder / "output"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hermes", "env", "serve", "--replicas", "2", *options, str(file)],
                env={**os.environ, "HERMES_HOME": str(folder / "home"), **variables},
                stderr=output,
                start_new_session=True,
            )

    def pids(self) -> dict[int, str]:
        """Of the replicas that have begun so far, with the number of each."""
        files = self.folder.glob("pid-*")
        texts = {int(path.name[4:]): path.read_text() for path in files}
        return {pid: text for pid, text in texts.items() if text}

    def text(self) -> str:
        return self.output.read_text()

    def end(self, code: int) -> int:
        draft = self.folder / "draft"
        draft.write_text(str(code))
        draft.rename(self.folder / "done")
        return self.process.wait(150)
