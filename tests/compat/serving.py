"""An environment that serves a trajectory API: its flags, and the groups that it wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BATCH = 4


def flags(port: int, base_url: str, **settings: Any) -> list[str]:
    wanted = {
        "rollout_server_url": f"http://127.0.0.1:{port}",
        "ensure_scores_are_not_same": False,
        **settings,
    }
    given = [f"--env.{name}={value}" for name, value in wanted.items()]
    return [*given, f"--openai.base_url={base_url}"]


def groups_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
