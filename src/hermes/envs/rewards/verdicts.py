"""A cache of verdicts in memory and, with a path, in a file that the next run reads.

The file has one JSON line per verdict, appended in one write; a line that a crash cut short is skipped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from hermes.core import JSONObject


class Verdicts:
    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._verdicts: dict[str, JSONObject] = {}
        if path is not None and path.exists():
            self._verdicts = dict(_read(path))

    def get(self, key: str) -> JSONObject | None:
        return self._verdicts.get(key)

    def put(self, key: str, verdict: JSONObject) -> None:
        self._verdicts[key] = verdict
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # One append that begins with a newline, so that a torn line before it does not spoil this one.
        line = "\n" + json.dumps({"key": key, "verdict": verdict}, ensure_ascii=True)
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


def _read(path: Path) -> list[tuple[str, JSONObject]]:
    verdicts = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
            verdicts.append(
                (
                    str(entry["key"]),
                    {"score": float(entry["verdict"]["score"]), "reason": str(entry["verdict"]["reason"])},
                )
            )
        except (ValueError, KeyError, TypeError):
            continue
    return verdicts
