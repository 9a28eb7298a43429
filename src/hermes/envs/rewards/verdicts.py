"""Verdicts of a judge by their key, in memory and, with a path, in a file of JSON lines that the next run
reads.

A line that cannot be read, such as one that a crash cut short, is skipped: its verdict is requested again.
"""

from __future__ import annotations

import json
from pathlib import Path

from hermes.core import JSONObject
from hermes.disk.appendlog import AppendLog, read_lines


class Verdicts:
    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._verdicts: dict[str, JSONObject] = {}
        if path is not None and path.exists():
            self._verdicts = _read(path)

    def get(self, key: str) -> JSONObject | None:
        return self._verdicts.get(key)

    def put(self, key: str, verdict: JSONObject) -> None:
        self._verdicts[key] = verdict
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with AppendLog(self._path, fsync=False) as log:
            log.append([json.dumps({"key": key, "verdict": verdict})])


def _read(path: Path) -> dict[str, JSONObject]:
    verdicts: dict[str, JSONObject] = {}
    for line in read_lines(path):
        try:
            entry = json.loads(line)
            verdict = entry["verdict"]
            verdicts[str(entry["key"])] = {"score": float(verdict["score"]), "reason": str(verdict["reason"])}
        except (ValueError, KeyError, TypeError):
            continue
    return verdicts
