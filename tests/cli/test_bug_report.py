"""`hermes bug-report` as a user runs it after a command has failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.process import hermes

KEY = "lab-key-0123456789"
FAILING = """
import sys
from hermes.cli import main
from hermes.config import load

def broken(*arguments, **options):
    raise ZeroDivisionError("while talking to http://lab with the key {key}")

load.load, keep = broken, load.load
sys.argv = ["hermes", "config", "show"]
try:
    main.main()
finally:
    load.load = keep
"""


def test_the_report_has_versions_settings_and_the_last_failure_but_no_secret(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"OPENROUTER_API_KEY={KEY}\n")
    (tmp_path / ".env").chmod(0o600)
    (tmp_path / "config.yaml").write_text("limits:\n  max_turns: 7\n")
    script = FAILING.replace("{key}", KEY)
    environ = {**os.environ, "HERMES_HOME": str(tmp_path), "OPENROUTER_API_KEY": KEY}
    failed = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True)
    assert failed.returncode == 1 and "ZeroDivisionError" in failed.stderr
    assert "hermes bug-report" in failed.stderr
    assert (tmp_path / "last-failure.txt").stat().st_mode & 0o077 == 0

    done = hermes(tmp_path, "bug-report", "--output", str(tmp_path / "report.md"))
    assert done.returncode == 0 and "Read it before you send it" in done.stdout
    report = (tmp_path / "report.md").read_text()
    assert "hermes, version" in report and "limits.max_turns = 7" in report and "ZeroDivisionError" in report
    assert "set (from" in report, "variables are named, their values are not shown"
    assert KEY not in report and KEY not in (tmp_path / "last-failure.txt").read_text()


def test_a_broken_configuration_and_no_failure_make_a_report_too(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("max_turns: [\n")
    done = hermes(tmp_path, "bug-report", "--output", "-")
    assert done.returncode == 0
    assert "unreadable: " in done.stdout and "none recorded" in done.stdout
