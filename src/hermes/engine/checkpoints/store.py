"""Named checkpoints on disk.

    <root>/<run>/run.json
    <root>/<run>/weights | sampler_weights | external_weights/<name>/checkpoint.json and the files

A ':' in the id of a run or the name of a checkpoint is '~' in its folder's name (`stored_folder`).
A checkpoint exists completely or not at all: it is written to a temporary folder, flushed, and renamed. One
that replaces another first moves the old one aside, which is restored at the next start if the process dies
in between. The index is read once, at the start, and a root is locked by one process at a time. Methods may
be called from any thread. This module does not interpret the files of a checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hermes.disk.filelock import FileLock
from hermes.disk.files import make_private_dirs, stored_folder, sync_path
from hermes.engine.types import EngineUserError, LoraConfig
from hermes.errors import HostError

WEIGHTS, SAMPLER_WEIGHTS, EXTERNAL_WEIGHTS = "weights", "sampler_weights", "external_weights"
KINDS = (WEIGHTS, SAMPLER_WEIGHTS, EXTERNAL_WEIGHTS)
MIN_TTL_S, MAX_TTL_S = 3600, 10 * 366 * 86400

_SCHEME = "tinker://"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:=+@,-]{0,199}")
_RECORD, _RUN = "checkpoint.json", "run.json"
_logger = logging.getLogger(__name__)


class CheckpointPath(NamedTuple):
    run_id: str
    kind: str
    name: str

    @classmethod
    def parse(cls, text: str) -> CheckpointPath:
        """EngineUserError: not of the form tinker://<run>/<kind>/<name>."""
        parts = text.removeprefix(_SCHEME).split("/")
        if not text.startswith(_SCHEME) or len(parts) != 3 or parts[1] not in KINDS:
            form = f"{_SCHEME}<run>/<{'|'.join(KINDS)}>/<name>"
            raise EngineUserError(f"'{text}' is not a checkpoint", f"write {form}")
        return cls(*parts)

    def __str__(self) -> str:
        return f"{_SCHEME}{self.run_id}/{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The training run of one adapter."""

    id: str
    session_id: str
    base_model: str
    lora: LoraConfig
    created_s: float
    user_metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: CheckpointPath
    created_s: float
    size_bytes: int
    files: tuple[str, ...]
    public: bool = False
    user_metadata: Mapping[str, str] | None = None
    expires_s: float | None = None
    """None: never."""


class CheckpointStore:
    """The checkpoints under `root`. HostError: it cannot be used, or another process has locked it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.RLock()
        self._runs: dict[str, TrainingRun] = {}
        self._checkpoints: dict[CheckpointPath, Checkpoint] = {}
        try:
            make_private_dirs(root)
            self._root_lock = lock_root(root)
            recover(root)
            for folder in sorted(path for path in root.iterdir() if (path / _RUN).is_file()):
                try:
                    self._read_run(folder)
                except (ValueError, KeyError, TypeError) as error:
                    _logger.warning("%s is not a training run and was ignored: %s", folder, error)
        except OSError as error:
            message = f"the checkpoints in {root} cannot be used: {error.strerror or error}"
            raise HostError(message, "choose another --state-dir") from error
        for checkpoint in self.expired(time.time()):
            self.delete(checkpoint)

    def close(self) -> None:
        self._root_lock.release()

    def runs(self) -> list[TrainingRun]:
        """Newest first."""
        with self._lock:
            return sorted(self._runs.values(), key=lambda run: run.created_s, reverse=True)

    def run(self, run_id: str) -> TrainingRun | None:
        with self._lock:
            return self._runs.get(run_id)

    def add_run(self, run: TrainingRun) -> None:
        """EngineUserError: the run's id is not safe in a path."""
        check_name(run.id)
        with self._lock:
            folder = stored_folder(self.root, run.id)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / _RUN, dataclasses.asdict(run))
            self._runs[run.id] = run

    def drop_run(self, run_id: str) -> None:
        """Deletes the run with all its checkpoints."""
        check_name(run_id)
        removed = self.root / f".{os.urandom(6).hex()}.part"
        with self._lock:
            with contextlib.suppress(FileNotFoundError):
                stored_folder(self.root, run_id).rename(removed)
            self._runs.pop(run_id, None)
            for path in [path for path in self._checkpoints if path.run_id == run_id]:
                del self._checkpoints[path]
        shutil.rmtree(removed, ignore_errors=True)

    def checkpoints(self, run_id: str | None = None) -> list[Checkpoint]:
        """Those of one run or of all, newest first, without expired ones."""
        now_s = time.time()
        with self._lock:
            checkpoints = list(self._checkpoints.values())
        selected = [
            checkpoint
            for checkpoint in checkpoints
            if run_id in (None, checkpoint.path.run_id) and not _is_expired(checkpoint, now_s)
        ]
        return sorted(selected, key=lambda checkpoint: checkpoint.created_s, reverse=True)

    def find(self, path: CheckpointPath) -> Checkpoint:
        """EngineUserError: it does not exist, or has expired."""
        with self._lock:
            checkpoint = self._checkpoints.get(path)
        if checkpoint is None or _is_expired(checkpoint, time.time()):
            raise EngineUserError(f"there is no checkpoint {path}", "list them with: hermes engine adapters")
        return checkpoint

    def is_current(self, checkpoint: Checkpoint) -> bool:
        """Whether its path still has this checkpoint, not a newer one or none."""
        with self._lock:
            current = self._checkpoints.get(checkpoint.path)
        return current is not None and current.created_s == checkpoint.created_s

    def folder(self, path: CheckpointPath) -> Path:
        """EngineUserError: a part of the path would lead out of its folder."""
        check_name(path.run_id)
        check_name(path.name)
        if path.kind not in KINDS:
            raise EngineUserError(f"'{path.kind}' is not one of {', '.join(KINDS)}")
        return stored_folder(self.root, *path)

    def draft(self, path: CheckpointPath, *, overwrite: bool = False) -> Path:
        """The path of a temporary folder, which the caller creates, and passes to `commit` or `discard`."""
        check_name(path.name)
        self._check_free(path, overwrite)
        draft = self._temporary_folder(path)
        draft.parent.mkdir(parents=True, exist_ok=True)
        return draft

    def commit(
        self,
        path: CheckpointPath,
        draft: Path,
        *,
        user_metadata: Mapping[str, str] | None = None,
        ttl_s: int | None = None,
        overwrite: bool = False,
    ) -> Checkpoint:
        """Makes the draft the checkpoint. EngineUserError: a checkpoint with this name exists by now."""
        now_s = time.time()
        files = tuple(sorted(file.name for file in draft.iterdir()))
        size_bytes = sum((draft / name).stat().st_size for name in files)
        expires_s = None if ttl_s is None else now_s + ttl_s
        checkpoint = Checkpoint(path, now_s, size_bytes, files, False, user_metadata, expires_s)
        for name in files:
            sync_path(draft / name)
        write_json(draft / _RECORD, _as_json(checkpoint))
        with self._lock:
            self._check_free(path, overwrite)
            replace_folder(draft, self.folder(path))
            self._checkpoints[path] = checkpoint
        return checkpoint

    def discard(self, draft: Path) -> None:
        shutil.rmtree(draft, ignore_errors=True)

    def copy(self, source: CheckpointPath, run: TrainingRun, ttl_s: int | None) -> Checkpoint:
        """Copies a checkpoint to a new run, by hard links where the file system has them."""
        checkpoint = self.find(source)
        target = source._replace(run_id=run.id)
        try:
            self.add_run(run)
            draft = self.draft(target)
            draft.mkdir()
            for name in checkpoint.files:
                link(self.folder(source) / name, draft / name)
            return self.commit(target, draft, user_metadata=checkpoint.user_metadata, ttl_s=ttl_s)
        except BaseException:
            self.drop_run(run.id)
            raise

    def set_public(self, path: CheckpointPath, public: bool) -> None:
        self._update(path, public=public)

    def set_ttl(self, path: CheckpointPath, ttl_s: int | None) -> None:
        self._update(path, expires_s=None if ttl_s is None else time.time() + ttl_s)

    def delete(self, checkpoint: Checkpoint, *, expired_by_s: float | None = None) -> None:
        """Deletes it, unless it was deleted or replaced; with `expired_by_s`, only if it expires by then."""
        path = checkpoint.path
        removed = self._temporary_folder(path)
        with self._lock:
            current = self._checkpoints.get(path)
            if current is None or current.created_s != checkpoint.created_s:
                return
            if expired_by_s is not None and not _is_expired(current, expired_by_s):
                return
            self.folder(path).rename(removed)
            del self._checkpoints[path]
        shutil.rmtree(removed, ignore_errors=True)

    def expired(self, now_s: float) -> list[Checkpoint]:
        """Expired checkpoints that are still on disk."""
        with self._lock:
            return [checkpoint for checkpoint in self._checkpoints.values() if _is_expired(checkpoint, now_s)]

    def _temporary_folder(self, path: CheckpointPath) -> Path:
        folder = self.folder(path)
        return folder.with_name(f".{folder.name}.{os.urandom(6).hex()}.part")

    def _check_free(self, path: CheckpointPath, overwrite: bool) -> None:
        with self._lock:
            exists = path in self._checkpoints
        if exists and not overwrite:
            raise EngineUserError(f"{path} exists already", "choose another name, or overwrite=True")

    def _update(self, path: CheckpointPath, **changes: Any) -> None:
        with self._lock:
            changed = dataclasses.replace(self.find(path), **changes)
            write_json(self.folder(path) / _RECORD, _as_json(changed))
            self._checkpoints[path] = changed

    def _read_run(self, folder: Path) -> None:
        record = json.loads((folder / _RUN).read_text(encoding="utf-8"))
        run = TrainingRun(**{**record, "lora": LoraConfig(**record["lora"])})
        if folder != stored_folder(self.root, run.id):
            raise ValueError(f"it calls itself {run.id!r}")
        self._runs[run.id] = run
        for kind in KINDS:
            kind_folder = folder / kind
            if kind_folder.is_dir():
                recover(kind_folder)
                names = [entry.name.replace("~", ":") for entry in sorted(kind_folder.iterdir())]
                for name in filter(_NAME.fullmatch, names):
                    self._read_checkpoint(CheckpointPath(run.id, kind, name))

    def _read_checkpoint(self, path: CheckpointPath) -> None:
        with contextlib.suppress(FileNotFoundError):  # not a checkpoint: a folder of the user
            record = json.loads((self.folder(path) / _RECORD).read_text(encoding="utf-8"))
            self._checkpoints[path] = Checkpoint(path=path, **{**record, "files": tuple(record["files"])})


def check_name(name: str) -> None:
    """EngineUserError: the name is not safe in a path or a URL."""
    if not _NAME.fullmatch(name):
        raise EngineUserError(
            f"{name[:200]!r} cannot be the name of a checkpoint or a run",
            "use letters, digits and . _ - : = + @ , (at most 200)",
        )


def check_ttl(ttl_s: int | None) -> None:
    if ttl_s is not None and not MIN_TTL_S <= ttl_s <= MAX_TTL_S:
        raise EngineUserError(f"a ttl of {ttl_s} s is not between one hour and ten years")


def _is_expired(checkpoint: Checkpoint, now_s: float) -> bool:
    return checkpoint.expires_s is not None and checkpoint.expires_s <= now_s


def _as_json(checkpoint: Checkpoint) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(checkpoint).items() if name != "path"}


def lock_root(root: Path) -> FileLock:
    """Locks the root until the lock is released or the process ends. HostError: it is locked already."""
    lock = FileLock(root / ".lock")
    if not lock.acquire(blocking=False):
        raise HostError(
            f"another engine keeps its checkpoints in {root}", "stop it, or choose another --state-dir"
        )
    return lock


def replace_folder(draft: Path, folder: Path) -> None:
    """Renames `draft` to `folder`. An existing folder is deleted, or restored if the rename fails."""
    aside = folder.with_name(f".{folder.name}.old")
    replaces = folder.exists()
    if replaces:
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    try:
        draft.rename(folder)
    except OSError:
        if replaces:
            aside.rename(folder)
        raise
    sync_path(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def link(source: Path, target: Path) -> None:
    """A hard link to the file, or a copy where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def recover(folder: Path) -> None:
    """Completes or undoes the operations in `folder` that a killed process had started."""
    for aside in folder.glob(".*.old"):
        original = folder / aside.name[1:].removesuffix(".old")
        if original.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(original)
    for part in folder.glob(".*.part"):
        shutil.rmtree(part)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(value) + "\n", encoding="utf-8")
    sync_path(part)
    part.rename(path)
    sync_path(path.parent)
