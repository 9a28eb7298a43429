"""Programs that only read, and only inside the workspace.

They have no option that writes a file, starts a program or changes state; and they may read nothing outside
the workspace and nothing private, so running them without approval exposes no more than the file tools do.
Programs that can do more with some option (find, sort, sed, git), and programs that run code of the workspace
(pytest, make), are not on the list: the user is asked, or allows them in `approval.allow`. Programs are
matched by bare name, and must not lie in the workspace: `./ls` is not `ls`, and neither is an `ls` that the
workspace puts on PATH.

`split` makes programs and their arguments of a plain command line. It is not a shell. It reads words, quotes,
variables and globs, joined by `;`, `&&`, `||`, `|` and line ends, with output that goes to /dev/null or to
standard output. For everything else it returns None, and a caller must then assume the worst. What it reads
means the same in sh and bash.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hermes.safety.private import PrivatePlaces

_BLANK = re.compile(r"[ \t]+")
_SEPARATOR = re.compile(r"&&|\|\||;|\||\n")
_DISCARDED_OUTPUT = re.compile(r"(?:2>&1|[12]?>[ ]?/dev/null)(?=[ \t\n;&|]|$)")
_VARIABLE = r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})"
_WORD_PART = re.compile(
    rf"""(?P<plain>[\w./:=@%+,-]+)
    |'(?P<single>[^']*)'
    |"(?P<double>[^"\\$`]*)"
    |(?P<dynamic>{_VARIABLE}|"(?:[^"\\$`]|{_VARIABLE})*"|[*?\[\]])""",
    re.VERBOSE,
)

ProgramArguments = Sequence[str | None]
"""The program and its arguments; None stands for a word whose value is known only at run time."""


def split(command: str) -> list[ProgramArguments] | None:
    """Every program with its arguments; None: the command line is not a plain one."""
    commands: list[list[str | None]] = [[]]
    at = 0
    while at < len(command):
        if match := _BLANK.match(command, at) or _DISCARDED_OUTPUT.match(command, at):
            at = match.end()
        elif match := _SEPARATOR.match(command, at):
            commands.append([])
            at = match.end()
        else:
            word: str | None = ""
            begin = at
            while match := _WORD_PART.match(command, at):
                text = match["plain"] or match["single"] or match["double"] or ""
                word = None if word is None or match["dynamic"] else word + text
                at = match.end()
            if at == begin:
                return None
            commands[-1].append(word)
    return [arguments for arguments in commands if arguments]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BUILTINS = _words("cd echo false pwd true type")
_NO_FILES = _BUILTINS - {"cd"} | _words(
    "arch basename df dirname free groups id nproc seq sleep tr tty uname uptime which whoami"
)
"""They read no file that an argument names, so arguments that are known only at run time are fine too."""
_FILE_READERS = _words(
    "cat cmp comm cut du expand fold head join ls nl od paste readlink realpath rev stat tac tail unexpand wc"
)
_SEARCHERS = _words("grep egrep fgrep")
_SHOW_VERSION = _words(
    "bash clang cmake g++ gcc git java javac make node perl php pip pip3 python python3 ruby sh"
)
_FOLLOWS = re.compile(r"--[df].*|-[^-]*L.*", re.DOTALL)
"""Options that follow links (-L, --dereference) or a list of files (--files0-from), abbreviated or not."""
_MAX_FOLDERS = 8
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Surroundings:
    """Where a command runs, and which files it may read there without asking.

    Paths are resolved as they are now. A process that the agent was allowed to run could change them between
    the check and the command.
    """

    workspace: str | None
    """None: not known; only relative paths are then accepted."""
    places: PrivatePlaces = field(default_factory=PrivatePlaces.of_this_user)
    folders: tuple[str, ...] = ("",)
    """Where the command may run, from the workspace: there, and where a `cd` before it may have led."""

    def after(self, command: ProgramArguments) -> Surroundings | None:
        """The surroundings of what follows; None: they are not known."""
        if command[0] != "cd":
            return self
        target = command[-1]
        if target is None or len(command) != 2 or len(self.folders) > _MAX_FOLDERS:
            return None
        more = (str(Path(folder, target)) for folder in self.folders)
        return replace(self, folders=tuple(dict.fromkeys((*self.folders, *more))))

    def permits(self, path: str, *, recursive: bool = False) -> bool:
        """Whether the path, and with `recursive` everything below it, may be read without asking."""
        if path in ("", "-", "/dev/null"):
            return True
        if path.startswith("~") or ".." in path.split("/"):
            return False
        if self.workspace is None:
            return not path.startswith("/")
        try:
            return all(
                self._permits_file(Path(self.workspace, folder, path), recursive) for folder in self.folders
            )
        except (OSError, RuntimeError, ValueError):  # too long for a path, a loop of links
            return False

    def _permits_file(self, path: Path, recursive: bool) -> bool:
        root, real = Path(self.workspace or "").resolve(), path.resolve()
        if not real.is_relative_to(root) or self.places.reason(real, root) is not None:
            return False
        return not (recursive and real.is_dir() and self.places.within(real))

    def runs_trusted(self, program: str) -> bool:
        """Whether the shell finds the program outside the workspace, or finds none."""
        if self.workspace is None:
            return True
        root = Path(self.workspace).resolve()
        for folder in os.environ.get("PATH", _DEFAULT_PATH).split(":"):
            if not folder.startswith("/"):
                return False
            candidate = Path(folder, program)
            if os.access(candidate, os.X_OK):
                lies_in = (candidate.parent.resolve(), candidate.resolve())
                return not any(path.is_relative_to(root) for path in lies_in)
        return True


def is_harmless(command: ProgramArguments, surroundings: Surroundings) -> bool:
    """Whether the command is surely read-only."""
    name, *arguments = command
    if name is None or not (name in _BUILTINS or surroundings.runs_trusted(name)):
        return False
    if name in _NO_FILES:
        return True
    values = [argument for argument in arguments if argument is not None]
    if len(values) < len(arguments):
        return False
    if values == ["--version"]:
        return name in _SHOW_VERSION
    if name == "cd":
        return len(values) == 1 and values[0][:1] not in ("", "-") and surroundings.permits(values[0])
    if name not in _FILE_READERS | _SEARCHERS:
        return False
    end = values.index("--") if "--" in values else len(values)
    options = [value for value in values[:end] if value.startswith("-")]
    operands = [value for value in values[:end] if not value.startswith("-")] + values[end + 1 :]
    recursive = name in _SEARCHERS and any(set("rd") & set(option) for option in options)
    if name in _SEARCHERS and any("R" in option for option in options):
        return False  # it follows links
    if recursive and (len(operands) < 2 or any(set("ef") & set(option) for option in options)):
        operands.append(".")  # the first operand need not be the expression
    return all(_is_plain_option(option, surroundings) for option in options) and all(
        surroundings.permits(operand, recursive=recursive) for operand in operands
    )


def _is_plain_option(option: str, surroundings: Surroundings) -> bool:
    """Whether the option names no file that may not be read; a short one may have its value attached."""
    if _FOLLOWS.fullmatch(option):
        return False
    if option.startswith("--"):
        return surroundings.permits(option.partition("=")[2])
    return "/" not in option and all(surroundings.permits(option[at:]) for at in range(1, len(option)))
