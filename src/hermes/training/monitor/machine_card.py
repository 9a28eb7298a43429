"""Records in `machines.jsonl` which machine and which software trained a run.

A line is appended when a trainer starts on another machine, or with other versions, than the line before it
says. The card is that of the trainer's process: where the weights are at a service, the service's machine is
not in it. A file that cannot be written (a full disk) is logged and does not stop the run.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import hermes
from hermes.core import parse_object
from hermes.disk.files import atomic_write, read_text
from hermes.errors import HermesError

logger = logging.getLogger(__name__)

NAME = "machines.jsonl"
_DISTRIBUTION = "hermes-research"
_GIT_S = 10.0
_PACKAGES = ("torch", "transformers", "tinker", "safetensors", "numpy", "peft", "trl")


@dataclass(frozen=True, slots=True)
class MachineCard:
    """The machine and the versions that a process runs with."""

    hermes: str
    python: str
    system: str
    """Operating system, processor, number of logical processors."""
    packages: Mapping[str, str]
    """Package → version, of those that decide what training computes; absent ones are left out."""
    commit: str | None = None
    """The commit of the source code, with `-dirty` if it was changed; None: not installed from Git."""


def this_machine() -> MachineCard:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} logical processors"
    return MachineCard(hermes.__version__, platform.python_version(), system, versions, source_commit())


def source_commit() -> str | None:
    """The commit of a checkout, or of an installation by `pip install git+…`."""
    folder = Path(hermes.__file__).parent
    if _git(folder, "ls-files", "__init__.py"):  # else it only lies within another project's checkout
        return _git(folder, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    try:
        text = importlib.metadata.distribution(_DISTRIBUTION).read_text("direct_url.json")
        source = parse_object(text or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    commit: str | None = source.get("vcs_info", {}).get("commit_id")
    return commit


def _git(folder: Path, *arguments: str) -> str | None:
    """The text that Git prints; None: there is no Git, or the folder is in no repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def read_machines(folder: Path) -> list[MachineCard]:
    """The cards of the run in that folder, in the order of its starts; empty: it was not recorded."""
    path = folder / NAME
    try:
        return [MachineCard(**parse_object(line)) for line in (read_text(path) or "").splitlines()]
    except (ValueError, TypeError) as error:
        raise HermesError(
            f"{path} is damaged: {error}", "Move it aside; the next start writes it anew."
        ) from error


def record_machine(folder: Path) -> None:
    """Adds this machine's card to the run's file, unless it is the last one there."""
    try:
        cards, card = read_machines(folder), this_machine()
        if not cards or cards[-1] != card:
            lines = [json.dumps(asdict(entry)) for entry in (*cards, card)]
            atomic_write(folder / NAME, "".join(f"{line}\n" for line in lines))
    except HermesError as error:
        logger.warning("%s", error.message)
