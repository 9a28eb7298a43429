"""The state of a folder's git repository, as a fact: its commit and everything that differs from it.

New files are part of the difference. Nothing in the repository changes, not even its object store.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from hermes.core import JSONObject

_MOST_CHARS = 1 << 20
_TIMEOUT_S = 60.0


def git_state(folder: Path) -> JSONObject | None:
    """None: the folder is in no repository, or git does not answer."""
    try:
        return _git_state(folder)
    except (OSError, subprocess.SubprocessError):
        return None


def _git_state(folder: Path) -> JSONObject | None:
    top = _git(folder, "rev-parse", "--show-toplevel").strip()
    git_dir = Path(_git(folder, "rev-parse", "--absolute-git-dir").strip())
    try:
        commit = _git(folder, "rev-parse", "--verify", "HEAD").strip()
    except subprocess.CalledProcessError:
        commit = ""  # no commit yet
    with tempfile.TemporaryDirectory(prefix="hermes-git-") as scratch:
        index = Path(scratch) / "index"
        if (git_dir / "index").exists():
            # with its time: git takes a file that is newer than the index for changed
            shutil.copy2(git_dir / "index", index)
        objects = Path(scratch) / "objects"
        objects.mkdir()
        variables = {
            "GIT_INDEX_FILE": str(index),
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": _git(folder, "rev-parse", "--git-path", "objects").strip(),
        }
        alternate = folder / variables["GIT_ALTERNATE_OBJECT_DIRECTORIES"]
        variables["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = str(alternate.resolve())
        _git(Path(top), "add", "--all", "--intent-to-add", **variables)
        diff = _git(
            Path(top), "diff", *([commit] if commit else []), "--no-color", "--no-ext-diff", **variables
        )
    state: JSONObject = {"commit": commit or None, "diff": diff[:_MOST_CHARS]}
    if len(diff) > _MOST_CHARS:
        state["diff_chars"] = len(diff)
    return state


def _git(folder: Path, *words: str, **variables: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", **variables},
        capture_output=True,
        check=True,
        timeout=_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.decode("utf-8", "replace")
