"""Commands that are read-only and stay inside the workspace.

They write no file, start no program and change no state; and they read nothing outside the workspace, so
running them without approval exposes no more than the file tools do. Each rule lists the arguments with which
a program stays harmless; with any other argument the command needs approval. Programs are matched by bare
name: `./ls` is not `ls`.

The check uses the text alone: links are not resolved, and configuration that changes a program (a git hook or
filter) is not inspected. So it is safe only where an agent cannot create links or write git's configuration
without approval; the local sandbox ensures that.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence

from hermes.safety.shell import GlobWord

Rule = Callable[[Sequence[str]], bool]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NO_FILES = _words(
    "arch basename df dirname echo false free groups id nproc ps pwd seq sleep true type uname uptime "
    "which whoami"
)
"""They read no file that the arguments name, so arguments that are known only at run time are fine too."""
_READERS = _words(
    "b2sum base64 cat cksum cmp comm cut diff du egrep expand fgrep fmt fold grep head jq join ls md5sum nl "
    "od paste readlink realpath rev sha1sum sha224sum sha256sum sha384sum sha512sum stat sum tac tail tr "
    "unexpand wc"
)
"""None of their options writes or runs anything."""
_SHOW_VERSION = _words(
    "bash clang cmake g++ gcc git java javac make node perl php pip pip3 python python3 ruby sh"
)
_FIND_TESTS = _words(
    "-a -amin -and -anewer -atime -cmin -cnewer -ctime -daystart -depth -empty -executable -false -group "
    "-ilname -iname -inum -ipath -iregex -iwholename -links -lname -ls -maxdepth -mindepth -mmin -mount "
    "-mtime -name -newer -nogroup -not -nouser -o -or -P -path -perm -print -print0 -printf -prune -quit "
    "-readable -regex -regextype -samefile -size -true -type -user -wholename -writable -xdev -xtype"
)
_GIT_READS = _words(
    "blame describe diff log ls-files ls-tree merge-base name-rev rev-list rev-parse shortlog show status"
)
_GIT_OPTIONS = ("output", "output-directory", "ext-diff", "textconv")
"""Long options of the reading git commands that write files or run programs."""
_NUMBER = re.compile(r"-\d+[bcwkMG]?")
_PLAIN = re.compile(r"[\w./:=!@%+,-]*\]?")
_SORT = re.compile(
    r"-[bcCdfghimMnrRsuVz]+|-k[\w.,]*|-t.?|--(reverse|unique|numeric-sort|human-numeric-sort|version-sort)"
)
_UNIQ = re.compile(r"-[cdDiuz]+|-[fsw]\d*")
_DATE = re.compile(r"\+.*|-u|-R|-I\w*|-d.+|--(utc|date=.*|iso-8601(=\w+)?|rfc-3339=\w+)", re.DOTALL)
_FILE = re.compile(r"-[bhikLNprs0]+|--(brief|mime|mime-type|mime-encoding)")
_TREE = re.compile(r"-[aAcCdDfFgGhilnNpqrsStuUvx]+|-[LIP]|--(dirsfirst|noreport|gitignore|du)")
_SED_PRINT = re.compile(r"(\d+|\$)(,(\d+|\$))?p")
_STORES_COUNT = re.compile(r"%[^%a-zA-Z]*n")


def is_harmless(argv: Sequence[str | None], workspace: str | None = None) -> bool:
    """True if the command is read-only. None stands for an argument whose value is not known.

    `workspace` is the directory in which absolute paths may be read as well as relative ones.
    """
    name, arguments = argv[0], argv[1:]
    if name in _NO_FILES:
        return True
    values = [argument for argument in arguments if argument is not None]
    if name is None or len(values) < len(arguments):
        return False
    if values == ["--version"] or (values == ["-V"] and name.startswith("python")):
        return name in _SHOW_VERSION
    if name in _FREE_TEXT:
        return _FREE_TEXT[name](values)
    if name not in _READERS and any(isinstance(argument, GlobWord) for argument in values):
        return False
    files = values if name not in _SEARCHERS else _without_pattern(values)
    inside = all(is_inside(file, workspace) for file in files)
    return inside and (name in _READERS or (name in _RULES and _RULES[name](values)))


def is_inside(argument: str, workspace: str | None = None) -> bool:
    """True if the argument, as a path or as an option with one, stays inside the workspace."""
    path = argument
    if argument.startswith("--"):
        path = argument.partition("=")[2]
    elif argument.startswith("-") and ("/" in argument or "~" in argument):
        return False
    if path == "/dev/null":
        return True
    if path.startswith("/"):
        clean = posixpath.normpath(path)
        return workspace is not None and (clean == workspace or clean.startswith(workspace.rstrip("/") + "/"))
    return not path.startswith("~") and ".." not in path.split("/")


def _without_pattern(arguments: Sequence[str]) -> list[str]:
    """The files of a grep: its arguments without the expression, which may look like a path."""
    has_pattern_option = any(
        re.match(r"-[^-]*[ef]", argument) or abbreviates(argument, "regexp") or abbreviates(argument, "file")
        for argument in arguments
    )
    rest = list(arguments)
    if not has_pattern_option:
        pattern = next((i for i, argument in enumerate(rest) if not argument.startswith("-")), None)
        if pattern is not None:
            del rest[pattern]
    return rest


def abbreviates(option: str, long: str) -> bool:
    """True for --output, --output=x and the abbreviations that option parsers accept."""
    name = option[2:].partition("=")[0]
    return option.startswith("--") and name != "" and long.startswith(name)


def _options_like(pattern: re.Pattern[str], max_files: int | None = None) -> Rule:
    """Every argument that begins with a dash must match; the others are files."""

    def rule(arguments: Sequence[str]) -> bool:
        options = [argument for argument in arguments if argument.startswith("-") and argument != "-"]
        files = len(arguments) - len(options)
        return all(map(pattern.fullmatch, options)) and (max_files is None or files <= max_files)

    return rule


def _only(*allowed: str) -> Rule:
    return lambda arguments: all(argument in allowed for argument in arguments)


def _find(arguments: Sequence[str]) -> bool:
    options = (argument for argument in arguments if argument.startswith("-"))
    return all(option in _FIND_TESTS or _NUMBER.fullmatch(option) for option in options)


def _sed(arguments: Sequence[str]) -> bool:
    """Only `sed -n 10,20p file …`: the language can also write files and run commands."""
    if len(arguments) < 2 or arguments[0] != "-n" or not _SED_PRINT.fullmatch(arguments[1]):
        return False
    return not any(argument.startswith("-") for argument in arguments[2:])


def _git(arguments: Sequence[str]) -> bool:
    rest = list(arguments)
    while rest and rest[0] in ("--no-pager", "-P"):
        rest.pop(0)
    if not rest:
        return False
    verb, options = rest[0], rest[1:]
    if verb in _GIT_READS:
        return not any(abbreviates(option, long) for option in options for long in _GIT_OPTIONS)
    return verb in _GIT_LISTS and _GIT_LISTS[verb](options)


def _rg(arguments: Sequence[str]) -> bool:
    return not any(argument.startswith(("--pre", "--hostname-bin")) for argument in arguments)


def _test(arguments: Sequence[str]) -> bool:
    # bash evaluates the index of an array, so no argument may contain one.
    return all(map(_PLAIN.fullmatch, arguments))


def _printf(arguments: Sequence[str]) -> bool:
    # -v sets a variable, and so does %n: PATH, for example.
    return bool(arguments) and not arguments[0].startswith("-") and not _STORES_COUNT.search(arguments[0])


_GIT_LISTS: dict[str, Rule] = {
    "branch": _only("-a", "-r", "-v", "-vv", "--all", "--remotes", "--list", "--show-current"),
    "remote": _only("-v", "--verbose"),
    "tag": _only("-l", "--list"),
    "stash": lambda arguments: list(arguments) == ["list"],
    "config": _only("--list", "-l", "--show-origin", "--local"),
}
_FREE_TEXT: dict[str, Rule] = {
    "command": lambda arguments: arguments[:1] in (["-v"], ["-V"]),
    "date": lambda arguments: all(map(_DATE.fullmatch, arguments)),
    "hostname": _only(),
    "printf": _printf,
}
_SEARCHERS = frozenset(("grep", "egrep", "fgrep", "rg"))
_RULES: dict[str, Rule] = {
    "[": _test,
    "cd": lambda arguments: len(arguments) == 1 and not arguments[0].startswith("-"),
    "file": _options_like(_FILE),
    "find": _find,
    "git": _git,
    "rg": _rg,
    "sed": _sed,
    "sort": _options_like(_SORT),
    "test": _test,
    "tree": _options_like(_TREE),
    "uniq": _options_like(_UNIQ, max_files=1),
}
