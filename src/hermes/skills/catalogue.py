"""The catalogue of skills: the bundled library, and the user's skills under the home directory.

Listing never fails because of one skill: a broken one is reported with the valid ones. A user's skill hides
the bundled one of the same name, even if it is broken, so that a failed edit is visible instead of being
silently replaced by the original.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hermes.config.paths import skills_dir
from hermes.core.names import did_you_mean, nearest
from hermes.disk.trees import walk
from hermes.errors import ConfigError, UsageError
from hermes.safety.paths import open_inside
from hermes.skills.skill import SKILL_FILE, Skill, SkillError, SkillOrigin, read_skill

LIBRARY = Path(__file__).parent / "library"
UNSORTED = "user"
"""Category of a user's skill that is stored directly in the skills directory."""
MAX_FILE_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class BrokenSkill:
    name: str
    origin: SkillOrigin
    error: SkillError


@dataclass(frozen=True, slots=True)
class Catalogue:
    skills: tuple[Skill, ...]
    """By category, then name."""
    broken: tuple[BrokenSkill, ...]

    def with_bodies(self, bodies: Mapping[str, str]) -> Catalogue:
        """The catalogue in which skills of these names have other bodies; one with an empty body is gone."""
        changed = (replace(skill, body=bodies.get(skill.name, skill.body)) for skill in self.skills)
        return replace(self, skills=tuple(skill for skill in changed if skill.body))

    @property
    def categories(self) -> tuple[str, ...]:
        return tuple(sorted({skill.category for skill in self.skills}))

    def find(self, name: str) -> Skill:
        """By name or alias, alone or after `category/` or `category/area/`, with or without `official/`.

        A skill's own name wins over another skill's alias.
        """
        plain_name = name.removeprefix("official/")
        matches = [skill for skill in self.skills if skill.answers_to(name)]
        if matches:
            return min(matches, key=lambda skill: skill.name != plain_name.rpartition("/")[2])
        for broken in self.broken:
            if plain_name.rpartition("/")[2] == broken.name:
                raise broken.error
        close = self.nearest(plain_name)
        hint = did_you_mean(close, "'hermes skills browse' lists them.")
        raise UsageError(f"there is no skill '{name}'.", hint)

    def nearest(self, name: str) -> list[str]:
        """At most three names of skills that resemble `name`, or whose aliases do."""
        names = {alias: skill.name for skill in self.skills for alias in (skill.name, *skill.aliases)}
        close = nearest(name.rpartition("/")[2], names)
        return list(dict.fromkeys(names[match] for match in close))

    def search(self, query: str) -> tuple[Skill, ...]:
        """Best first: rare words of the query count more, and more in a name than in the text.

        A skill whose whole name is a word of the query comes before the others.
        """
        words = dict.fromkeys(re.findall(r"\w[\w-]*", query.casefold()))
        texts = [_weighted_texts(skill) for skill in self.skills]
        totals = [0.0] * len(texts)
        for word in words:
            weights = [
                max((weight for weight, text in fields if word in text), default=0) for fields in texts
            ]
            if count := sum(weight > 0 for weight in weights):
                rarity = math.log1p(len(texts) / count)
                totals = [total + rarity * weight for total, weight in zip(totals, weights, strict=True)]
        matches = [(total, skill) for total, skill in zip(totals, self.skills, strict=True) if total > 0]
        matches.sort(key=lambda match: (match[1].name not in words, -match[0], match[1].name))
        return tuple(skill for _, skill in matches)


def list_skills(home: Path) -> Catalogue:
    """The bundled skills and the user's."""
    return _read_roots(((LIBRARY, SkillOrigin.BUNDLED), (skills_dir(home), SkillOrigin.USER)))


def bundled_skills() -> Catalogue:
    """The library alone, which no skill of the user hides."""
    return _read_roots(((LIBRARY, SkillOrigin.BUNDLED),))


def _read_roots(roots: Sequence[tuple[Path, SkillOrigin]]) -> Catalogue:
    good: dict[str, Skill] = {}
    broken: dict[str, BrokenSkill] = {}
    for root, origin in roots:
        with file_errors(root):
            directories = list(skill_directories(root))
        for directory, category in directories:
            name = directory.name
            good.pop(name, None)
            broken.pop(name, None)
            try:
                good[name] = read_skill(directory, category=category, origin=origin)
            except SkillError as error:
                broken[name] = BrokenSkill(name, origin, error)
    return Catalogue(
        tuple(sorted(good.values(), key=lambda skill: (skill.category, skill.name))),
        tuple(sorted(broken.values(), key=lambda entry: entry.name)),
    )


def skill_directories(root: Path) -> Iterator[tuple[Path, str]]:
    """Each directory with a SKILL.md in `root` or one level below, with its category."""
    for entry in _subdirectories(root):
        if (entry / SKILL_FILE).is_file():
            yield entry, UNSORTED
            continue
        for inner in _subdirectories(entry):
            if (inner / SKILL_FILE).is_file():
                yield inner, entry.name


def skill_files(skill: Skill) -> list[str]:
    """Every file of the skill but SKILL.md, as paths relative to its directory."""
    return [name for name in relative_files(skill.directory) if name != SKILL_FILE]


def relative_files(directory: Path) -> list[str]:
    """Regular files below `directory`, sorted; links are not followed and not listed."""
    files: list[str] = []
    for parent, _, names in walk(directory):
        paths = (parent / name for name in names)
        regular = (path for path in paths if stat.S_ISREG(path.lstat().st_mode))
        files += [path.relative_to(directory).as_posix() for path in regular]
    return sorted(files)


def read_skill_file(skill: Skill, file_path: str) -> str:
    """The text of a file inside the skill's directory; files outside it are refused."""
    label = f"{skill.name}/{file_path}"
    hint = f"Its files are listed by: hermes skills view {skill.name}"
    try:
        descriptor = open_inside(
            skill.directory, file_path, os.O_RDONLY | os.O_NONBLOCK
        )  # a pipe must not block
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SkillError(label, "", "is not a regular file", hint)
            data = os.read(descriptor, MAX_FILE_BYTES + 1)
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        files = ", ".join([SKILL_FILE, *skill_files(skill)])
        raise UsageError(
            f"the skill '{skill.name}' has no file '{file_path}'.", f"It has: {files}"
        ) from error
    except OSError as error:
        raise SkillError(label, "", f"cannot be read ({error.strerror})", hint) from error
    if len(data) > MAX_FILE_BYTES:
        raise SkillError(label, "", f"is larger than {MAX_FILE_BYTES} bytes", hint)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SkillError(label, "", "is not text", hint) from error


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turns an OSError into a ConfigError that names the path."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot read or write {path}: {error.strerror}", "Check its permissions and the disk."
        ) from error


def _subdirectories(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _weighted_texts(skill: Skill) -> tuple[tuple[int, str], ...]:
    """Texts of a skill, each with what a word in it counts."""
    return (
        (8, " ".join((skill.name, *skill.aliases)).casefold()),
        (4, " ".join((*skill.tags, skill.area or "")).casefold()),
        (2, f"{skill.category} {skill.description}".casefold()),
        (1, skill.body.casefold()),
    )
