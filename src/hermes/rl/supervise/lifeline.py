"""Runs `hermes` for a parent that may be killed: the process and all that it started end with the parent.

    python -P -m hermes.rl.supervise.lifeline env serve calculator

Standard input is the lifeline: a pipe that only the parent holds open, and that closes however the parent
ends. The process has to lead a process group of its own.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from pathlib import Path


def main() -> None:
    lifeline = os.dup(0)
    with Path(os.devnull).open("rb") as null:
        os.dup2(null.fileno(), 0)
    threading.Thread(target=_end_with_parent, args=(lifeline,), name="hermes-lifeline", daemon=True).start()
    sys.argv[0] = "hermes"
    runpy.run_module("hermes", run_name="__main__")


def _end_with_parent(lifeline: int) -> None:
    while os.read(lifeline, 1):
        """Nothing is sent; bytes are no end."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
