"""A Dockerfile as what bubblewrap can do on this machine's own root: FROM, RUN, COPY, WORKDIR, ENV, ARG.

Everything else is refused with its line, but for what has no effect on a trial (CMD, LABEL, EXPOSE). The base
image is not fetched: a Debian or Ubuntu, or the Python that is here, stands for itself. `apt-get install` is
taken as done if the packages are installed on this machine; the rest of a RUN is run. Pure, but for
`installed_packages`.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from hermes.envs.harbor.schema import TaskError
from hermes.sandbox.task_root import missing_top

_WITHOUT_EFFECT = frozenset({"CMD", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL"})
_VARIABLE = re.compile(r"(?<!\\)\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")
_REGISTRY = re.compile(r"^(docker\.io/library/|docker\.io/|library/|public\.ecr\.aws/docker/library/)")
"""Where the same official images are."""
_HEREDOC = re.compile(r"<<-?\s*([\"']?)(\w+)\1")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_RESERVED = ("/tests", "/solution", "/logs", "/.packages")
_DPKG_TIMEOUT_S = 60
_MOST_BYTES = 128 << 10
"""The length of a Dockerfile, and of the variables that are filled into a line: they can double each time."""
_MOST_INSTRUCTIONS = 1_000


@dataclass(frozen=True, slots=True)
class Copy:
    sources: tuple[str, ...]
    """Relative to the folder `environment`; patterns are allowed."""
    target: str
    """Absolute; with a slash at its end a folder."""
    mode: str | None
    text: str | None = None
    """The content of a file that the Dockerfile itself holds."""


@dataclass(frozen=True, slots=True)
class Run:
    command: str
    workdir: str
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Recipe:
    base: str
    workdir: str
    variables: Mapping[str, str]
    actions: tuple[Copy | Run, ...]

    @property
    def tops(self) -> tuple[str, ...]:
        """Top directories that it writes by name."""
        targets = [action.target for action in self.actions if isinstance(action, Copy)]
        directories = [action.workdir for action in self.actions if isinstance(action, Run)]
        paths = [path for path in (self.workdir, *targets, *directories) if path.strip("/")]
        return tuple(dict.fromkeys(f"/{path.split('/')[1]}" for path in paths))


@dataclass(frozen=True, slots=True)
class Host:
    """The stand-ins for base images and packages on this machine."""

    path: str
    """The PATH of a sandbox."""
    bases: tuple[str, ...]
    """Patterns of base images for which this machine's root stands."""
    packages: Callable[[Sequence[str]], frozenset[str]]
    """Which of these packages are installed."""

    @classmethod
    def here(cls, path: str, further_bases: Sequence[str] = ()) -> Host:
        python = f"python:{sys.version_info[0]}.{sys.version_info[1]}"
        own = ("debian:*", "ubuntu:*", "debian", "ubuntu", f"{python}-*", python, f"{python}.*", "python:3")
        return cls(path, (*own, *further_bases), installed_packages)


def installed_packages(names: Sequence[str]) -> frozenset[str]:
    """Those of the Debian packages that are installed on this machine, or provided by one that is."""
    command = ["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package} ${Provides}\n"]
    try:
        listing = subprocess.run(
            command, capture_output=True, text=True, timeout=_DPKG_TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    lines = [line for line in listing.splitlines() if line.startswith("ii")]
    present = {word.strip(",") for line in lines for word in line.split()[1:]}
    return frozenset(names) & present


def read_dockerfile(path: Path) -> str:
    """TaskError: the file is no text, or too long."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"environment/Dockerfile cannot be read: {error}.") from error
    if len(data) > _MOST_BYTES:
        raise TaskError(f"environment/Dockerfile has more than {_MOST_BYTES} bytes.")
    return text


def read_recipe(text: str, host: Host) -> Recipe:
    """TaskError: the Dockerfile has a line that bubblewrap cannot do here."""
    arguments: dict[str, str] = {}
    variables: dict[str, str] = {"PATH": host.path}
    base, workdir = "", "/"
    actions: list[Copy | Run] = []
    for count, (number, word, rest, heredocs) in enumerate(_instructions(text)):
        where = f"environment/Dockerfile, line {number}"
        if count == _MOST_INSTRUCTIONS:
            raise TaskError(f"{where}: more than {_MOST_INSTRUCTIONS} instructions.")
        values = {**arguments, **variables}
        if word == "FROM":
            if base:
                raise TaskError(f"{where}: a second FROM; builds of several stages need a container engine.")
            base = _base(_fill(rest, values), host, where)
        elif not base and word != "ARG":
            raise TaskError(f"{where}: {word} before FROM.")
        elif word == "ARG":
            name, _, value = rest.strip().partition("=")
            arguments[name] = _unquote(_fill(value, values))
        elif word == "ENV":
            variables.update(_assignments(_fill(rest, values), where))
        elif word == "WORKDIR":
            workdir = _path(_unquote(_fill(rest.strip(), values)), workdir, where)
        elif word == "COPY":
            actions.append(_copy(_fill(rest, values), heredocs, workdir, where))
        elif word == "RUN":
            actions.append(Run(_run(rest, heredocs, host, where), workdir, {**arguments, **variables}))
        elif word not in _WITHOUT_EFFECT and not _is_usual(word, rest):
            raise TaskError(f"{where}: {word} {rest.strip()[:60]}: it needs a container engine.")
    if not base:
        raise TaskError("environment/Dockerfile has no FROM.")
    return Recipe(base, workdir, variables, tuple(actions))


def _is_usual(word: str, rest: str) -> bool:
    """Whether the line only says what is so without it."""
    if word == "USER":
        return rest.strip() in ("root", "0", "0:0", "root:root")
    return word == "SHELL" and re.match(r'\s*\[\s*"(/usr)?/?(bin/)?(ba)?sh"', rest) is not None


def _instructions(text: str) -> Iterable[tuple[int, str, str, list[str]]]:
    """Line number, instruction, its rest, and the texts of its heredocs."""
    lines = text.replace("\r\n", "\n").split("\n")
    index = 0
    while index < len(lines):
        number, line = index + 1, lines[index]
        index += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = []
        while line.rstrip().endswith("\\") and index < len(lines):
            parts.append(line.rstrip()[:-1])
            while index < len(lines) and lines[index].lstrip().startswith("#"):
                index += 1
            line = lines[index] if index < len(lines) else ""
            index += 1
        word, _, rest = "".join([*parts, line]).strip().partition(" ")
        heredocs = []
        for match in _HEREDOC.finditer(rest) if word.upper() in ("RUN", "COPY", "ADD") else ():
            end = next((n for n in range(index, len(lines)) if lines[n].strip() == match[2]), None)
            if end is None:
                raise TaskError(f"environment/Dockerfile, line {number}: {match[2]} never comes.")
            heredocs.append("\n".join(lines[index:end]) + "\n")
            index = end + 1
        yield number, word.upper(), rest, heredocs


def _base(rest: str, host: Host, where: str) -> str:
    words = [word for word in rest.split() if not word.startswith("--platform")]
    name = _REGISTRY.sub("", words[0]).partition("@")[0] if words else ""
    if not any(fnmatch(name, pattern) for pattern in host.bases):
        raise TaskError(
            f"{where}: the base image {name or 'without a name'} is not at hand without an engine."
        )
    return name


def _copy(rest: str, heredocs: Sequence[str], workdir: str, where: str) -> Copy:
    words = _words(rest, where)
    mode = None
    while words and words[0].startswith("--"):
        option, _, value = words.pop(0).partition("=")
        if option == "--chmod" and re.fullmatch(r"[0-7]{3,4}", value):
            mode = value
        elif not (option == "--chown" and value in ("root:root", "root", "0:0", "0")) and option != "--link":
            raise TaskError(f"{where}: COPY {option}: it needs a container engine.")
    if len(words) < 2:
        raise TaskError(f"{where}: COPY needs a source and a target.")
    target = words.pop()
    ends = "/" if target.endswith(("/", "/.")) or target in (".", "./") or len(words) > 1 else ""
    target = _path(target, workdir, where).rstrip("/") + ends
    if heredocs:
        return Copy((), target, mode, heredocs[0])
    if any(".." in source.split("/") for source in words):
        raise TaskError(f"{where}: COPY from outside of environment.")
    return Copy(tuple(source.lstrip("/") or "." for source in words), target, mode)


def _run(rest: str, heredocs: Sequence[str], host: Host, where: str) -> str:
    """The command without what is already true here: installations of packages that are installed."""
    command = rest.strip()
    while command.startswith("--"):
        option, _, command = command.partition(" ")
        if not option.startswith("--mount=type=cache"):
            raise TaskError(f"{where}: RUN {option}: it needs a container engine.")
        command = command.strip()
    if command.startswith("["):
        try:
            command = shlex.join(json.loads(command))
        except (ValueError, TypeError, RecursionError) as error:
            raise TaskError(f"{where}: RUN with a list that is no JSON.") from error
    if heredocs:
        opening = _HEREDOC.search(command)
        assert opening is not None, "a heredoc was read"
        if command[: opening.start()].strip():
            return f"{command}\n{heredocs[0]}{opening[2]}\n"
        command = f"set -e\n{heredocs[0]}"
    return "".join(
        text if is_separator else _without_packages(text, host, where)
        for text, is_separator in _pieces(command)
    )


def _without_packages(text: str, host: Host, where: str) -> str:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        words = text.split()
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in ("sudo", "env")):
        words.pop(0)
    if not words or words[0] not in ("apt-get", "apt", "apk", "yum", "dnf"):
        return text
    verbs = [word for word in words[1:] if not word.startswith("-")]
    if words[0] not in ("apt-get", "apt") or "|" in words or "||" in words:
        raise TaskError(f"{where}: {text.strip()[:80]}: it needs a container engine.")
    if not verbs or verbs[0] != "install":
        return " true "
    options = {word for word in words[1:] if word.startswith("-")}
    named = verbs[1:] if "-t" not in options else verbs[2:]
    names = [re.split(r"[=:/]", name)[0] for name in named]
    missing = sorted(set(names) - host.packages(names))
    if missing:
        raise TaskError(f"{where}: packages that are not installed on this machine: {' '.join(missing)}.")
    return " true "


def _pieces(command: str) -> list[tuple[str, bool]]:
    """Simple commands and, marked, what separates them; quotes are respected."""
    pieces: list[tuple[str, bool]] = []
    start = index = 0
    quote = ""
    while index < len(command):
        char = command[index]
        if quote:
            index += 2 if char == "\\" and quote == '"' else 1
            quote = "" if char == quote else quote
            continue
        if char in "'\"":
            quote = char
        elif char == "\\":
            index += 1
        elif char in ";\n" or command.startswith("&&", index):
            length = 2 if char == "&" else 1
            pieces += [(command[start:index], False), (command[index : index + length], True)]
            index += length
            start = index
            continue
        index += 1
    return [*pieces, (command[start:], False)]


def _assignments(rest: str, where: str) -> dict[str, str]:
    rest = rest.strip()
    if not _ASSIGNMENT.match(rest):  # the old form: ENV NAME the value
        name, _, value = rest.partition(" ")
        return {name: value.strip()}
    pairs = [word.partition("=") for word in _words(rest, where)]
    if not all(equals for _, equals, _ in pairs):
        raise TaskError(f"{where}: ENV {rest[:60]} cannot be read.")
    return {name: value for name, _, value in pairs}


def _path(path: str, workdir: str, where: str) -> str:
    """Absolute, in a directory that a task may have."""
    full = posixpath.normpath(posixpath.join(workdir, path))
    if any(full == name or full.startswith(f"{name}/") for name in _RESERVED):
        raise TaskError(f"{where}: {full} belongs to the verification of a task.")
    if full != "/" and (top := missing_top(full)) is not None:
        raise TaskError(f"{where}: {full} lies in {top} of this machine, which a task cannot change.")
    return full


def _words(text: str, where: str) -> list[str]:
    try:
        if text.strip().startswith("["):
            return [str(word) for word in json.loads(text)]
        return shlex.split(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where} cannot be read: {error}.") from error


def _fill(text: str, values: Mapping[str, str]) -> str:
    left_chars = _MOST_BYTES

    def value_of(match: re.Match[str]) -> str:
        nonlocal left_chars
        value = values.get(match[1] or match[2], match[3] or "")
        left_chars -= len(value)
        if left_chars < 0:
            raise TaskError(f"environment/Dockerfile: variables of more than {_MOST_BYTES} characters.")
        return value

    return _VARIABLE.sub(value_of, text)


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
