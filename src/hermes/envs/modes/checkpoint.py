"""An environment's own state beside the trainer's checkpoints, replaced whole or not at all.

The file is where Atropos has it, `env_checkpoints/<registered name>/step-N.json`. Registered names are given
by order of arrival, so two environments of one name could find each other's state after a restart. Each file
therefore says whose it is, and an environment looks for its own.
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
    """A reader sees the old file or the new one, whatever happens to this process."""
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
    """What this environment kept at the step, if anything. A file that names no owner is anyone's."""
    own = _path(folder, name, step)
    others = own.parent.parent.glob(f"{name.rpartition('_')[0] or name}_*/{own.name}")
    for path in (own, *sorted(others)):
        if path.is_file():
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if data.pop(_OWNER, owner) == owner:
                return data
    return {}


def _path(folder: str, name: str, step: int) -> Path:
    return Path(folder) / "env_checkpoints" / name / f"step-{step}.json"
