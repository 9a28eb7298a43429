"""One skill: a directory with a SKILL.md that describes how to do a kind of work.

The file starts with YAML front matter between `---` lines, followed by Markdown. Parsing is pure and strict
about the fields that Hermes uses; unknown fields are ignored, so that skills written for other agents load.
Loading a skill never executes anything in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from hermes.config.yaml_file import limited_yaml
from hermes.core import JSON, JSONObject
from hermes.errors import HermesError

SKILL_FILE = "SKILL.md"
MAX_SKILL_BYTES = 256_000
MAX_NAME_CHARS = 64
MAX_DESCRIPTION_CHARS = 1024
MAX_SUMMARY_CHARS = 80
"""Limit of the line that the agent's prompt has for a skill: with the name about 25 tokens."""
MAX_CUT_CHARS = 60
"""Limit of a description that stands in for a summary; its words are not chosen to be few tokens."""
AREAS = (
    "training",
    "inference",
    "cloud",
    "evaluation",
    "data",
    "tracking",
    "environments",
    "research",
    "hermes",
)
PLATFORMS = ("linux", "macos", "windows")

_HINT = "A well-formed one to compare with: hermes skills view arxiv --file SKILL.md"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\Z")


class SkillOrigin(StrEnum):
    BUNDLED = "bundled"
    """Comes with Hermes; read-only."""
    USER = "user"
    """Stored under the home directory; hides a bundled skill of the same name."""


class SkillError(HermesError):
    """A skill is malformed or cannot be installed. `field` is the front matter key, or '' for the file."""

    exit_code = 2

    def __init__(self, file: str, field: str, reason: str, hint: str = _HINT) -> None:
        where = f"{file}: {field}: " if field else f"{file}: "
        super().__init__(where + reason, hint)
        self.file = file
        self.field = field
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PinnedPackage:
    """A package of the Python registry, at the version that a skill was written for."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class Skill:
    name: str
    description: str
    """When to use it, in a sentence or two: the only text shown before the skill is opened."""
    category: str
    origin: SkillOrigin
    directory: Path
    body: str
    """The Markdown after the front matter."""
    version: str | None = None
    license: str | None = None
    platforms: tuple[str, ...] = ()
    """Some of 'linux', 'macos', 'windows'; empty means every platform."""
    env_vars: tuple[str, ...] = ()
    """Environment variables it needs."""
    commands: tuple[str, ...] = ()
    """Programs it needs on the PATH."""
    tags: tuple[str, ...] = ()
    related: tuple[str, ...] = ()
    summary: str | None = None
    """Its purpose in at most 80 characters, for the agent's prompt; None: the description is cut."""
    area: str | None = None
    """The kind of work, one of `AREAS`; `mlops/training/axolotl` names a skill by it."""
    aliases: tuple[str, ...] = ()
    """Names in other collections that find this skill."""
    packages: tuple[PinnedPackage, ...] = ()
    """The packages that its blocks are checked against; the first one is the skill's subject."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Program → pinned package whose source has the program's flags."""
    other_flags: tuple[str, ...] = ()
    """Flags in its prose that belong to programs outside its packages."""
    verified: str | None = None
    """The day (YYYY-MM-DD) on which its check last passed."""
    learned_from: str | None = None
    """The trajectory that it was drafted from; None: somebody wrote it."""

    @property
    def listing(self) -> str:
        """The line for the agent's prompt."""
        if self.summary:
            return self.summary
        if len(self.description) <= MAX_CUT_CHARS:
            return self.description
        return self.description[: MAX_CUT_CHARS - 1].rsplit(" ", 1)[0] + "…"

    def answers_to(self, name: str) -> bool:
        """Whether `name` means this skill: `[official/][category/][area/]NAME`, NAME or an alias."""
        *path, last = name.removeprefix("official/").split("/")
        return last in (self.name, *self.aliases) and all(part in (self.category, self.area) for part in path)

    def to_json(self) -> JSONObject:
        """The listed fields, without the body."""
        return {
            "name": self.name,
            "description": self.description,
            "category": self.category,
            "origin": self.origin.value,
            "version": self.version,
            "license": self.license,
            "platforms": list(self.platforms),
            "prerequisites": {"env_vars": list(self.env_vars), "commands": list(self.commands)},
            "tags": list(self.tags),
            "related_skills": list(self.related),
            "area": self.area,
            "aliases": list(self.aliases),
            "packages": [{"name": package.name, "version": package.version} for package in self.packages],
            "verified": self.verified,
            "learned_from": self.learned_from,
        }


@lru_cache(maxsize=256)  # a batch lists the skills for every rollout, and YAML costs 10 ms a skill
def parse_skill(text: str, *, file: str, directory: Path, category: str, origin: SkillOrigin) -> Skill:
    """Raises `SkillError` naming the file, the field and the reason."""
    front, body = _split(text, file)
    fields = _Fields(_load_yaml(front, file), file)
    name = fields.text("name", MAX_NAME_CHARS)
    check_name(name, file)
    prerequisites = fields.section("prerequisites")
    hermes = fields.section("metadata").section("hermes")
    platforms = fields.texts("platforms")
    for platform in platforms:
        if platform not in PLATFORMS:
            raise SkillError(file, "platforms", f"'{platform}' is not one of {', '.join(PLATFORMS)}")
    if not body.strip():
        raise SkillError(file, "", "there is no text after the front matter")
    return Skill(
        name=name,
        description=" ".join(fields.text("description", MAX_DESCRIPTION_CHARS).split()),
        category=category,
        origin=origin,
        directory=directory,
        body=body.strip() + "\n",
        version=fields.scalar("version"),
        license=fields.scalar("license"),
        platforms=platforms,
        env_vars=prerequisites.texts("env_vars"),
        commands=prerequisites.texts("commands"),
        tags=hermes.texts("tags"),
        related=hermes.texts("related_skills"),
        summary=hermes.optional_text("summary", MAX_SUMMARY_CHARS),
        area=_area(hermes, file),
        aliases=hermes.texts("aliases"),
        packages=tuple(hermes.packages()),
        programs=hermes.text_map("programs"),
        other_flags=hermes.texts("other_flags"),
        verified=hermes.day("verified"),
        learned_from=hermes.optional_text("learned_from", MAX_NAME_CHARS),
    )


def _area(hermes: _Fields, file: str) -> str | None:
    area = hermes.optional_text("area", MAX_NAME_CHARS)
    if area is not None and area not in AREAS:
        raise SkillError(file, "metadata.hermes.area", f"'{area}' is not one of {', '.join(AREAS)}")
    return area


def check_name(name: str, file: str) -> None:
    if len(name) > MAX_NAME_CHARS or not _NAME.match(name):
        raise SkillError(
            file,
            "name",
            f"'{name[:80]}' is not a skill name",
            f"Use at most {MAX_NAME_CHARS} lower-case letters, digits and dashes.",
        )


def read_skill(directory: Path, *, category: str, origin: SkillOrigin) -> Skill:
    """Loads `directory`/SKILL.md; its `name` must be the directory's name."""
    path = directory / SKILL_FILE
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_SKILL_BYTES + 1)
        if len(data) > MAX_SKILL_BYTES:
            raise SkillError(str(path), "", f"is larger than {MAX_SKILL_BYTES} bytes")
        text = data.decode("utf-8")
    except OSError as error:
        raise SkillError(str(path), "", f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise SkillError(str(path), "", f"is not UTF-8 text (byte {error.start})") from error
    skill = parse_skill(text, file=str(path), directory=directory, category=category, origin=origin)
    if skill.name != directory.name:
        raise SkillError(str(path), "name", f"is '{skill.name}', but the directory is '{directory.name}'")
    return skill


def _split(text: str, file: str) -> tuple[str, str]:
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    if not lines or lines[0].strip() != "---":
        raise SkillError(file, "", "does not start with a '---' line and front matter")
    for index in range(1, len(lines)):
        if lines[index].strip() == "---":
            return "".join(lines[1:index]), "".join(lines[index + 1 :])
    raise SkillError(file, "", "the front matter is not closed by a '---' line")


def _load_yaml(front: str, file: str) -> Mapping[str, JSON]:
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        value = limited_yaml().load(front)
    except MarkedYAMLError as error:
        # The mark counts from 0 inside the front matter, which starts on the file's second line.
        line = f"line {error.problem_mark.line + 2}: " if error.problem_mark else ""
        raise SkillError(file, "", f"{line}front matter is not valid YAML ({error.problem})") from error
    except (YAMLError, ValueError) as error:  # ValueError: a day 99 of a month, a number of 5,000 digits
        raise SkillError(file, "", f"front matter is not valid YAML ({error})") from error
    if not isinstance(value, dict):
        raise SkillError(file, "", "front matter must be a mapping of fields")
    return value


class _Fields:
    """Typed access to a mapping from outside, with errors that name the dotted field."""

    def __init__(self, data: Mapping[str, JSON], file: str, prefix: str = "") -> None:
        self._data = data
        self._file = file
        self._prefix = prefix

    def _fail(self, key: str, reason: str) -> SkillError:
        return SkillError(self._file, self._prefix + key, reason)

    def text(self, key: str, max_chars: int) -> str:
        value = self._data.get(key)
        if value is None or value == "":
            raise self._fail(key, "is missing")
        if not isinstance(value, str):
            raise self._fail(key, f"must be text, not {type(value).__name__}")
        if len(value) > max_chars:
            raise self._fail(key, f"is {len(value)} characters; at most {max_chars} are allowed")
        return value.strip()

    def scalar(self, key: str) -> str | None:
        """Text or a number: `version: 1.0` is a number in YAML."""
        value = self._data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self._fail(key, f"must be text, not {type(value).__name__}")
        return str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._data.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._fail(key, "must be a list of texts")
        return tuple(value)

    def optional_text(self, key: str, max_chars: int) -> str | None:
        return self.text(key, max_chars) if self._data.get(key) is not None else None

    def day(self, key: str) -> str | None:
        """A date, which YAML reads as one unless it is quoted."""
        value: object = self._data.get(key)
        if value is None:
            return None
        try:
            return date.fromisoformat(str(value)).isoformat()
        except ValueError as error:
            raise self._fail(key, f"'{value}' is not a day like 2026-11-17") from error

    def text_map(self, key: str) -> dict[str, str]:
        section = self.section(key)
        return {name: section.text(name, MAX_NAME_CHARS) for name in section._data}

    def packages(self) -> Iterator[PinnedPackage]:
        """The entries of `packages: [{name, version}]`, or the one of `package: {name, version}`."""
        single = self._data.get("package")
        values = [single] if isinstance(single, dict) else self._data.get("packages") or []
        if not isinstance(values, list):
            raise self._fail("packages", "must be a list of {name, version}")
        for index, value in enumerate(values):
            if not isinstance(value, dict):
                raise self._fail("packages", "must be a list of {name, version}")
            entry = _Fields(value, self._file, f"{self._prefix}packages[{index}].")
            version = entry.scalar("version")
            if not version:
                raise entry._fail("version", "is missing: a skill is written for one version")
            yield PinnedPackage(entry.text("name", MAX_NAME_CHARS), version)

    def section(self, key: str) -> _Fields:
        value = self._data.get(key)
        if value is not None and not isinstance(value, dict):
            raise self._fail(key, f"must be a mapping, not {type(value).__name__}")
        return _Fields(value or {}, self._file, f"{self._prefix}{key}.")
