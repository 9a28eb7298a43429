"""Splits a plain command line into the programs that it runs, with their arguments.

This is not a shell. It reads words, quotes, variables and globs, joined by `;`, `&&`, `||`, `|` and line
ends, with output that goes to /dev/null or to standard output. For everything else it returns None, and a
caller must then assume the worst. What it reads means the same in sh and bash.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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
