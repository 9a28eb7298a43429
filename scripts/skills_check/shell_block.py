"""Checks a shell block: it parses, and the options of the commands that can be looked up exist.

Looked up are `hermes`, the console scripts of the pinned packages, `python -m` of their modules, and
programs that the skill's front matter assigns to a package. Other commands only have to parse.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from hermes.safety.harmless import split
from skills_check.names import AbsentTarget, NameIndex
from skills_check.options import OptionIndex, option_index


@dataclass(frozen=True, slots=True)
class HermesCommands:
    """The command line of Hermes, which lies above this package."""

    check: Callable[[list[str]], str | None]
    """The words after `hermes` → what is wrong with them, or None."""
    flags: frozenset[str]
    """Every option of every command."""


_PREFIXES = {"sudo", "nohup", "exec", "time", "env", "uvx", "nice"}
_HERE_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_VARIABLE = re.compile(r"\$\{?\w+\}?")
_SEPARATOR = re.compile(r"\s*(?:&&|\|\||;|\|(?!\|)|&)\s*")


@dataclass(frozen=True, slots=True)
class ShellRules:
    """What commands are checked against."""

    hermes: HermesCommands
    index: NameIndex
    programs: Mapping[str, OptionIndex]


def check_shell(text: str, rules: ShellRules) -> tuple[list[tuple[int, str]], int]:
    """(line inside the block, problem) of what does not exist; how many commands were looked up."""
    if (error := _syntax_error(text)) is not None:
        return [error], 0
    problems: list[tuple[int, str]] = []
    looked_up = 0
    for line, words in commands(text):
        verdict = check_command(words, rules)
        if verdict is not None:
            looked_up += 1
            problems += [(line, problem) for problem in verdict]
    return problems, looked_up


def commands(text: str) -> list[tuple[int, list[str]]]:
    """(line, words) of the simple commands; words that are known only at run time are 'VALUE'."""
    result: list[tuple[int, list[str]]] = []
    for line, command in _logical_lines(text):
        simple = split(command)
        if simple is not None:
            result += [(line, [word or "VALUE" for word in entry]) for entry in simple]
            continue
        for piece in _SEPARATOR.split(command):
            try:
                words = shlex.split(_VARIABLE.sub("VALUE", piece), comments=True)
            except ValueError:
                continue
            if words:
                result.append((line, words))
    return result


def check_command(words: list[str], rules: ShellRules) -> list[str] | None:
    """What is wrong with a command; None: it is not one that can be looked up."""
    words = _without_prefix(words)
    if not words:
        return None
    program, arguments = words[0].rpartition("/")[2], words[1:]
    if program == "hermes":
        problem = rules.hermes.check(arguments)
        return [problem] if problem else []
    if program in ("python", "python3") and arguments[:1] == ["-m"] and len(arguments) > 1:
        return _check_module(arguments[1], arguments[2:], rules)
    if program in rules.programs:
        return _unknown_options(program, arguments, rules.programs[program])
    return None


def _check_module(module: str, arguments: list[str], rules: ShellRules) -> list[str] | None:
    if module == "hermes":
        problem = rules.hermes.check(arguments)
        return [problem] if problem else []
    if module.partition(".")[0] not in rules.index.roots:
        return None
    target = rules.index.module(module)
    if isinstance(target, AbsentTarget):
        return [target.reason]
    source = next(source for source in rules.index.sources if module.partition(".")[0] in source.roots)
    return _unknown_options(f"python -m {module}", arguments, option_index(source))


def _unknown_options(program: str, arguments: list[str], options: OptionIndex) -> list[str]:
    problems = []
    for word in arguments:
        if word == "--" or word.endswith(".py"):
            break  # what follows belongs to the script that a launcher starts
        flag = word.partition("=")[0]
        if re.fullmatch(r"--[A-Za-z][\w.-]*", flag) and not options.has(flag) and flag != "--help":
            close = get_close_matches(flag, options.candidates, n=1)
            nearest = f" (nearest: {close[0]})" if close else ""
            problems.append(f"{program} has no option {flag}{nearest}")
    return problems


def _without_prefix(words: list[str]) -> list[str]:
    index = 0
    while index < len(words):
        word = words[index]
        if word in _PREFIXES or re.match(r"[A-Za-z_]\w*=", word):
            index += 1
        elif (word == "uv" and words[index + 1 : index + 2] == ["run"]) or (
            word == "timeout" and index + 1 < len(words)
        ):
            index += 2
        else:
            break
    return words[index:]


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines with their continuations joined; bodies of here-documents and comments are left out."""
    result: list[tuple[int, str]] = []
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        start, command = index, lines[index]
        while command.endswith("\\") and index + 1 < len(lines):
            index += 1
            command = command[:-1] + " " + lines[index].strip()
        index += 1
        if here := _HERE_DOCUMENT.search(command):
            while index < len(lines) and lines[index].strip() != here[2]:
                index += 1
            index += 1
            command = command[: here.start()]
        if command.strip() and not command.lstrip().startswith("#"):
            result.append((start + 1, command.strip()))
    return result


def _syntax_error(text: str) -> tuple[int, str] | None:
    shell = shutil.which("bash") or shutil.which("sh")
    if shell is None:
        return None
    done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    reason = done.stderr.strip().splitlines()[0] if done.stderr.strip() else "syntax error"
    match = re.search(r"line (\d+): (.*)", reason)
    return (
        (int(match[1]), f"is not valid shell: {match[2]}") if match else (1, f"is not valid shell: {reason}")
    )
