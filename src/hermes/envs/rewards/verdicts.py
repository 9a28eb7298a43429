"""Verdicts that were already given, in memory and, with a path, in a file that the next run reads again.

One JSON line a verdict, appended whole; a last line that a crash cut short is passed over.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from hermes.core import JSONObject


class Verdicts:
    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, JSONObject] = {}
        if path is not None and path.exists():
            self._known = dict(_read(path))

    def get(self, key: str) -> JSONObject | None:
        return self._known.get(key)

    def put(self, key: str, verdict: JSONObject) -> None:
        self._known[key] = verdict
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # One write to a file opened for appending, led by a newline: a line cut short stays alone.
        line = "\n" + json.dumps({"key": key, "verdict": verdict}, ensure_ascii=True)
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


def _read(path: Path) -> list[tuple[str, JSONObject]]:
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
            found.append(
                (
                    str(entry["key"]),
                    {"score": float(entry["verdict"]["score"]), "reason": str(entry["verdict"]["reason"])},
                )
            )
        except (ValueError, KeyError, TypeError):
            continue
    return found
