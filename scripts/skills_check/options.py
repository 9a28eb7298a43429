"""The options of a package's command lines, read from its source.

An option counts as existing when its string is written in the source, or when it is the name of a field or
of a command's parameter, from which libraries (typer, tyro, HfArgumentParser) make options. Which
subcommand has it is not decided: a real option under the wrong subcommand passes.
"""

from __future__ import annotations

import ast
import re
from functools import cache, cached_property

from skills_check.package_source import PackageSource

_OPTION = re.compile(rb"(?<![\w-])--[A-Za-z][\w.-]*")
_CODE_SUFFIXES = (".py", ".cpp", ".cc", ".c", ".h", ".hpp")


class OptionIndex:
    """The options of one package."""

    def __init__(self, source: PackageSource) -> None:
        self._source = source

    def has(self, flag: str) -> bool:
        """Whether `--flag` exists; `--no-flag` counts where `--flag` is an option."""
        plain = flag.replace("_", "-")
        if plain in self._written or plain.replace("--no-", "--", 1) in self._written:
            return True
        names = plain.removeprefix("--").removeprefix("no-").split(".")
        return all(name in self._fields for name in names)

    @property
    def candidates(self) -> list[str]:
        """For the nearest name in a message."""
        return sorted(self._written)

    @cached_property
    def _written(self) -> frozenset[str]:
        options: set[str] = set()
        for path, data in self._source.files.items():
            if path.endswith(_CODE_SUFFIXES):
                options |= {match.decode() for match in _OPTION.findall(data)}
        return frozenset(option.rstrip(".-").replace("_", "-") for option in options)

    @cached_property
    def _fields(self) -> frozenset[str]:
        names: set[str] = set()
        for path in self._source.modules.values():
            text = self._source.text(path)
            if "class " in text or "@" in text:
                names |= _field_names(text)
        return frozenset(name.replace("_", "-") for name in names)


@cache
def option_index(source: PackageSource) -> OptionIndex:
    """The options of a package, read once."""
    return OptionIndex(source)


def _field_names(text: str) -> set[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names |= {
                statement.target.id
                for statement in node.body
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            }
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_command(node):
            names |= {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
    return names


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    heads = [ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list]
    return any(head.endswith((".command", ".callback", ".function", ".local_entrypoint")) for head in heads)
