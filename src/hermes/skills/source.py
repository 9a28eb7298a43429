"""Reads a skill's files from an untrusted directory or archive.

Everything is read into memory under fixed limits before anything is written: no links, no special files, no
absolute paths or paths with `..`, no duplicate names, limits on the size and number of files. An archive is
never unpacked by its library.
"""

from __future__ import annotations

import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from hermes.errors import UsageError
from hermes.skills.skill import SKILL_FILE, SkillError

MAX_FILES = 200
MAX_FILE_BYTES = 2_000_000
MAX_TOTAL_BYTES = 20_000_000
MAX_PATH_CHARS = 240
IGNORED = {".git", "__pycache__", ".DS_Store"}

_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Exceptions raised while reading a damaged or unsupported archive."""

Files = dict[str, bytes]
"""Relative POSIX path → content."""


def read_source(source: Path) -> Files:
    """The files of the skill at `source`, relative to the directory that holds its SKILL.md."""
    name = source.name.lower()
    if source.is_dir():
        entries = _directory(source)
    elif name.endswith(".zip"):
        entries = _zip(source)
    elif name.endswith((".tar.gz", ".tgz")):
        entries = _tar(source)
    else:
        raise UsageError(f"'{source}' is not a skill.", "Give a directory, a .zip or a .tar.gz file.")
    try:
        if source.is_file() and source.stat().st_size > MAX_TOTAL_BYTES:
            raise _source_error(str(source), f"is larger than {MAX_TOTAL_BYTES} bytes")
        return _unwrap(_collect(entries, str(source)), str(source))
    except _UNREADABLE as error:
        raise _source_error(str(source), f"cannot be read ({error})") from error


def _source_error(source: str, reason: str) -> SkillError:
    hint = f"A skill is a directory, .zip or .tar.gz of plain files with a {SKILL_FILE}."
    return SkillError(source, "", reason, hint)


def _collect(entries: Iterator[tuple[str, bytes]], source: str) -> Files:
    files: Files = {}
    total = 0
    for name, data in entries:
        if name in files:
            raise _source_error(source, f"has two files named '{name}'")
        total += len(data)
        if len(files) == MAX_FILES or total > MAX_TOTAL_BYTES:
            raise _source_error(source, f"has more than {MAX_FILES} files or {MAX_TOTAL_BYTES} bytes")
        files[name] = data
    return files


def _unwrap(files: Files, source: str) -> Files:
    """Archives often contain a single directory with all files; the skill is then that directory."""
    if SKILL_FILE in files:
        return files
    tops = {name.partition("/")[0] for name in files}
    if len(tops) == 1 and f"{(top := tops.pop())}/{SKILL_FILE}" in files:
        return {name.removeprefix(f"{top}/"): data for name, data in files.items()}
    raise _source_error(source, f"holds no {SKILL_FILE}")


def _check_path(name: str, size: int, source: str) -> str:
    path = PurePosixPath(name)
    unsafe = path.is_absolute() or ".." in path.parts or not path.parts
    if unsafe or "\\" in name or ":" in name or not name.isprintable() or len(name) > MAX_PATH_CHARS:
        raise _source_error(source, f"has a file path that is not allowed: {name[:MAX_PATH_CHARS]!r}")
    if size > MAX_FILE_BYTES:
        raise _source_error(source, f"'{name}' is {size} bytes; at most {MAX_FILE_BYTES} are allowed")
    return path.as_posix()


def _is_ignored(name: str) -> bool:
    return not IGNORED.isdisjoint(PurePosixPath(name).parts)


def _directory(root: Path) -> Iterator[tuple[str, bytes]]:
    pending = [root]
    while pending:
        for path in sorted(pending.pop().iterdir()):
            name = path.relative_to(root).as_posix()
            if _is_ignored(name):
                continue
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                pending.append(path)
            elif stat.S_ISREG(mode):
                safe_name = _check_path(name, path.lstat().st_size, str(root))
                with path.open("rb") as stream:
                    yield safe_name, stream.read(MAX_FILE_BYTES)
            else:
                raise _source_error(str(root), f"'{name}' is a link or special file")


def _zip(source: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(source) as archive:
        for info in archive.infolist():
            if info.is_dir() or _is_ignored(info.filename):
                continue
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG):
                raise _source_error(str(source), f"'{info.filename}' is a link or special file")
            if info.flag_bits & 1:
                raise _source_error(str(source), f"'{info.filename}' is encrypted")
            name = _check_path(info.filename, info.file_size, str(source))
            with archive.open(info) as stream:
                yield name, stream.read(MAX_FILE_BYTES)


def _tar(source: Path) -> Iterator[tuple[str, bytes]]:
    with gzip.open(source) as compressed:
        # Bounded before tarfile reads it: tarfile reads extended headers of any size at once.
        data = compressed.read(2 * MAX_TOTAL_BYTES + 1)
    if len(data) > 2 * MAX_TOTAL_BYTES:
        raise _source_error(str(source), f"unpacks to more than {MAX_TOTAL_BYTES} bytes")
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            if member.isdir() or _is_ignored(member.name):
                continue
            name = _check_path(member.name, member.size, str(source))
            stream = archive.extractfile(member) if member.isreg() else None
            if stream is None:
                raise _source_error(str(source), f"'{name}' is a link or special file")
            with stream:
                yield name, stream.read(MAX_FILE_BYTES)
