"""Runs the blocks of a skill that are marked `run`, and its scripts with `--help`, on request only.

Where the pinned packages are not installed in this interpreter at their versions, a virtual environment is
made in the cache and kept. It stands on the packages of this interpreter (torch is not downloaded again); the
pinned ones, and what pip finds missing for them, come before those. A block runs in an empty folder with a
home of its own; it is not sandboxed: it is code of the skill, with this user's rights.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from hermes.config.environment import without_stored
from hermes.disk.files import ensure_dir
from hermes.sandbox.local import without_secrets
from hermes.skills.catalogue import skill_files
from hermes.skills.skill import PinnedPackage
from skills_check.blocks import CodeBlock
from skills_check.registry import same_version
from skills_check.report import Problem, SkillReport
from skills_check.skill_check import pages

RUN_TIMEOUT_S = 300
_INSTALL_TIMEOUT_S = 1800
_SHOWN_CHARS = 300


class ExecutionError(Exception):
    """An interpreter with the packages cannot be made; the text says why."""


def run_skill(report: SkillReport, cache: Path) -> None:
    """Executes what the skill marks, and adds failures to the report."""
    skill = report.skill
    scripts = [path for path in skill_files(skill) if path.startswith("scripts/") and path.endswith(".py")]
    for path in scripts:
        report.runs += 1
        command = [sys.executable, str(skill.directory / path), "--help"]
        if reason := _run(command, Path(sys.executable)):
            report.problems.append(Problem(path, 0, f"--help failed: {reason}"))
    blocks = [
        (page.blocks, block) for page in pages(skill) for block in page.blocks if block.run and not block.skip
    ]
    for siblings, block in blocks:
        try:
            python = interpreter(_needed(skill.packages, block), cache)
        except ExecutionError as error:
            report.unchecked.append(f"{block.file}:{block.line} cannot be run: {error}")
            continue
        report.runs += 1
        if reason := _run_block(block, siblings, python):
            report.problems.append(Problem(block.file, block.line, f"the block failed: {reason}"))


def _needed(packages: Sequence[PinnedPackage], block: CodeBlock) -> list[PinnedPackage]:
    """The packages of the skill that the block names in `run=`; all where it names none."""
    unknown = set(block.run_packages) - {package.name for package in packages}
    if unknown:
        raise ExecutionError(f"run= names {', '.join(sorted(unknown))}, which the skill does not pin")
    return [package for package in packages if not block.run_packages or package.name in block.run_packages]


def interpreter(packages: Sequence[PinnedPackage], cache: Path) -> Path:
    """A Python with the packages: this one, or one in the cache; raises `ExecutionError`."""
    if all(_is_installed(package) for package in packages):
        return Path(sys.executable)
    pins = [f"{package.name}=={package.version}" for package in packages]
    below = sysconfig.get_paths()["purelib"]
    digest = hashlib.sha256("\n".join([sys.version, below, *pins]).encode()).hexdigest()[:16]
    folder = cache / "environments" / digest
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if ready.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(ensure_dir(folder.parent) / digest, with_pip=importlib.util.find_spec("pip") is None)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "hermes_below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    try:
        _install(python, pins)
    except ExecutionError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    ready.touch()
    return python


def _install(python: Path, pins: Sequence[str]) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--only-binary=:all:", *pins]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ExecutionError(f"pip took more than {_INSTALL_TIMEOUT_S} s") from error
    if done.returncode:
        raise ExecutionError(f"pip cannot install {', '.join(pins)} ({_last_error(done.stderr)})")


def _is_installed(package: PinnedPackage) -> bool:
    try:
        return same_version(importlib.metadata.version(package.name), package.version)
    except importlib.metadata.PackageNotFoundError:
        return False


def _run_block(block: CodeBlock, siblings: Sequence[CodeBlock], python: Path) -> str | None:
    parts = [block.text]
    if block.continues:
        earlier = [sibling for sibling in siblings if sibling.run and sibling.line < block.line]
        parts = [sibling.text for sibling in earlier if sibling.language == block.language] + parts
    if block.language == "python":
        return _run([str(python), "-"], python, "\n".join(parts))
    if block.language == "bash":
        return _run(["bash", "-euo", "pipefail"], python, "\n".join(parts))
    return f"a {block.language} block cannot be run"


def _run(command: list[str], python: Path, text: str = "") -> str | None:
    """What went wrong, in one line; None: it exited with 0."""
    with tempfile.TemporaryDirectory(prefix="hermes-skill-") as folder:
        environ = {
            **without_secrets(without_stored(os.environ)),
            "HOME": folder,
            "HERMES_HOME": f"{folder}/.hermes",
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{python.parent}:{os.environ.get('PATH', '')}",
        }
        try:
            done = subprocess.run(
                command,
                input=text,
                cwd=folder,
                env=environ,
                capture_output=True,
                text=True,
                timeout=RUN_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it took more than {RUN_TIMEOUT_S} s"
    return (
        None if done.returncode == 0 else f"exit {done.returncode}: {_last_line(done.stderr or done.stdout)}"
    )


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip()[:_SHOWN_CHARS] if lines else "no message"


def _last_error(text: str) -> str:
    """The last line of pip's that names an error; hints and notices come after it."""
    errors = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR: ")]
    return _last_line(errors[-1] if errors else text)
