"""Keeps a workspace that was given from running programs on the host through git.

git runs what a repository's configuration names (`core.fsmonitor`, filters, hooks) at the next `git status`
of the person who owns the workspace. So the repositories that are there when a sandbox is opened are
read-only for its commands. One that a command creates is neutralised when the sandbox is closed: its hooks
are renamed, and of its configuration only settings stay that cannot run anything. Until then it is the
policy's: do not run git in a workspace while a policy works in it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hermes.disk.trees import walk
from hermes.safety.paths import resolve_inside

logger = logging.getLogger(__name__)

METADATA = ".git"
_MAX_DIRECTORIES = 20_000
_SKIPPED = frozenset({"node_modules", "__pycache__", ".venv"})
_MAX_CONFIG_BYTES = 1 << 20
_SECTION = re.compile(r'\s*\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]\s*(.*)')
_SETTING = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*(?:=\s*(.*))?")
_KEPT = {
    "core": {"repositoryformatversion", "filemode", "bare", "logallrefupdates", "ignorecase", "symlinks"},
    "user": {"name", "email"},
    "branch": {"remote", "merge"},
    "remote": {"url", "fetch"},
    "init": {"defaultbranch"},
}
_URL = re.compile(r"(https?|ssh|git)://[\w.@:/~+-]+|[\w.-]+@[\w.-]+:[\w./~-]+", re.ASCII)


def repositories(root: Path) -> tuple[str, ...]:
    """The `.git` of every repository in the workspace, relative to it; links are not among them."""
    return tuple(str(path.relative_to(root)) for path in _metadata(root))


def refuse_metadata(root: Path, path: str, alias: str) -> None:
    """PermissionError if the path lies in a repository's `.git`."""
    relative = os.path.relpath(path, alias) if path.startswith("/") else path
    with contextlib.suppress(OSError, ValueError):
        relative = str(resolve_inside(root, relative).relative_to(root.resolve()))
    if METADATA in (part.lower() for part in Path(relative).parts):
        raise PermissionError(errno.EACCES, "files in .git cannot be changed in this workspace", path)


def neutralise_new(root: Path, existing: Sequence[str]) -> None:
    """Takes from the repositories that were not there before what could run a program."""
    for path in _metadata(root):
        if str(path.relative_to(root)) in existing:
            continue
        try:
            _neutralise(path)
        except OSError as error:
            logger.warning("%s was created in the sandbox and could not be made harmless: %s", path, error)


def _metadata(root: Path) -> Iterator[Path]:
    """Every `.git` under the root, and every directory that git would take for a bare repository."""
    for visited, (here, names, files) in enumerate(walk(root)):
        if visited == _MAX_DIRECTORIES:
            logger.warning("%s has more than %d directories; not all were searched", root, _MAX_DIRECTORIES)
            return
        for name in (*names, *files):
            if name.lower() == METADATA and not (here / name).is_symlink():
                yield here / name
        if here != root and {"objects", "refs"} <= set(names) and "HEAD" in files:
            yield here
            names.clear()
        names[:] = [name for name in names if name.lower() != METADATA and name not in _SKIPPED]


def _neutralise(path: Path) -> None:
    if path.is_file():  # a file that names another directory as the repository
        path.rename(path.with_name(".git.untrusted"))
        return
    whole = path.name.lower() == METADATA
    entries = [
        here / name for here, names, files in walk(path) if whole or here == path for name in (*names, *files)
    ]
    for config in (entry for entry in entries if entry.name.startswith("config")):
        if config.is_symlink() or not config.is_file():
            with contextlib.suppress(OSError):
                config.unlink()
        elif config.name in ("config", "config.worktree"):
            size = config.lstat().st_size
            text = config.read_text("utf-8", "replace") if size <= _MAX_CONFIG_BYTES else ""
            config.write_text(harmless_config(text))
    for hooks in (entry for entry in reversed(entries) if entry.name == "hooks"):
        if hooks.is_dir() or hooks.is_symlink():
            hooks.rename(hooks.with_name("hooks.untrusted"))


def harmless_config(text: str) -> str:
    """The settings of a git configuration that cannot run a program or read another file."""
    lines: list[str] = []
    section, title = "", ""
    for line in text.replace("\\\n", "").splitlines():
        header = _SECTION.match(line)
        rest = line
        if header is not None:
            section, title, rest = header.group(1).lower(), header.group(2) or "", header.group(3)
            if section in _KEPT and re.fullmatch(r"[\w./-]*", title):
                lines.append(f'[{section} "{title}"]' if title else f"[{section}]")
        setting = _SETTING.fullmatch(rest)
        if setting is not None and _is_harmless(section, title, setting.group(1).lower(), setting.group(2)):
            lines.append(f"\t{setting.group(1)} = {setting.group(2) or 'true'}")
    return "\n".join([*lines, ""])


def _is_harmless(section: str, title: str, name: str, value: str | None) -> bool:
    if name not in _KEPT.get(section, ()) or not re.fullmatch(r"[\w./-]*", title):
        return False
    if name == "url":
        return _URL.fullmatch(value or "") is not None
    return re.fullmatch(r"[\w .@+:/*<>-]*", value or "") is not None
