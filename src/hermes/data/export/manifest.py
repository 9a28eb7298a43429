"""The manifest beside an export: its settings, its counts, and the hashes of its files.

It has no times and no machine in it: the same export gives the same manifest. Paths are names in its folder.

A log in the home has a line for each file that was exported, so that a deletion can name the copies. It is a
help for people, not a promise: files that were moved or copied are not in it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from hermes import __version__
from hermes.core import JSONObject, clock, parse_object
from hermes.disk import appendlog
from hermes.disk.files import replacing
from hermes.errors import UsageError
from hermes.store import Filter, Reader
from hermes.store.query import ALL

VERSION = 1
MANIFEST_ENDING = ".manifest.json"
REMOVED_ENDING = ".removed.jsonl"


def path_for(output: Path) -> Path:
    """data.jsonl → data.manifest.json."""
    return output.with_name(f"{stem(output)}{MANIFEST_ENDING}")


def removed_path_for(output: Path) -> Path:
    """data.jsonl → data.removed.jsonl."""
    return output.with_name(f"{stem(output)}{REMOVED_ENDING}")


def stem(output: Path) -> str:
    return output.stem if output.suffix else output.name


def funnel(reader: Reader, filters: Filter) -> list[JSONObject]:
    """Each condition in turn: how many trajectories it leaves, and how many it removes."""
    remaining = reader.count(ALL)
    stages: list[JSONObject] = [{"filter": "in the store", "kept": remaining}]
    conditions: JSONObject = {}
    for name, value in asdict(filters).items():
        if value is None:
            continue
        conditions[name] = value
        left = reader.count(Filter(**conditions))
        listed = list(value) if isinstance(value, tuple) else value
        stages.append({"filter": name, "value": listed, "kept": left, "removed": remaining - left})
        remaining = left
    return stages


def write(path: Path, facts: JSONObject) -> None:
    with replacing(path) as file:
        whole = {"manifest_version": VERSION, "hermes": __version__, **facts}
        file.write(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")


def read(path: Path) -> JSONObject:
    try:
        manifest: JSONObject = parse_object(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"there is no export: {path} does not exist", "name the --output that it was written with"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the manifest {path}: {error}", "export again") from error
    return manifest


def delete_export(output: Path) -> list[Path]:
    """Deletes the files of an export, named by its output: data, list of what was left out, manifest."""
    path = path_for(output)
    names = [path.parent / entry["name"] for entry in read(path)["files"]]
    deleted = [file for file in (*names, removed_path_for(output), path) if file.exists()]
    for file in deleted:
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    return deleted


_NAME = "exports.jsonl"
_TEXT = (".jsonl", ".json", ".csv", ".txt")


def log_export(home: Path, files: Iterable[Path]) -> None:
    """Notes the files of one export."""
    now_ms = clock.now_ms()
    lines = [json.dumps({"path": str(path.resolve()), "at_ms": now_ms}) for path in files]
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with appendlog.AppendLog(home / _NAME) as log:
        log.append(lines)


def logged_files(home: Path) -> list[Path]:
    """Every file that was exported, also one that exists no more; the newest last."""
    path = home / _NAME
    if not path.exists():
        return []
    names = [json.loads(line)["path"] for line in appendlog.read_lines(path)]
    return [Path(name) for name in reversed(dict.fromkeys(reversed(names)))]


def exports_with(home: Path, ids: Sequence[str]) -> list[str]:
    """The logged files that still exist and may have one of these trajectories."""
    encoded_ids = [name.encode() for name in ids]
    return [str(path) for path in logged_files(home) if _may_contain(path, encoded_ids)]


def _may_contain(path: Path, ids: Sequence[bytes]) -> bool:
    if not path.is_file():
        return False
    if path.suffix not in _TEXT:
        return True
    with path.open("rb") as file:
        return any(name in line for line in file for name in ids)
