"""The Triton kernels against the plain path, by Triton's interpreter: it needs the package, not a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")
@pytest.mark.parametrize("check", ["hidden", "blocks", "draw", "invariant", "copy", "dequantize", "lora"])
def test_a_kernel_gives_what_the_plain_path_gives(check: str) -> None:
    environ = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.engine.interpreted", check]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
