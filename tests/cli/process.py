"""Runs the real `hermes` command as a user would, with a home and an environment of its own."""

from __future__ import annotations

import os
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
    """The two lines of an expected failure: what and where, and what to do."""
    assert done.returncode == exit_code, (done.stdout, done.stderr)
    assert done.stdout == ""
    error, fix = done.stderr.strip().split("\n")
    return error.removeprefix("error: "), fix.removeprefix("  fix: ")
