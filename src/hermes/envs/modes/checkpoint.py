"""An environment's state beside the trainer's checkpoints, written atomically.

The path is that of Atropos, `env_checkpoints/<registered name>/step-N.json`. Names are assigned in the order
of registration, so two environments of one name could read each other's state after a restart. Each file
therefore records its owner, and an environment reads the file that it owns.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from hermes.envs.groups import encode

_OWNER = "_hermes_owner"


def write(folder: str, name: str, step: int, data: dict[str, Any], owner: str) -> None:
    """Writes the file atomically: a reader sees the old file or the new one, even after a crash."""
    path = _path(folder, name, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(encode({**data, _OWNER: owner}))
            file.flush()
            os.fsync(file.fileno())
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def read(folder: str, name: str, step: int, owner: str) -> dict[str, Any]:
    """The data that this environment wrote at the step; empty if there is none.

    A file that records no owner, as Atropos writes it, is read by any environment.
    """
    path = _path(folder, name, step)
    same_name = path.parent.parent.glob(f"{name.rpartition('_')[0] or name}_*/{path.name}")
    for candidate in (path, *sorted(same_name)):
        if candidate.is_file():
            data: dict[str, Any] = json.loads(candidate.read_text(encoding="utf-8"))
            if data.pop(_OWNER, owner) == owner:
                return data
    return {}


def _path(folder: str, name: str, step: int) -> Path:
    return Path(folder) / "env_checkpoints" / name / f"step-{step}.json"
