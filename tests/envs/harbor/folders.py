"""Harbor task folders for tests, written to disk as their authors write them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hermes.disk.filelock import FileLock

DOCKERFILE = "FROM debian:bookworm-slim\nWORKDIR /app\n"
TEST = """
if [ "$(cat /app/answer.txt 2> /dev/null)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
SOLUTION = "#!/bin/bash\necho 42 > /app/answer.txt\n"
TOML = 'version = "1.0"\n[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 60.0\n'


def write_task(
    folder: Path,
    *,
    toml: str = TOML,
    instruction: str = "Write 42 to answer.txt.\n",
    dockerfile: str | None = DOCKERFILE,
    test: str = TEST,
    solution: str | None = SOLUTION,
    files: Mapping[str, str] | None = None,
) -> Path:
    """A task that is solved by writing 42 to /app/answer.txt, unless the arguments say otherwise."""
    contents = {"task.toml": toml, "instruction.md": instruction, "tests/test.sh": test, **(files or {})}
    if dockerfile is not None:
        contents["environment/Dockerfile"] = dockerfile
    if solution is not None:
        contents["solution/solve.sh"] = solution
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@contextmanager
def alone_with_the_engine() -> Iterator[None]:
    """No other test process cleans the container engine meanwhile: a machine has one store for all."""
    with FileLock(Path(tempfile.gettempdir()) / "hermes-test-engine.lock"):
        yield


@contextmanager
def cleaning_process(clean: str, home: Path) -> Iterator[None]:
    """Another process cleans meanwhile, without a pause; `clean` imports it by this name."""
    code = f"import pathlib, sys\n{clean}\nwhile True: clean(pathlib.Path(sys.argv[1]))"
    with subprocess.Popen([sys.executable, "-c", code, str(home)]) as process:
        try:
            yield
            assert process.poll() is None, "it cleaned until the end"
        finally:
            process.kill()
