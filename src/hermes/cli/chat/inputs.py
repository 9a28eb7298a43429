"""The parts of a question: the typed text, files that it names with '@', fragments, standard input."""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hermes.errors import UsageError

MAX_FILE_BYTES = 1_000_000
"""The largest file that is put into a question; a model's context is smaller than that."""
_REFERENCE = re.compile(r"(?:(?<=\s)|^)@(\S+)")
_NOTICE_AFTER_S = 2.0


def read_piped(notice_after_s: float = _NOTICE_AFTER_S) -> str:
    """All of standard input where it is a pipe or a file; empty at a terminal.

    A program that starts Hermes may leave a pipe open: after two seconds a line says what is waited for.
    """
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    try:
        ready, _, _ = select.select([sys.stdin], [], [], notice_after_s)
        if not ready:
            click.echo("(reading standard input until it ends; '< /dev/null' gives none)", err=True)
        data = sys.stdin.buffer.read()
    except (OSError, ValueError):  # closed by the caller
        return ""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"standard input is not UTF-8 text (byte {error.start})", "convert it to text first"
        ) from error


def expand_files(text: str) -> str:
    """The text followed by the contents of each file that it names as '@path'.

    A word such as '@someone' that is no file stays a word; a path that does not exist is an error.
    """
    attachments = []
    for name in dict.fromkeys(_REFERENCE.findall(text)):
        path = Path(name.rstrip(",;:!?)")).expanduser()
        if not path.is_file():
            path = Path(name.rstrip(".,;:!?)")).expanduser()
        if path.is_file():
            attachments.append(attachment(path))
        elif os.sep in name:
            raise UsageError(f"there is no file {path}", "write @ and the path of a file, or leave out the @")
    return "\n\n".join([text, *attachments])


def attachment(path: Path) -> str:
    """A file's name and text, marked so that a model sees where it begins and ends."""
    return f"File {path}:\n<file>\n{read_named_text(path).rstrip()}\n</file>"


def read_named_text(path: Path, label: str = "") -> str:
    """The text of a file that a person names; of a device or pipe no more than fits a question."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                size = path.stat().st_size
                amount = f"{size:,} bytes" if size else f"more than {MAX_FILE_BYTES:,} bytes"
                raise UsageError(
                    f"{path} has {amount}; at most {MAX_FILE_BYTES:,} fit into a question",
                    "give the part that matters, or let the agent read it with the file toolset",
                )
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text", "convert it to text first") from error
    except OSError as error:
        raise UsageError(
            f"cannot read {label}{path}: {error.strerror}", "check the path and its permissions"
        ) from error


def compose(question: str, fragments: Sequence[Path], piped: str) -> str:
    """The question as it is sent: text with its files, then fragments, then standard input."""
    parts = [expand_files(question) if question else "", *(attachment(path) for path in fragments), piped]
    return "\n\n".join(part.rstrip() for part in parts if part.strip())
