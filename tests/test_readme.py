"""The README's commands, run as they stand: it cannot rot."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """Every line of every `sh` block; the clone and make are what runs this test."""
    lines = [line for block in _BLOCK.findall(README.read_text("utf-8")) for line in block.splitlines()]
    return [line for line in lines if line.strip() and not line.startswith(("git clone ", "make "))]


@pytest.mark.timeout(420)
def test_every_command_of_the_readme_works(tmp_path: Path, bundled_home: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(bundled_home / "models")
    venv_bin = str(Path(sys.executable).parent)
    environ = {
        "HERMES_HOME": str(home),
        "HOME": str(tmp_path),
        "PATH": f"{venv_bin}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
    }
    lines = commands()
    assert len(lines) > 10
    for command in lines:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environ, capture_output=True, text=True
        )
        # The small model may fumble (exit 1 with a typed outcome), but nothing may break.
        assert "Traceback" not in done.stderr, (command, done.stderr)
        assert done.returncode == 0 or command.startswith("hermes -q"), (command, done.stdout, done.stderr)
        assert done.stdout.strip() or command.startswith("printf"), command
    assert len((tmp_path / "data/first/trajectories.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "sharegpt.jsonl").read_text()
    assert len((tmp_path / "liked.jsonl").read_text().splitlines()) == 1


def test_every_page_the_readme_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text("utf-8"))
    assert links
    for link in links:
        assert (README.parent / link).exists(), link
