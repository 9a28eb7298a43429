"""The source of a package at one version: installed, or read from its wheel or source distribution.

Files are read into memory and never unpacked, so a hostile archive cannot write anywhere; sizes are limited.
Nothing of the package is imported or executed.
"""

from __future__ import annotations

import configparser
import importlib.metadata
import re
import tarfile
import tomllib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from hermes.skills.skill import PinnedPackage
from skills_check.modules import ModuleNames
from skills_check.registry import RegistryError, download, same_version

MAX_MEMBER_BYTES = 8_000_000
MAX_SOURCE_BYTES = 600_000_000
_TEXT_SUFFIXES = {".py", ".pyi", ".toml", ".cfg", ".yaml", ".yml", ".json", ".cpp", ".cc", ".c", ".h", ".hpp"}
_SOURCE_ROOTS = ("src", "python", "lib", "py")
_NOT_PACKAGES = {"tests", "test", "docs", "doc", "examples", "benchmarks", "scripts", "tools", "setup"}


@dataclass(frozen=True, eq=False)
class PackageSource:
    """The text files of one package."""

    package: PinnedPackage
    origin: str
    """'installed', or the name of the archive."""
    files: Mapping[str, bytes]
    """Path inside the package's import root (or its archive) → content."""

    @cached_property
    def modules(self) -> dict[str, str]:
        """Module name → path; a stub stands in where there is no source."""
        names: dict[str, str] = {}
        for path in self.files:
            name = _module_name(path) if path.endswith((".py", ".pyi")) else None
            if name and (name not in names or path.endswith(".py")):
                names[name] = path
        return names

    @cached_property
    def roots(self) -> frozenset[str]:
        """The top-level names that an import begins with."""
        return frozenset(name.partition(".")[0] for name in self.modules) - _NOT_PACKAGES

    @cached_property
    def programs(self) -> dict[str, str]:
        """Console script → module:function."""
        scripts: dict[str, str] = {}
        for path, data in self.files.items():
            if path.endswith("entry_points.txt"):
                scripts |= _entry_points(data.decode("utf-8", "replace"))
            elif path == "pyproject.toml":
                scripts |= _project_scripts(data)
        return scripts

    @cached_property
    def parsed(self) -> dict[str, ModuleNames | None]:
        """Module name → its bindings, for those that were needed already."""
        return {}

    def text(self, path: str) -> str:
        return self.files[path].decode("utf-8", "replace")


def find_source(package: PinnedPackage, cache: Path, index: str) -> PackageSource:
    """The installed package where it has the pinned version, else its archive; raises `RegistryError`."""
    installed = _installed(package)
    if installed is not None:
        return installed
    archive = download(package.name, package.version, cache, index)
    return read_archive(package, archive)


def read_archive(package: PinnedPackage, archive: Path) -> PackageSource:
    """The text files of a wheel, .tar.gz or .zip; raises `RegistryError` if it cannot be read."""
    is_tar = archive.name.endswith(".tar.gz")
    try:
        members = dict(_bounded(_tar_members(archive) if is_tar else _zip_members(archive), archive.name))
    except (OSError, EOFError, ValueError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise RegistryError(
            f"{archive.name} cannot be read ({error})", f"Remove {archive} and check again."
        ) from error
    if not archive.name.endswith(".whl"):
        members = {_inside_source(path): data for path, data in members.items()}
    return PackageSource(package, archive.name, members)


def _installed(package: PinnedPackage) -> PackageSource | None:
    try:
        distribution = importlib.metadata.distribution(package.name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if not same_version(distribution.version, package.version) or distribution.files is None:
        return None
    files: dict[str, bytes] = {}
    for entry in distribution.files:
        if ".." in entry.parts or not _is_wanted(entry.as_posix()):
            continue
        path = Path(str(entry.locate()))
        if path.is_file() and path.stat().st_size <= MAX_MEMBER_BYTES:
            files[entry.as_posix()] = path.read_bytes()
    has_source = any(name.endswith(".py") and "/" in name for name in files)
    return PackageSource(package, "installed", files) if has_source else None


def _is_wanted(path: str) -> bool:
    return path.endswith("entry_points.txt") or PurePosixPath(path).suffix in _TEXT_SUFFIXES


def _bounded(members: Iterator[tuple[str, bytes]], name: str) -> Iterator[tuple[str, bytes]]:
    total = 0
    for path, data in members:
        total += len(data)
        if total > MAX_SOURCE_BYTES:
            raise ValueError(f"{name} has more than {MAX_SOURCE_BYTES} bytes of text")
        yield path, data


def _zip_members(archive: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as package:
        for info in package.infolist():
            if not info.is_dir() and _is_wanted(info.filename) and info.file_size <= MAX_MEMBER_BYTES:
                with package.open(info) as stream:
                    yield _without_data(info.filename), stream.read(MAX_MEMBER_BYTES)


def _tar_members(archive: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive, "r:gz") as package:
        for member in package:
            if not member.isreg() or not _is_wanted(member.name) or member.size > MAX_MEMBER_BYTES:
                continue
            stream = package.extractfile(member)
            if stream is not None:
                with stream:
                    yield member.name, stream.read()


def _without_data(path: str) -> str:
    """`x.data/purelib/pkg/a.py` is installed as `pkg/a.py`."""
    return re.sub(r"^[^/]+\.data/(?:purelib|platlib)/", "", path)


def _inside_source(path: str) -> str:
    """The path inside a source distribution, without its top folder and without `src/` or the like."""
    parts = PurePosixPath(path).parts[1:]
    if len(parts) > 2 and parts[0] in _SOURCE_ROOTS:
        parts = parts[1:]
    return "/".join(parts)


def _module_name(path: str) -> str | None:
    parts = list(PurePosixPath(path).with_suffix("").parts)
    if parts and parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts) if parts and all(part.isidentifier() for part in parts) else None


def _entry_points(text: str) -> dict[str, str]:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    return dict(parser["console_scripts"]) if parser.has_section("console_scripts") else {}


def _project_scripts(data: bytes) -> dict[str, str]:
    try:
        scripts = tomllib.loads(data.decode("utf-8", "replace")).get("project", {}).get("scripts", {})
    except tomllib.TOMLDecodeError:
        return {}
    return {str(name): str(target) for name, target in scripts.items()}
