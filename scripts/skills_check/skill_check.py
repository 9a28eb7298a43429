"""Checks one skill: its form, its blocks and its prose against the pinned packages and Hermes itself.

A package's source is read once for all skills that pin it. Nothing is executed here (`execute` does that on
request).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import hermes
from hermes.skills.catalogue import MAX_FILE_BYTES, read_skill_file, skill_files
from hermes.skills.skill import SKILL_FILE, PinnedPackage, Skill, SkillOrigin
from skills_check.blocks import (
    CHECKED_LANGUAGES,
    CodeBlock,
    CodeSpan,
    SettingName,
    SkillPage,
    read_page,
)
from skills_check.config_block import ConfigBlockError, check_keys, key_names, parse_config
from skills_check.names import AbsentTarget, NameIndex
from skills_check.options import option_index
from skills_check.package_source import PackageSource, find_source
from skills_check.python_block import PythonScope, check_python
from skills_check.registry import RegistryError
from skills_check.report import Problem, SkillReport
from skills_check.shell_block import HermesCommands, ShellRules, check_shell

MAX_SKILL_LINES = 500
MAX_TRIGGER_CHARS = 200
MAX_CARRIED_BYTES = 200_000
_SUFFIXES = {
    ".py": "python",
    ".sh": "bash",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".toml": "toml",
}
_SCHEMA_LINE = re.compile(r"#\s*check:\s*schema=(\S+)")
_FLAG = re.compile(r"(--[A-Za-z][\w.-]*)(?:[= ].*)?\Z")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


@dataclass(frozen=True, slots=True)
class Packages:
    """Where packages come from, and those that were read already."""

    cache: Path
    index: str
    sources: dict[PinnedPackage, PackageSource | RegistryError]

    def find(self, package: PinnedPackage) -> PackageSource:
        """Raises `RegistryError`, the same one each time."""
        if package not in self.sources:
            try:
                self.sources[package] = find_source(package, self.cache, self.index)
            except RegistryError as error:
                self.sources[package] = error
        source = self.sources[package]
        if isinstance(source, RegistryError):
            raise source
        return source


def check_skill(skill: Skill, commands: HermesCommands, packages: Packages | None) -> SkillReport:
    """The report on a skill; without `packages` only what needs none (the quick part)."""
    report = SkillReport(skill, quick=packages is None)
    if skill.origin is SkillOrigin.BUNDLED:
        report.problems += check_form(skill)
    sources = _read_sources(report, packages) if packages else {}
    _SkillChecker(report, commands, sources).check()
    if packages is None:
        return report
    if skill.packages and not report.lookups and not report.problems and not report.unchecked:
        report.unchecked.append("nothing that its blocks name could be looked up")
    return report


def check_form(skill: Skill) -> Iterator[Problem]:
    """The rules for skills of the library, beyond those of `parse_skill`."""
    lines = read_skill_file(skill, SKILL_FILE).count("\n")
    if lines > MAX_SKILL_LINES:
        yield Problem(SKILL_FILE, 0, f"has {lines} lines; at most {MAX_SKILL_LINES} are allowed")
    if len(skill.description) > MAX_TRIGGER_CHARS:
        length = len(skill.description)
        yield Problem(
            SKILL_FILE, 0, f"description: is {length} characters; at most {MAX_TRIGGER_CHARS} are allowed"
        )
    for name in ("summary", "area", "verified", "version"):
        if getattr(skill, name) is None:
            yield Problem(SKILL_FILE, 0, f"front matter: {name} is missing")
    for path in skill_files(skill):
        size = (skill.directory / path).stat().st_size
        if size > MAX_CARRIED_BYTES:
            yield Problem(path, 0, f"is {size} bytes; at most {MAX_CARRIED_BYTES} are allowed")


def pages(skill: Skill) -> Iterator[SkillPage]:
    """SKILL.md and the other Markdown files of the skill."""
    for path in (SKILL_FILE, *(name for name in skill_files(skill) if name.endswith(".md"))):
        yield read_page(read_skill_file(skill, path), path)


def carried_blocks(skill: Skill) -> Iterator[CodeBlock]:
    """Scripts and templates, each as one block."""
    for path in skill_files(skill):
        language = _SUFFIXES.get(Path(path).suffix)
        if language is None or (skill.directory / path).stat().st_size > MAX_FILE_BYTES:
            continue
        text = read_skill_file(skill, path)
        schema = _SCHEMA_LINE.match(text)
        yield CodeBlock(path, 1, language, text, schema=schema[1] if schema else None)


@cache
def own_source() -> PackageSource:
    """The source of Hermes, for skills that import it."""
    root = Path(hermes.__file__).parent
    files = {
        path.relative_to(root.parent).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*.py"))
        if "library" not in path.relative_to(root).parts
    }
    return PackageSource(PinnedPackage("hermes-research", hermes.__version__), "this installation", files)


def _read_sources(report: SkillReport, packages: Packages) -> Mapping[str, PackageSource]:
    sources: dict[str, PackageSource] = {}
    for package in report.skill.packages:
        try:
            sources[package.name] = packages.find(package)
            report.sources[str(package)] = sources[package.name].origin
        except RegistryError as error:
            if error.offline:
                report.unchecked.append(f"{package}: {error.message}")
            else:
                report.problems.append(Problem(SKILL_FILE, 0, f"packages: {error.message}. {error.hint}"))
    return sources


class _SkillChecker:
    def __init__(
        self, report: SkillReport, commands: HermesCommands, sources: Mapping[str, PackageSource]
    ) -> None:
        self.report = report
        self.skill = report.skill
        self.index = NameIndex([*sources.values(), own_source()])
        self.options = {name: option_index(source) for name, source in sources.items()}
        programs = {
            script: self.options[name] for name, source in sources.items() for script in source.programs
        }
        for program, package in self.skill.programs.items():
            if package in self.options:
                programs[program] = self.options[package]
            elif not report.quick and package not in {pinned.name for pinned in self.skill.packages}:
                report.problems.append(Problem(SKILL_FILE, 0, f"programs: {package} is not one of packages"))
        self.commands = commands
        self.rules = ShellRules(commands, self.index, programs)
        self.unpinned: set[str] = set()
        self.undecided: set[str] = set()
        self.local_modules = {Path(path).stem for path in skill_files(self.skill)}

    def check(self) -> None:
        skipped = checked = 0
        for page in pages(self.skill):
            file = page.blocks[0].file if page.blocks else SKILL_FILE
            self.report.problems += [Problem(file, line, reason) for line, reason in page.problems]
            scope = PythonScope()
            for block in page.blocks:
                if block.skip:
                    skipped += 1
                    self.report.notes.append(f"{block.file}:{block.line}: not checked: {block.skip}")
                elif block.language in CHECKED_LANGUAGES or block.problem:
                    checked += 1
                    self._block(block, scope)
            self._finish(scope)
            self._prose(page)
        for block in carried_blocks(self.skill):
            checked += 1
            scope = PythonScope()
            self._block(block, scope)
            self._finish(scope)
        self.report.blocks = checked
        if skipped and not checked:
            self.report.unchecked.append("all its blocks are skipped")
        if self.undecided and not self.report.quick:
            names = ", ".join(sorted(self.undecided)[:8])
            more = f" and {len(self.undecided) - 8} more" if len(self.undecided) > 8 else ""
            self.report.notes.append(f"left open by the source: {names}{more}")
        if self.unpinned and not self.report.quick:
            self.report.notes.append(f"not pinned, not looked into: {', '.join(sorted(self.unpinned))}")

    def _finish(self, scope: PythonScope) -> None:
        self.unpinned |= scope.unpinned
        self.undecided |= scope.undecided
        self.report.lookups += scope.looked_up

    def _block(self, block: CodeBlock, scope: PythonScope) -> None:
        if block.problem:
            self._problem(block, 1, block.problem)
        elif block.language == "python":
            for line, text in check_python(block.text, self.index, scope, self.local_modules):
                self._problem(block, line, text)
        elif block.language == "bash":
            problems, count = check_shell(block.text, self.rules)
            self.report.lookups += count
            for line, text in problems:
                self._problem(block, line, text)
        else:
            self._config(block)

    def _config(self, block: CodeBlock) -> None:
        try:
            documents = parse_config(block.text, block.language)
        except ConfigBlockError as error:
            self._problem(block, error.line, error.reason)
            return
        if block.schema is None or self._is_missing(block.schema):
            return
        problems, count = check_keys(documents, block.schema, self.index)
        self.report.lookups += count
        for text in problems:
            self._problem(block, _key_line(block.text, text), text)

    def _is_missing(self, dotted: str) -> bool:
        """Whether the class is of a package whose source could not be read, which was reported."""
        missing = self.report.quick or len(self.report.sources) < len(self.report.skill.packages)
        return missing and dotted.partition(".")[0] not in self.index.roots

    def _prose(self, page: SkillPage) -> None:
        for span in page.spans:
            if not self.report.quick:
                self._span(span)
        for setting in page.settings:
            if not any(self._is_missing(name) for name in setting.classes):
                self._setting(setting)

    def _span(self, span: CodeSpan) -> None:
        flag = _FLAG.match(span.text)
        if flag:
            self._flag(span, flag[1])
        elif _DOTTED.fullmatch(span.text) and span.text.partition(".")[0] in self.index.roots:
            target = self.index.resolve(span.text)
            # `config.yaml` and the like begin with a word that a package may be called by.
            if isinstance(target, AbsentTarget) and span.text.rpartition(".")[2] not in _FILE_ENDINGS:
                text = f"{span.text} does not exist: {target.reason}"
                self.report.problems.append(Problem(span.file, span.line, text))
            elif not isinstance(target, AbsentTarget):
                self.report.lookups += 1

    def _flag(self, span: CodeSpan, flag: str) -> None:
        if flag in self.skill.other_flags or flag in self.commands.flags:
            return
        if len(self.options) < len(self.skill.packages) or not self.options:
            return
        if any(options.has(flag) for options in self.options.values()):
            self.report.lookups += 1
            return
        candidates = [name for options in self.options.values() for name in options.candidates]
        close = get_close_matches(flag, candidates, n=1)
        nearest = f" (nearest: {close[0]})" if close else ""
        self.report.problems.append(Problem(span.file, span.line, f"no pinned package has {flag}{nearest}"))

    def _setting(self, setting: SettingName) -> None:
        names: set[str] = set()
        for dotted in setting.classes:
            keys = key_names(dotted, self.index)
            if keys is None:
                text = f"the class {dotted} of the table does not exist"
                self.report.problems.append(Problem(setting.file, setting.line, text))
                return
            if keys[1]:
                self.undecided.add(f"{dotted}({setting.name})")
                return
            names |= keys[0]
        key = setting.name.partition("=")[0].partition(":")[0].strip().partition(".")[0]
        self.report.lookups += 1
        if key not in names:
            close = get_close_matches(key, names, n=1)
            nearest = f" (nearest: {close[0]})" if close else ""
            text = f"{' or '.join(setting.classes)} has no field '{key}'{nearest}"
            self.report.problems.append(Problem(setting.file, setting.line, text))

    def _problem(self, block: CodeBlock, line: int, text: str) -> None:
        self.report.problems.append(Problem(block.file, block.line + line - 1, text))


_FILE_ENDINGS = {
    "py",
    "md",
    "json",
    "jsonl",
    "yaml",
    "yml",
    "toml",
    "txt",
    "log",
    "db",
    "sh",
    "csv",
    "parquet",
    "cfg",
}


def _key_line(text: str, problem: str) -> int:
    """The line of the key that a problem names, or the block's first one."""
    key = problem.partition("field '")[2].partition("'")[0].rpartition(".")[2]
    pattern = re.compile(rf"^[\s\"'-]*{re.escape(key)}[\"']?\s*[:=]", re.M)
    match = pattern.search(text) if key else None
    return text.count("\n", 0, match.start()) + 1 if match else 1
