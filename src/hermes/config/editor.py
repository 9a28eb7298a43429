"""An editor session on config.yaml: the user edits a copy, and only a valid copy replaces the file."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hermes.config import edit, paths
from hermes.disk.files import atomic_write, ensure_dir, read_text, settings_lock
from hermes.errors import ConfigError

_FIRST_LINES = "# Settings of Hermes. 'hermes config show' lists every key with its value and origin.\n"

_TERMINAL_EDITORS = frozenset(
    ("vi", "vim", "nvim", "nano", "pico", "emacs", "micro", "hx", "helix", "joe", "ed")
)
"""Editors that wait for a person's keys."""


def edit_config(home: Path, environ: Mapping[str, str]) -> bool:
    """Opens the user's editor and waits; True if the file was changed.

    A copy that is not valid, or that would undo a change made meanwhile, is kept and named in the error.
    """
    target = paths.config_path(home)
    command = _editor(environ)
    before = read_text(target)
    draft = _draft(home, _FIRST_LINES if before is None else before)
    started = read_text(draft)
    try:
        _open(command, draft)
    except ConfigError:
        if read_text(draft) == started:
            draft.unlink(missing_ok=True)
        raise
    after = read_text(draft)
    if after is None or after == started:
        draft.unlink(missing_ok=True)
        return False
    with settings_lock(home):
        if read_text(target) != before:
            raise ConfigError(f"{target} was changed meanwhile", f"your version is {draft}")
        try:
            edit.require_valid(after, str(draft))
        except ConfigError as error:
            raise ConfigError(
                f"{error.message}; config.yaml is unchanged, your version is {draft}",
                f"{error.hint}; then: mv {shlex.quote(str(draft))} {shlex.quote(str(target))}",
            ) from error
        atomic_write(target, after)
    draft.unlink(missing_ok=True)
    return True


def _editor(environ: Mapping[str, str]) -> list[str]:
    chosen = environ.get("VISUAL") or environ.get("EDITOR")
    if chosen and not (_needs_terminal(shlex.split(chosen)[0]) and not sys.stdin.isatty()):
        return shlex.split(chosen)
    if not sys.stdin.isatty():
        raise ConfigError(
            "an editor needs a terminal, and standard input is none",
            "use 'hermes config set KEY VALUE', or write config.yaml yourself ('hermes config show paths')",
        )
    path = environ.get("PATH", os.defpath)
    editor = next((name for name in ("nano", "vi") if shutil.which(name, path=path)), None)
    if editor is None:
        raise ConfigError("no editor was found", "set EDITOR, or use 'hermes config set KEY VALUE'")
    return [editor]


def _needs_terminal(program: str) -> bool:
    return Path(program).name in _TERMINAL_EDITORS


def edit_file(path: Path, environ: Mapping[str, str]) -> None:
    """Opens the user's editor on a file and waits; ConfigError if there is no editor or no terminal."""
    _open(_editor(environ), path, f"{path} is as the editor left it")


def _draft(home: Path, text: str) -> Path:
    try:
        handle, name = tempfile.mkstemp(prefix="config-", suffix=".yaml", dir=ensure_dir(home))
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(
            f"cannot write a copy in {home}: {error.strerror or error}", "check the disk"
        ) from error
    return Path(name)


def _open(command: list[str], draft: Path, state: str = "config.yaml is unchanged") -> None:
    try:
        done = subprocess.run([*command, str(draft)])
    except OSError as error:
        raise ConfigError(f"cannot start the editor '{command[0]}'", "set EDITOR to a program") from error
    if done.returncode != 0:
        raise ConfigError(
            f"the editor ended with exit code {done.returncode}; {state}",
            f"your version is {draft}",
        )
