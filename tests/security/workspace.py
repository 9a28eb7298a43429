"""A home with secrets, and a project in it that tries to lead out of itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

CANARY = "canary-9f3b1c"
"""In every file that no unasked command may show."""


def git(folder: Path, *arguments: str) -> None:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    subprocess.run(["git", *arguments], cwd=folder, env=environ, check=True, capture_output=True)


def make_project(home: Path) -> Path:
    """The project; everything around it holds the canary."""
    project = home / "project"
    (project / "src").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "README.md", "src/main.py", "data.csv", "f"):
        (project / name).write_text("plain text 1\n")
    (project / "package.json").write_text('{"name": "x"}\n')
    for name in (".ssh/id_rsa", ".bashrc", ".hermes/.env", ".hermes/config.yaml", "notes.txt", "x"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"{CANARY}\n")
    (project / ".env").write_text(f"TOKEN={CANARY}\n")
    (project / "server.key").write_text(f"{CANARY}\n")
    (project / "link").symlink_to(home / "notes.txt")
    (project / "out").symlink_to(home / ".ssh")
    (project / "loop").symlink_to("loop")
    (project / "linked").mkdir()
    (project / "linked/inner").symlink_to(home / "notes.txt")
    (project / "dashes").mkdir()
    (project / "dashes/-f").write_text("plain\n")
    (project / ".venv/bin").mkdir(parents=True)
    for program in ("pip", "ls"):
        path = project / ".venv/bin" / program
        path.write_text(f"#!/bin/sh\ntouch {project}/ran\n")
        path.chmod(0o755)
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "a.txt", "src")
    git(project, "commit", "-q", "-m", "first")
    return project
