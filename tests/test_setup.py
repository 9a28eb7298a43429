"""The set-up script as a newcomer meets it: one line a stage, and what to do where one fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def set_up(venv: Path, python: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "scripts/setup.sh", str(venv), python],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(venv.parent), **environ},
        capture_output=True,
        text=True,
    )


def old_python(folder: Path) -> str:
    """A real interpreter that says it is 3.9, as a version manager's wrapper does."""
    wrapper = folder / "python3.9"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 && exit\n'
        f'exec {sys.executable} -c "import sys; sys.version_info = (3, 9, 2); $2"\n'
    )
    wrapper.chmod(0o700)
    return str(wrapper)


def test_a_python_that_is_missing_or_too_old_is_named_before_anything_is_made(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    missing = set_up(venv, "python-of-nowhere")
    assert missing.returncode == 1 and "there is no program 'python-of-nowhere'" in missing.stderr
    old = set_up(venv, old_python(tmp_path))
    assert old.returncode == 1 and "is Python 3.9.2; Python 3.11 or later is needed" in old.stderr
    assert "make setup PYTHON=" in missing.stderr and "make setup PYTHON=" in old.stderr
    assert not venv.exists()


@pytest.mark.timeout(120)
def test_a_stage_that_fails_shows_the_end_of_the_log_and_where_it_is(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    done = set_up(venv, sys.executable, PIP_NO_INDEX="1", PIP_CONFIG_FILE="/dev/null")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].endswith(f"details: {venv}/setup.log")
    assert lines[1].startswith("[1/4] virtual environment with Python 3.") and lines[1].endswith(" s")
    assert lines[2].startswith("[2/4] PyTorch 2.13.0") and "failed after" in lines[2]
    assert len(lines) == 3, "one line a stage"
    assert "ERROR: " in done.stderr and "torch==2.13.0" in done.stderr
    assert f"stopped at stage 2 of 4; the whole log is {venv}/setup.log" in done.stderr
    assert "then run the same command: it continues" in done.stderr
    assert "=== PyTorch" in (venv / "setup.log").read_text()
