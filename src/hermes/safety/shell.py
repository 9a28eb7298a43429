"""Splits a shell command into the simple commands that it would run.

This is not a shell: it supports the part of the language that ordinary commands use, and returns `None` for
everything else: loops, functions, here-documents, arithmetic with variables, backquotes, process
substitution, expansions that do more than insert a variable. A result is valid for sh and for bash. A caller
that gets `None` must assume the worst.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_SEPARATORS = ("&&", "||", ";", "|", "&", "\n")
_RESERVED = re.compile(
    r"if|then|else|elif|fi|for|while|until|do|done|case|esac|in|select|function|time|coproc|[{}!]|\[\[|\]\]"
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[.*\])?\+?=")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9?#$!@*-]|\{[A-Za-z_]\w*\})")
_REDIRECTION = re.compile(r"(?:\d*|&)(>>|>\||>&|>|<&|<)(?![<>(&])")
_BLANK = re.compile(r"(?:[ \t]|\\\n)*(?:#.*)?")
_BLANK_LINES = re.compile(r"(?:[ \t\n]|\\\n|#.*)*")
_ARITHMETIC = re.compile(r"\$\(\((?:[0-9 ()+*/%<>=!&|^~?:,-]|\*\*)*\)\)")
"""Of numbers only: a variable's value would be evaluated, and in an index it can run a command."""
_GLOBS = "*?["
_SPECIAL = " \t\n;&|()<>"


class GlobWord(str):
    """A word that expands to the matching paths. If it begins with the glob, one may look like an option."""


@dataclass(frozen=True, slots=True)
class Simple:
    """One program with its arguments."""

    argv: tuple[str | None, ...]
    """None for a word whose value is known only at run time."""
    assigns: bool = False
    """True if variables are set, for the program or for the shell."""
    writes: bool = False
    """True if a redirection could write a file."""
    reads: tuple[str | None, ...] = ()
    """Files its input is redirected from."""


def split(command: str) -> list[Simple] | None:
    """Every simple command, including those in sub-shells and substitutions; None if not supported."""
    if "\0" in command:
        return None
    parser = _Parser(command)
    try:
        parser.script(end="")
    except (_UnsupportedError, RecursionError):
        return None
    return parser.commands


class _UnsupportedError(Exception):
    pass


@dataclass
class _Word:
    text: str = ""
    dynamic: bool = False
    globbed: bool = False

    @property
    def value(self) -> str | None:
        if self.dynamic:
            return None
        return GlobWord(self.text) if self.globbed else self.text


@dataclass
class _Parser:
    text: str
    at: int = 0
    commands: list[Simple] = field(default_factory=list)

    def script(self, end: str) -> None:
        """Commands up to `end`: ')' for a sub-shell or substitution, '' for the end of the text."""
        while True:
            self._blank(newlines=True)
            if self._done(end):
                return
            if self.text.startswith("((", self.at):  # arithmetic in bash, sub-shells in sh
                raise _UnsupportedError
            if self._take("("):
                self.script(end=")")
                self._command(after_subshell=True)
            else:
                self._command(after_subshell=False)
            if self._done(end):
                return
            if not any(self._take(separator) for separator in _SEPARATORS):
                raise _UnsupportedError

    def _done(self, end: str) -> bool:
        return self.at == len(self.text) if not end else self._take(end)

    def _command(self, *, after_subshell: bool) -> None:
        words: list[_Word] = []
        reads: list[str | None] = []
        writes = complete = False
        while True:
            self._blank()
            if redirection := _REDIRECTION.match(self.text, self.at):
                self.at = redirection.end()
                # In sh the ampersand ends the command: words after the file name would be another command.
                complete |= redirection[0].startswith("&")
                self._blank()
                target = self._word().value
                if "<" in redirection[1]:
                    reads.append(target)
                else:
                    writes = writes or not _harmless_sink(redirection[1], target)
            elif self.at == len(self.text) or self.text[self.at] in _SPECIAL:
                break
            elif complete:
                raise _UnsupportedError
            else:
                words.append(self._word())
        supported = not words if after_subshell else words or reads or writes
        if not supported:
            raise _UnsupportedError
        self._add_command(words, tuple(reads), writes)

    def _add_command(self, words: list[_Word], reads: tuple[str | None, ...], writes: bool) -> None:
        if words and _RESERVED.fullmatch(words[0].text):
            raise _UnsupportedError
        programs = [i for i, word in enumerate(words) if not _ASSIGNMENT.match(word.text)]
        start = programs[0] if programs else len(words)
        argv = tuple(word.value for word in words[start:])
        self.commands.append(Simple(argv, assigns=start > 0, writes=writes, reads=reads))

    def _word(self) -> _Word:
        word = _Word()
        begin = self.at
        while self.at < len(self.text) and self.text[self.at] not in _SPECIAL:
            self._piece(word)
        if self.at == begin or self.text[self.at : self.at + 1] == "(":
            raise _UnsupportedError
        return word

    def _piece(self, word: _Word) -> None:
        char = self.text[self.at]
        if char == "'":
            end = self._find("'", self.at + 1)
            word.text += self.text[self.at + 1 : end]
            self.at = end + 1
        elif char == '"':
            self.at += 1
            self._double_quoted(word)
        elif self._take("\\\n"):  # a line continuation
            pass
        elif char == "\\":
            if self.at + 1 == len(self.text):
                raise _UnsupportedError
            word.text += self.text[self.at + 1]
            self.at += 2
        elif char in "$`":
            self._expansion(word, after_dollar=("", " ", "\n"))
        else:
            lone_bracket = (
                char == "[" and not word.text and self.text[self.at + 1 : self.at + 2] in ("", " ", "\t")
            )
            word.globbed |= char in _GLOBS and not lone_bracket
            word.dynamic |= char in "{}"  # braces expand to several words
            word.text += char
            self.at += 1

    def _double_quoted(self, word: _Word) -> None:
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return
            if char in "$`":
                self._expansion(word, after_dollar=("", " ", "\n", '"'))
                continue
            if self._take("\\\n"):
                continue
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\"):
                self.at += 1
            word.text += self.text[self.at]
            self.at += 1
        raise _UnsupportedError

    def _expansion(self, word: _Word, after_dollar: tuple[str, ...]) -> None:
        """`after_dollar` is what may follow a literal dollar sign."""
        if arithmetic := _ARITHMETIC.match(self.text, self.at):
            self.at = arithmetic.end()
        elif self.text.startswith("$(", self.at) and not self.text.startswith("$((", self.at):
            self.at += 2
            self.script(end=")")
        elif variable := _VARIABLE.match(self.text, self.at):
            self.at = variable.end()
        elif self.text[self.at] == "$" and self.text[self.at + 1 : self.at + 2] in after_dollar:
            word.text += "$"
            self.at += 1
            return
        else:
            raise _UnsupportedError
        word.dynamic = True

    def _blank(self, *, newlines: bool = False) -> None:
        blank = (_BLANK_LINES if newlines else _BLANK).match(self.text, self.at)
        self.at = blank.end() if blank else self.at

    def _take(self, expected: str) -> bool:
        if not self.text.startswith(expected, self.at):
            return False
        self.at += len(expected)
        return True

    def _find(self, char: str, start: int) -> int:
        end = self.text.find(char, start)
        if end < 0:
            raise _UnsupportedError
        return end


def _harmless_sink(operator: str, target: str | None) -> bool:
    """True if the redirection writes no file: to /dev/null, or to a stream that is already open."""
    if operator == ">&":
        return target is not None and (target.isdigit() or target == "-" or target == "/dev/null")
    return target == "/dev/null"
