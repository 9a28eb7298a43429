"""What is wrong with command lines of the pages: programs, options, settings and fields that do not exist.

Nothing is executed. A line is split into its commands; each must be a program that is known here, and what
the checkout can say about its arguments is checked: commands and options of `hermes`, settings, fields of
environments and runs, targets of make, scripts and modules of the checkout, extras of the package.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import pkgutil
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import click

from hermes.cli.main import cli
from hermes.cli.options import RenamedOption
from hermes.config.edit import is_variable
from hermes.config.schema import find_path
from skills_check.hermes_commands import command_problem, hermes_commands
from tests.docs.pages import ROOT

PLACEHOLDERS = ("…", "...", "|", "[", "<")
FOREIGN = frozenset(
    {
        "accelerate",
        "awk",
        "cat",
        "cd",
        "git",
        "openssl",
        "ray",
        "seq",
        "vllm",
    }  # other people's programs: not checked further
)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")
_OPERATORS = frozenset({"|", "&&", "||", ";", "&"})
_OTHER_MODULES = frozenset({"sglang", "tinker_cookbook"})
"""Modules of projects that this one does not install."""


def line_problems(line: str) -> list[str]:
    """Of a line of a shell block, without its line continuations."""
    try:
        words = _words(line)
    except ValueError as error:
        return [f"{line}: {error}"]
    return [
        f"{line}: {problem}"
        for command in _commands(words)
        if (problem := _problem(command, is_mention=False)) is not None
    ]


def mention_problem(text: str) -> str | None:
    """Of a command in the text, where an option may be named without its value."""
    return _problem(_words(text), is_mention=True)


def setting_problem(name: str) -> str | None:
    """Of a dotted name in the text whose first part is a section of the settings."""
    section, _, rest = name.partition(".")
    if not rest or find_path([section]) is None or find_path(name.split(".")) is not None:
        return None
    return f"there is no setting {name}"


def option_problem(text: str) -> str | None:
    """Of a span of code that begins with an option, whatever command it is of."""
    flag = re.split(r"[ =|,]", text, maxsplit=1)[0]
    if flag.startswith(("--env.", "--openai.")):
        return _field_problem(flag)
    if flag.replace("_", "-") not in _all_flags():
        return f"no command has the option {flag}"
    return None


def _words(line: str) -> list[str]:
    line = _without_explanation(line)
    line = re.sub(r"\$\([^)]*\)", "VALUE", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    return list(lexer)


def _without_explanation(line: str) -> str:
    """In blocks of usage, two spaces outside of quotes begin the explanation."""
    for match in re.finditer("  ", line):
        before = line[: match.start()]
        if before.strip() and not before.count("'") % 2 and not before.count('"') % 2:
            return before
    return line


def _commands(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in words:
        alternatives = word == "|" and command[:1] == ["hermes"]  # `hermes store check | compact`
        if word in _OPERATORS and not alternatives:
            yield command
            command = []
        else:
            command.append(word)
    if command:
        yield command


def _problem(words: list[str], is_mention: bool) -> str | None:
    while words and _VARIABLE.match(words[0]):
        words = words[1:]
    if not words:
        return None
    program, arguments = words[0], words[1:]
    name = Path(program).name
    match name:
        case "hermes":
            return _hermes_problem(arguments, is_mention)
        case "make":
            targets = [word for word in arguments if not _VARIABLE.match(word)]
            return next((f"make has no target {word}" for word in targets if word not in _targets()), None)
        case "pip":
            return _pip_problem(arguments)
        case "python":
            return _python_problem(arguments)
        case "curl":
            return _curl_problem(arguments)
        case "printf":
            return None if arguments else "printf prints nothing"
    if name in FOREIGN or name in _scripts():
        return None
    return f"'{name}' is not a program of this project"


def _hermes_problem(words: list[str], is_mention: bool) -> str | None:
    end = next((i for i, word in enumerate(words) if word.startswith(PLACEHOLDERS) or "|" in word), None)
    if end is not None and "|" not in words[: end + 1]:
        problem = _optional_problem(words, end)
        if problem is not None:
            return problem
    words = words[:end]
    problem = command_problem(words)
    if problem and not ((end is not None or is_mention) and problem.endswith("needs a value")):
        return problem
    former = _former_problem(words)
    if former:
        return former
    if words[:2] in (["config", "set"], ["config", "get"]) and len(words) > 2:
        return _setting_problem(words[2])
    fields = [word for word in words if word.startswith(("--env.", "--openai."))]
    edits = [word for before, word in pairwise(words) if before == "--set"]
    problems = [
        *map(_field_problem, fields),
        *(_edit_problem(edit.partition("=")[0]) for edit in edits if edit.partition("=")[0].islower()),
    ]
    return next((problem for problem in problems if problem is not None), None)


def _optional_problem(words: list[str], end: int) -> str | None:
    """Of the options that a line of usage has in brackets, from the word at `end` on."""
    path = _command_path(words[:end])
    for flag in re.findall(r"(?<!\S)\[(--[a-z-]+)", " ".join(words[end:])):
        problem = command_problem([*path, flag, "VALUE"]) or _former_problem([*path, flag])
        if problem:
            return problem
    return None


def _command_path(words: list[str]) -> list[str]:
    """The words that name the command."""
    command: click.Command = cli
    path: list[str] = []
    for word in words:
        subcommand = (
            command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        )
        if subcommand is None:
            break
        command = subcommand
        path.append(word)
    return path


def _former_problem(words: list[str]) -> str | None:
    """Of the first option that is written with a name that help no longer lists."""
    command: click.Command = cli
    for word in words:
        context = click.Context(command)
        if isinstance(command, click.Group) and command.get_command(context, word) is not None:
            command = command.get_command(context, word) or command
        for option in command.params:
            if isinstance(option, RenamedOption) and word.partition("=")[0] in option.opts[1:]:
                return f"{word} is a former name of {option.opts[0]}"
    return None


def _setting_problem(name: str) -> str | None:
    if is_variable(name) or find_path(name.split(".")) is not None:
        return None
    return None if name.rpartition(".")[2].isupper() else f"there is no setting {name}"


def _field_problem(flag: str) -> str | None:
    section, _, name = flag.removeprefix("--").partition("=")[0].partition(".")
    return None if name in _fields()[section] or not name.islower() else f"no environment has {flag}"


def _edit_problem(name: str) -> str | None:
    fields = _fields()
    section, _, field = name.partition(".")
    known = field in fields.get(section, ()) if field else any(name in names for names in fields.values())
    return None if known else f"no run has the field {name}"


def _pip_problem(words: list[str]) -> str | None:
    for word in words:
        match = re.fullmatch(r"hermes-research\[([\w,]+)\]", word)
        missing = set(match[1].split(",")) - set(_project()["optional-dependencies"]) if match else ()
        if missing:
            return f"the package has no extra {', '.join(missing)}"
    return None


def _python_problem(words: list[str]) -> str | None:
    if words[:1] == ["-m"]:
        module = words[1] if len(words) > 1 else "hermes"
        if module.partition(".")[0] in _OTHER_MODULES or importlib.util.find_spec(module) is not None:
            return None
        return f"there is no module {module}"
    script = words[0] if words else ""
    folders = (ROOT, ROOT / "recipes")
    own = script.startswith(("scripts/", "bench/", "tinker_atropos/")) or script == "launch_training.py"
    if own and not any((folder / script).exists() for folder in folders):
        return f"there is no script {script}"
    if own and script.startswith("bench/"):
        text = (ROOT / script).read_text("utf-8")
        flags = [word.partition("=")[0] for word in words if word.startswith("--") and word != "--help"]
        return next((f"{script} has no option {flag}" for flag in flags if f'"{flag}"' not in text), None)
    return None


def _curl_problem(words: list[str]) -> str | None:
    bodies = [word for before, word in pairwise(words) if before in ("-d", "--data")]
    for body in bodies:
        try:
            json.loads(body)
        except ValueError as error:
            return f"the body is not JSON: {error}"
    return None if any(word.startswith("http") for word in words) else "curl without an address"


@cache
def _all_flags() -> frozenset[str]:
    return frozenset(flag.replace("_", "-") for flag in hermes_commands().flags)


@cache
def _targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@cache
def _project() -> dict[str, dict[str, object]]:
    project: dict[str, dict[str, object]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


@cache
def _scripts() -> frozenset[str]:
    return frozenset(_project()["scripts"])


@cache
def _fields() -> dict[str, frozenset[str]]:
    """The names of the fields of every environment, of its model server, and of the trainer of a run."""
    from hermes.compat.verifiers.env import VerifiersEnv
    from hermes.envs import builtin
    from hermes.envs.agent.config import HermesAgentEnvConfig
    from hermes.envs.config import config_class
    from hermes.envs.servers.config import APIServerConfig
    from hermes.rl.config.fields import TrainerFields

    names = set(HermesAgentEnvConfig.model_fields) | set(config_class(VerifiersEnv).model_fields)
    for module in pkgutil.iter_modules(builtin.__path__, f"{builtin.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if hasattr(value, "env_config_cls"):
                names |= set(config_class(value).model_fields)
    return {
        "env": frozenset(names),
        "openai": frozenset(APIServerConfig.model_fields),
        "tinker": frozenset(TrainerFields.model_fields),
    }
