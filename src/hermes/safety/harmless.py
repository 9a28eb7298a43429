"""Commands that are read-only and stay inside the workspace.

They write no file, start no program and change no state; and they read nothing outside the workspace and
nothing private, so running them without approval exposes no more than the file tools do. Each rule lists the
arguments with which a program stays harmless; with any other argument the command needs approval. Programs
are matched by bare name, and must not lie in the workspace: `./ls` is not `ls`, and neither is an `ls` that
the workspace puts on PATH. Programs that run code of the workspace (pytest, make) are not harmless: an agent
writes that code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hermes.safety.programs import readers
from hermes.safety.programs.git import has_committed_credentials, is_plain_repository
from hermes.safety.programs.scripts import is_plain_awk, is_plain_jq, is_plain_sed
from hermes.safety.programs.surroundings import Surroundings
from hermes.safety.shell import GlobWord


@dataclass(frozen=True, slots=True)
class FileReads:
    """What a harmless command reads."""

    files: Sequence[str] = ()
    recursive: bool = False
    """Whether it reads the contents of everything below its directories."""


Rule = Callable[[Sequence[str]], FileReads | None]
"""Arguments → what is read; None: not known to be harmless."""
NOTHING = FileReads()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BUILTINS = _words("[ cd command echo false printf pwd test true type")
_NO_FILES = _words(
    "arch basename cal df dirname echo expr factor false free getconf groups id locale lscpu nproc pwd seq "
    "sleep true tty type uname uptime which whoami"
)
"""They read no file that the arguments name, so arguments that are known only at run time are fine too."""
_SHOW_VERSION = _words(
    "bash clang cmake g++ gcc git java javac make node perl php pip pip3 python python3 ruby sh"
)
_GIT_READS = _words(
    "blame describe diff log ls-files ls-tree merge-base name-rev rev-list rev-parse shortlog show status"
)
_GIT_OPTIONS = ("output", "output-directory", "ext-diff", "textconv", "remerge-diff", "no-index")
"""Long options of the reading git commands that write files, run programs or read what is not in the
repository."""
_LOG_WITHOUT_CONTENTS = re.compile(
    r"[^-].*|--|-\d+|-n\d*|--(oneline|graph|decorate|all|branches|tags|remotes|merges|no-merges|first-parent"
    r"|reverse|stat|shortstat|numstat|name-only|name-status|summary|follow|abbrev-commit|topo-order|date-order"
    r"|relative-date|no-color|no-decorate)"
    r"|--(max-count|skip|since|until|after|before|author|committer|grep|format|pretty|date|decorate)=.*",
    re.DOTALL,
)
"""Arguments with which `git log` prints messages and names only."""
_NUMBER = re.compile(r"-\d+[bcwkMG]?")
_PLAIN = re.compile(r"[\w./:=!@%+,-]*\]?")
_DATE = re.compile(r"\+.*|-u|-R|-I\w*|-d.+|--(utc|date=.*|iso-8601(=\w+)?|rfc-3339=\w+)", re.DOTALL)
_STORES_COUNT = re.compile(r"%[^%a-zA-Z]*n")


def is_harmless(argv: Sequence[str | None], surroundings: Surroundings) -> bool:
    """True if the command is read-only. None stands for an argument whose value is not known."""
    name, arguments = argv[0], argv[1:]
    if name is None or isinstance(name, GlobWord) or "/" in name:
        return False
    if name not in _BUILTINS and not surroundings.runs_trusted(name):
        return False
    if name in _NO_FILES:
        return True
    values = [argument for argument in arguments if argument is not None]
    if len(values) < len(arguments):
        return False
    if values == ["--version"] or (values == ["-V"] and name.startswith("python")):
        return name in _SHOW_VERSION
    rule = _RULES.get(name)
    if rule is None:
        return False
    checked = name in readers.FILE_READERS or name in readers.SEARCHERS  # every match is looked at
    if not checked and any(map(_may_be_option, values)):
        return False
    reads = rule(values)
    if reads is None:
        return False
    if not all(surroundings.permits(file, recursive=reads.recursive) for file in reads.files):
        return False
    if name != "git":
        return True
    return _is_plain_repository(surroundings) and not _shows_credentials(values, surroundings)


def _may_be_option(value: str) -> bool:
    """A glob at the beginning of a word could match a file that is named like an option."""
    return isinstance(value, GlobWord) and value[:1] in ("*", "?", "[")


def _is_plain_repository(surroundings: Surroundings) -> bool:
    workspace = surroundings.workspace
    return workspace is None or all(
        is_plain_repository(directory, workspace) for directory in surroundings.directories
    )


def _shows_credentials(values: Sequence[str], surroundings: Surroundings) -> bool:
    """Whether a git command that prints contents could print a credential that was committed."""
    verb, *options = [value for value in values if value not in ("--no-pager", "-P")]
    prints = verb in ("blame", "diff", "show") or (
        verb == "log" and not all(map(_LOG_WITHOUT_CONTENTS.fullmatch, options))
    )
    return prints and any(map(has_committed_credentials, surroundings.directories))


def abbreviates(option: str, long: str) -> bool:
    """True for --output, --output=x and the abbreviations that option parsers accept."""
    name = option[2:].partition("=")[0]
    return option.startswith("--") and name != "" and long.startswith(name)


def _reader(name: str) -> Rule:
    table = readers.FILE_READERS[name]

    def rule(arguments: Sequence[str]) -> FileReads | None:
        parsed = table.parse(arguments)
        if parsed is None or (name in readers.ONE_FILE and len(parsed.operands) > 1):
            return None
        if name in ("less", "more") and any(operand.startswith("+") for operand in parsed.operands):
            return None
        # diff compares directories file by file.
        return FileReads(parsed.operands, recursive=name == "diff")

    return rule


def _searcher(name: str) -> Rule:
    table = readers.SEARCHERS[name]

    def rule(arguments: Sequence[str]) -> FileReads | None:
        parsed = table.parse(arguments)
        if parsed is None:
            return None
        has_expression = parsed.has("-e", "--regexp", "--files", "--type-list")
        files = parsed.operands if has_expression else parsed.operands[1:]
        if not has_expression and parsed.operands and isinstance(parsed.operands[0], GlobWord):
            return None  # one of its matches would be the expression, the others files
        if name == "rg":
            return FileReads(files or ("-",))
        recursive = parsed.has("-r", "--recursive") or "recurse" in parsed.values("-d", "--directories")
        return FileReads(files or ((".",) if recursive else ()), recursive)

    return rule


def _find(arguments: Sequence[str]) -> FileReads | None:
    options = (argument for argument in arguments if argument.startswith("-"))
    if not all(option in readers.FIND_TESTS or _NUMBER.fullmatch(option) for option in options):
        return None
    return FileReads([argument for argument in arguments if not argument.startswith("-")])


def _sed(arguments: Sequence[str]) -> FileReads | None:
    parsed = readers.SED.parse(arguments)
    if parsed is None:
        return None
    scripts, files = parsed.values("-e", "--expression"), list(parsed.operands)
    if not scripts:
        scripts, files = files[:1], files[1:]
    return FileReads(files) if scripts and all(map(is_plain_sed, scripts)) else None


def _awk(arguments: Sequence[str]) -> FileReads | None:
    parsed = readers.AWK.parse(arguments)
    if parsed is None or not parsed.operands or not is_plain_awk(parsed.operands[0]):
        return None
    return FileReads(parsed.operands[1:])


def _jq(arguments: Sequence[str]) -> FileReads | None:
    parsed = readers.JQ.parse(arguments)
    if parsed is None or not parsed.operands or not is_plain_jq(parsed.operands[0]):
        return None
    return FileReads(parsed.operands[1:])


def _ps(arguments: Sequence[str]) -> FileReads | None:
    """Without options that show environments: `e` without a dash, and columns of that kind."""
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument in ("-o", "o", "-O", "--format", "--sort", "k") and rest:
            columns = re.split(r"[,\s]+", rest.pop(0))
            if not all(column.partition("=")[0].lstrip("+-") in readers.PS_COLUMNS for column in columns):
                return None
        elif argument in ("-p", "-u", "-C", "-t", "--pid", "--ppid", "-U") and rest:
            rest.pop(0)
        elif argument in ("--no-headers", "--forest", "-w", "-ww", "w", "ww"):
            continue
        elif argument.startswith("-"):
            if not re.fullmatch(r"-[aAdefFHjlTwNx]+", argument):
                return None
        elif not re.fullmatch(r"[afgjlruvwxTS]+|\d+", argument):
            return None
    return NOTHING


def _git(arguments: Sequence[str]) -> FileReads | None:
    rest = list(arguments)
    while rest and rest[0] in ("--no-pager", "-P"):
        rest.pop(0)
    if not rest:
        return None
    verb, options = rest[0], rest[1:]
    if verb in _GIT_LISTS:
        return _GIT_LISTS[verb](options)
    if verb not in _GIT_READS:
        return None
    if any(abbreviates(option, long) for option in options for long in _GIT_OPTIONS):
        return None
    if any(option.startswith("-") and not option.startswith("--") and "/" in option for option in options):
        return None
    files = [option.partition("=")[2] if option.startswith("--") else option for option in options]
    # Where there is no repository, diff compares directories file by file.
    return FileReads([file for file in files if file and not file.startswith("-")], recursive=verb == "diff")


def _test(arguments: Sequence[str]) -> FileReads | None:
    # bash evaluates the index of an array, so no argument may contain one.
    if not all(map(_PLAIN.fullmatch, arguments)):
        return None
    return FileReads([argument for argument in arguments if not argument.startswith("-") and argument != "]"])


def _printf(arguments: Sequence[str]) -> FileReads | None:
    # -v sets a variable, and so does %n: PATH, for example.
    if not arguments or arguments[0].startswith("-") or _STORES_COUNT.search(arguments[0]):
        return None
    return NOTHING


def _cd(arguments: Sequence[str]) -> FileReads | None:
    if len(arguments) != 1 or arguments[0].startswith("-") or isinstance(arguments[0], GlobWord):
        return None
    return FileReads(arguments)


def _only(*allowed: str) -> Rule:
    return lambda arguments: NOTHING if all(argument in allowed for argument in arguments) else None


def _when(check: Callable[[Sequence[str]], bool]) -> Rule:
    return lambda arguments: NOTHING if check(arguments) else None


_GIT_LISTS: dict[str, Rule] = {
    "branch": _only("-a", "-r", "-v", "-vv", "--all", "--remotes", "--list", "--show-current"),
    "remote": _only("-v", "--verbose"),
    "tag": _only("-l", "--list"),
    "stash": _when(lambda arguments: list(arguments) == ["list"]),
    "config": _when(
        lambda arguments: (
            "--local" in arguments
            and all(argument in ("--list", "-l", "--show-origin", "--local") for argument in arguments)
        )
    ),
}
_RULES: dict[str, Rule] = {
    **{name: _reader(name) for name in readers.FILE_READERS},
    **{name: _searcher(name) for name in readers.SEARCHERS},
    "[": _test,
    "awk": _awk,
    "cd": _cd,
    "command": _when(lambda arguments: arguments[:1] in (["-v"], ["-V"])),
    "date": _when(lambda arguments: all(map(_DATE.fullmatch, arguments))),
    "find": _find,
    "gawk": _awk,
    "git": _git,
    "hostname": _only(),
    "jq": _jq,
    "mawk": _awk,
    "printf": _printf,
    "ps": _ps,
    "sed": _sed,
    "test": _test,
    "tr": _when(lambda arguments: True),
}
