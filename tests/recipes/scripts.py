"""The scripts of the recipes, as a person starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RECIPES = Path(__file__).parents[2] / "recipes"


SYSTEM = ("PATH", "HOME", "LANG", "TMPDIR")


def script(home: Path, name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {key: os.environ[key] for key in SYSTEM if key in os.environ}
    return subprocess.run(
        [sys.executable, str(RECIPES / name), *arguments],
        env={**environ, "HERMES_HOME": str(home), **variables},
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
