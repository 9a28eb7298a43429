"""The parts of a skill's Markdown that can be checked: fenced blocks, code spans, tables of settings.

Pure text work. A block's line is that of its first line of code, counted from 1 in its file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

CHECKED_LANGUAGES = ("python", "bash", "yaml", "json", "toml")
_LANGUAGES = {"py": "python", "sh": "bash", "shell": "bash", "yml": "yaml"}
_FENCE = re.compile(r"^(?P<indent>\s*)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_KEYS = re.compile(r"<!--\s*check:\s*keys=(\S+)\s*-->")
_FIRST_CELL = re.compile(r"^\s*\|\s*`([^`]+)`")


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A fenced block of a Markdown file, or a whole file under scripts/ or templates/."""

    file: str
    line: int
    language: str
    text: str
    run: bool = False
    run_packages: tuple[str, ...] = ()
    """The pinned packages that it needs when it is run; empty: all of them."""
    continues: bool = False
    """Whether the earlier `run` blocks of its file belong in front of it."""
    schema: str | None = None
    skip: str | None = None
    """Why it is not checked; None: it is."""
    problem: str | None = None
    """What is wrong with its info string."""


@dataclass(frozen=True, slots=True)
class CodeSpan:
    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class SettingName:
    """The first cell of a row of a table whose keys are to be checked."""

    file: str
    line: int
    name: str
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SkillPage:
    """What one Markdown file has to check."""

    blocks: tuple[CodeBlock, ...]
    spans: tuple[CodeSpan, ...]
    settings: tuple[SettingName, ...]
    problems: tuple[tuple[int, str], ...] = ()
    """Line and reason: the page itself is malformed."""


@dataclass(slots=True)
class _PageReader:
    file: str
    blocks: list[CodeBlock] = field(default_factory=list)
    spans: list[CodeSpan] = field(default_factory=list)
    settings: list[SettingName] = field(default_factory=list)
    classes: tuple[str, ...] = ()

    def prose(self, number: int, line: str) -> None:
        if keys := _KEYS.search(line):
            self.classes = tuple(keys[1].split(","))
            return
        if self.classes:
            if cell := _FIRST_CELL.match(line):
                self.settings.append(SettingName(self.file, number, cell[1], self.classes))
            elif line.strip() and not line.lstrip().startswith("|"):
                self.classes = ()
        self.spans += [CodeSpan(self.file, number, match[1]) for match in _SPAN.finditer(line)]


def read_page(text: str, file: str) -> SkillPage:
    """The blocks, spans and tables of a Markdown file; front matter is left out."""
    reader = _PageReader(file)
    lines = iter(list(enumerate(text.splitlines(), 1))[_front_lines(text) :])
    problems: list[tuple[int, str]] = []
    for number, line in lines:
        fence = _FENCE.match(line)
        if fence is None:
            reader.prose(number, line)
            continue
        content = _until_closed(lines, fence["fence"])
        if content is None:
            problems.append((number, "a fenced block is not closed"))
            break
        body = "\n".join(_unindented(content, len(fence["indent"]))) + "\n"
        reader.blocks.append(_read_info(fence["info"], body, file, number + 1))
    return SkillPage(tuple(reader.blocks), tuple(reader.spans), tuple(reader.settings), tuple(problems))


def _front_lines(text: str) -> int:
    lines = text.splitlines()
    if not lines or lines[0].strip() != "---":
        return 0
    return next((index + 1 for index, line in enumerate(lines[1:], 1) if line.strip() == "---"), 0)


def _until_closed(lines: Iterator[tuple[int, str]], fence: str) -> list[str] | None:
    content: list[str] = []
    for _, line in lines:
        stripped = line.strip()
        if stripped.startswith(fence) and not stripped.strip(fence[0]):
            return content
        content.append(line)
    return None


def _unindented(lines: list[str], indent: int) -> list[str]:
    return [line[indent:] if not line[:indent].strip() else line for line in lines]


def _read_info(info: str, text: str, file: str, line: int) -> CodeBlock:
    try:
        words = shlex.split(info)
    except ValueError as error:
        return CodeBlock(file, line, "text", text, problem=f"the info string '{info}' is malformed ({error})")
    language = _LANGUAGES.get(words[0], words[0]) if words else "text"
    attributes = dict(_attribute(word) for word in words[1:])
    unknown = set(attributes) - {"run", "check", "continues", "schema", "skip", "reason"}
    problem = None
    if language in CHECKED_LANGUAGES and unknown:
        problem = f"the attribute '{min(unknown)}' of the block does not exist"
    elif "skip" in attributes and not attributes.get("reason"):
        problem = "a skipped block needs reason=…"
    return CodeBlock(
        file,
        line,
        language,
        text,
        run="run" in attributes,
        run_packages=tuple(name for name in attributes.get("run", "").split(",") if name),
        continues="continues" in attributes,
        schema=attributes.get("schema") or None,
        skip=attributes.get("reason") if "skip" in attributes else None,
        problem=problem,
    )


def _attribute(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value
