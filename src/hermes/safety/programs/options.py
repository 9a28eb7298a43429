"""Reads a program's arguments as the program does: options, their values, and operands.

Only listed options are accepted, written in full. So an operand is never mistaken for an option's value, nor
a file for a search expression, and an option that nobody has considered makes the command unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    operands: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    """Option (`-e`, `--regexp`) and its value; empty for a flag."""

    def has(self, *names: str) -> bool:
        return any(option in names for option, _ in self.options)

    def values(self, *names: str) -> list[str]:
        return [value for option, value in self.options if option in names]


@dataclass(frozen=True, slots=True)
class OptionTable:
    """The options that a program may be given without asking. None of their values names a file."""

    flags: str = ""
    """Short options without a value."""
    valued: str = ""
    """Short options with a value, attached or in the next argument."""
    separate: str = ""
    """Short options with a value that is always the next argument, as programs with a parser of their own
    have them."""
    long: str = ""
    """Long options: `name` is a flag, `name=` has a value, `name?` may have one, always after an equals
    sign."""
    number: bool = False
    """Whether -5 is an option."""

    def parse(self, arguments: Sequence[str]) -> ParsedArguments | None:
        """None if an option is not in the table."""
        operands: list[str] = []
        options: list[tuple[str, str]] = []
        rest = list(arguments)
        while rest:
            argument = rest.pop(0)
            if argument == "--":
                operands += rest
                break
            if argument == "-" or not argument.startswith("-"):
                operands.append(argument)
            elif self.number and argument[1:].isdigit():
                options.append(("-number", argument[1:]))
            elif argument.startswith("--"):
                if not self._long(argument, rest, options):
                    return None
            elif not self._short(argument, rest, options):
                return None
        return ParsedArguments(tuple(operands), tuple(options))

    def _long(self, argument: str, rest: list[str], options: list[tuple[str, str]]) -> bool:
        name, equals, value = argument[2:].partition("=")
        names = self.long.split()
        if not equals and (name in names or f"{name}?" in names):
            options.append((f"--{name}", ""))
            return True
        if equals and (f"{name}=" in names or f"{name}?" in names):
            options.append((f"--{name}", value))
            return True
        if not equals and f"{name}=" in names and rest:
            options.append((f"--{name}", rest.pop(0)))
            return True
        return False

    def _short(self, argument: str, rest: list[str], options: list[tuple[str, str]]) -> bool:
        for position, letter in enumerate(argument[1:], 1):
            if letter in self.flags:
                options.append((f"-{letter}", ""))
            elif letter in self.valued:
                attached = argument[position + 1 :]
                if not attached and not rest:
                    return False
                options.append((f"-{letter}", attached or rest.pop(0)))
                return True
            elif letter in self.separate and position == len(argument) - 1 and rest:
                options.append((f"-{letter}", rest.pop(0)))
            else:
                return False
        return True
