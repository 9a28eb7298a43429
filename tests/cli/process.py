"""Runs the real `hermes` command as a user would, with a home and an environment of its own."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.cli import warm

PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR")


def hermes(
    home: Path,
    *arguments: str,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Standard output and error are captured apart; no key of the caller's environment gets in."""
    environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environ |= {"HERMES_HOME": str(home), **(env or {})}
    done = warm.run(arguments, environ, stdin, timeout_s)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def failure(done: subprocess.CompletedProcess[str], exit_code: int) -> tuple[str, str]:
    """The two lines of an expected failure: what and where, and what to do.

    Signs of life before them, which a slow machine shows, are left out.
    """
    assert done.returncode == exit_code, (done.stdout, done.stderr)
    assert done.stdout == ""
    lines = [line for line in done.stderr.strip().split("\n") if not re.fullmatch(r"\(.* … \d+ s\)", line)]
    error, fix = lines
    return error.removeprefix("error: "), fix.removeprefix("  fix: ")
