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
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import hermes
from hermes.disk.files import atomic_write, read_text
from hermes.errors import HermesError

logger = logging.getLogger(__name__)

NAME = "machines.jsonl"
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


def this_machine() -> MachineCard:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} logical processors"
    return MachineCard(hermes.__version__, platform.python_version(), system, versions)


def read_machines(folder: Path) -> list[MachineCard]:
    """The cards of the run in that folder, in the order of its starts; empty: it was not recorded."""
    path = folder / NAME
    try:
        return [MachineCard(**json.loads(line)) for line in (read_text(path) or "").splitlines()]
    except (ValueError, TypeError) as error:
        raise HermesError(
            f"{path} is damaged: {error}", "Move it aside; the next start writes it anew."
        ) from error


def record_machine(folder: Path) -> None:
    """Adds this machine's card to the run's file, unless it is the last one there."""
    try:
        cards = read_machines(folder)
        if not cards or cards[-1] != this_machine():
            lines = [json.dumps(asdict(card)) for card in (*cards, this_machine())]
            atomic_write(folder / NAME, "".join(f"{line}\n" for line in lines))
    except HermesError as error:
        logger.warning("%s", error.message)
