"""The engine's core stands on torch, transformers, safetensors and numpy alone."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.tiny import tiny_model

ROOT = Path(__file__).parents[2]
CORE = ("torch", "transformers", "huggingface_hub", "safetensors", "numpy", "triton")
"""huggingface_hub comes with transformers."""
OURS = ("hermes.engine", "hermes.errors", "hermes.core", "hermes.disk", "hermes.models.tokens")
SERVING = ("server", "replicas")
"""The folders that put the core on a port and into several processes; they are not part of it."""
PROCESSES = ("tensor_parallel/follower.py",)
"""Modules that the core starts as processes of their own."""


def imports(path: Path) -> Iterator[str]:
    """Everything a module imports, at its head and inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_the_core_imports_nothing_but_what_the_bench_may_need() -> None:
    others: dict[str, set[str]] = {}
    engine = ROOT / "src" / "hermes" / "engine"
    for path in sorted(engine.rglob("*.py")):
        relative = path.relative_to(engine)
        if relative.parts[0] in SERVING or relative.as_posix() in PROCESSES:
            continue
        for name in imports(path):
            core = name.split(".")[0] in {*CORE, *sys.stdlib_module_names}
            served = name.startswith(tuple(f"hermes.engine.{folder}" for folder in SERVING))
            if not core and (served or not name.startswith(OURS)):
                others.setdefault(relative.as_posix(), set()).add(name)
    assert others == {}


@pytest.mark.slow
def test_the_bench_runs_with_torch_transformers_and_safetensors_alone(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    command = [sys.executable, "-m", "tests.engine.bare", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert {"peft", "starlette", "tinker", "uvicorn", "openai", "trl", "pytest"} <= set(found["hidden"])
    assert all(name.startswith(OURS) for name in found["loaded"] if name != "hermes.models")
    report = found["report"]
    assert len(report["engine"]) == 5
    assert min(figure["per_s"] for figure in report["engine"]) > 0
