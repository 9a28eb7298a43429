"""Installs, changes and checks the user's skills under the home directory.

A new skill is first written to a quarantine directory beside the others, validated there, and renamed into
place atomically; until then it is not listed. The lock file stores the hash of every installed file, so that
`check` can report changes. A skill's scripts are never run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from hermes.config.paths import skills_dir
from hermes.core import JSONObject, new_id
from hermes.core.names import did_you_mean
from hermes.disk.files import atomic_write, ensure_dir, read_text
from hermes.errors import ConfigError, UsageError
from hermes.skills.catalogue import (
    bundled_skills,
    file_errors,
    list_skills,
    relative_files,
    skill_directories,
)
from hermes.skills.skill import (
    MAX_SKILL_BYTES,
    SKILL_FILE,
    Skill,
    SkillError,
    SkillOrigin,
    parse_skill,
    read_skill,
)
from hermes.skills.source import Files, read_source
from hermes.skills.trials import note, results

QUARANTINE = ".quarantine"
_OFFICIAL = "official/"
"""How the sources of bundled skills begin."""


@dataclass(frozen=True, slots=True)
class SkillCandidate:
    """A skill that was read and validated, but not installed."""

    skill: Skill
    files: Files
    source: str
    """Where it came from: a path, or `official/<category>/<name>`."""
    category: str | None
    """Its subdirectory of the skills directory; None: directly in it."""


@dataclass(frozen=True, slots=True)
class SkillFinding:
    """The result of `check` for one skill."""

    name: str
    origin: SkillOrigin
    problems: tuple[str, ...]
    """Malformed, or changed since it was installed."""
    missing: tuple[str, ...]
    """Prerequisites this machine lacks."""
    trial: str | None = None
    """Notes from its trials that a person has to know."""

    @property
    def state(self) -> str:
        """The same in one line."""
        needs = f"needs {', '.join(self.missing)}" if self.missing else ""
        return "; ".join(self.problems) or "; ".join(filter(None, (needs, self.trial))) or "ok"

    def to_json(self) -> JSONObject:
        return {
            "name": self.name,
            "origin": self.origin.value,
            "ok": not self.problems,
            "problems": list(self.problems),
            "missing": list(self.missing),
            "trial": self.trial,
        }


def prepare(source: str) -> SkillCandidate:
    """Reads and validates `source`: the name of a bundled skill, else a directory or an archive."""
    path = Path(source).expanduser()
    category: str | None = None
    if bundled := _find_bundled(source):
        path, category = bundled
        origin = f"{_OFFICIAL}{category}/{path.name}"
    elif path.exists():
        origin = str(path.resolve())
    else:
        close = bundled_skills().nearest(source)
        hint = did_you_mean(close, "'hermes skills browse' lists them.")
        raise UsageError(f"'{source}' is neither a bundled skill nor a file or directory.", hint)
    files = read_source(path)
    try:
        text = files[SKILL_FILE].decode("utf-8")
    except UnicodeDecodeError as error:
        raise SkillError(f"{source}: {SKILL_FILE}", "", "is not UTF-8 text") from error
    skill = parse_skill(
        text, file=f"{source}: {SKILL_FILE}", directory=path, category=category or "", origin=SkillOrigin.USER
    )
    return SkillCandidate(skill, files, origin, category)


def install(home: Path, candidate: SkillCandidate, *, replace: bool = False) -> Skill:
    """Installs the candidate and locks it; an existing skill is kept unless `replace`.

    UsageError also if a stranger's skill would stand in for one that comes with Hermes, unless `replace`.
    """
    name = candidate.skill.name
    bundled = any(skill.name == name for skill in bundled_skills().skills)
    if bundled and not replace and not candidate.source.startswith(_OFFICIAL):
        raise UsageError(
            f"'{name}' is a skill that comes with Hermes; {candidate.source} would replace it.",
            "Rename it, or add --force if the agent should follow this one instead.",
        )
    existing = user_directory(home, name)
    if existing and not replace:
        raise UsageError(
            f"the skill '{name}' is already installed at {existing}.", "Add --force to replace it."
        )
    parent = ensure_dir(skills_dir(home) / (candidate.category or ""))
    with file_errors(parent / name), _quarantine(home) as quarantine:
        staged = quarantine / name
        for relative, data in candidate.files.items():
            _write(staged / relative, data)
        read_skill(staged, category="", origin=SkillOrigin.USER)
        if existing:
            existing.rename(quarantine / "replaced")
        staged.rename(parent / name)
    entry = {
        "source": candidate.source,
        "version": candidate.skill.version,
        "files": hash_files(candidate.files),
    }
    write_lock(home, {**read_lock(home), name: entry})
    return list_skills(home).find(name)


def check_content(name: str, content: str) -> None:
    """Raises `SkillError` if `content` cannot be the SKILL.md of a skill called `name`."""
    if len(content.encode("utf-8", "replace")) > MAX_SKILL_BYTES:
        raise SkillError(SKILL_FILE, "", f"is larger than {MAX_SKILL_BYTES} bytes")
    skill = parse_skill(content, file=SKILL_FILE, directory=Path(name), category="", origin=SkillOrigin.USER)
    if skill.name != name:
        raise SkillError(SKILL_FILE, "name", f"is '{skill.name}', but the skill is to be called '{name}'")


def save_skill(home: Path, name: str, content: str) -> Skill:
    """Creates a user's skill, or replaces the SKILL.md of an existing one."""
    check_content(name, content)
    directory = user_directory(home, name) or skills_dir(home) / name
    atomic_write(directory / SKILL_FILE, content)
    _unlock(home, name)
    return list_skills(home).find(name)


def read_user_skill(home: Path, name: str) -> str | None:
    """The SKILL.md of the user's skill, valid or not; None where there is none."""
    directory = user_directory(home, name)
    if directory is None:
        return None
    with file_errors(directory / SKILL_FILE):
        return (directory / SKILL_FILE).read_bytes().decode("utf-8", "replace")


def content_diff(before: str, after: str, *, whole: bool) -> str:
    """The change as a unified diff; `whole` keeps the unchanged lines, so that it has all of the new text."""
    old, new = before.splitlines(), after.splitlines()
    context = len(old) + len(new) if whole else 2
    return "\n".join(list(unified_diff(old, new, "before", "after", n=context, lineterm=""))[2:])


def delete_skill(home: Path, name: str) -> None:
    directory = user_directory(home, name)
    if directory is None:
        raise UsageError(f"there is no user skill '{name}'.", "Bundled skills cannot be deleted.")
    with file_errors(directory):
        shutil.rmtree(directory)
    _unlock(home, name)


def user_directory(home: Path, name: str) -> Path | None:
    """The directory of the user's skill `name`, valid or not."""
    return next((path for path, _ in skill_directories(skills_dir(home)) if path.name == name), None)


def check(home: Path, environ: Mapping[str, str]) -> list[SkillFinding]:
    """Checks every skill: its format, its hashes against the lock file, its prerequisites on this machine."""
    catalogue = list_skills(home)
    lock, trials = read_lock(home), results(home)
    findings = [
        SkillFinding(entry.name, entry.origin, (entry.error.message,), ()) for entry in catalogue.broken
    ]
    for skill in catalogue.skills:
        locked = lock.get(skill.name) if skill.origin is SkillOrigin.USER else None
        with file_errors(skill.directory):
            problems = changes(skill.directory, locked["files"]) if locked else ()
        findings.append(
            SkillFinding(
                skill.name,
                skill.origin,
                problems,
                missing_prerequisites(skill, environ),
                note(skill, trials),
            )
        )
    removed = [name for name in lock if user_directory(home, name) is None]
    findings += [
        SkillFinding(name, SkillOrigin.USER, ("was installed, but its directory is gone",), ())
        for name in removed
    ]
    return sorted(findings, key=lambda finding: finding.name)


def missing_prerequisites(skill: Skill, environ: Mapping[str, str]) -> tuple[str, ...]:
    commands = [f"command {name}" for name in skill.commands if not shutil.which(name)]
    variables = [f"variable {name}" for name in skill.env_vars if not environ.get(name)]
    return tuple(commands + variables)


def _find_bundled(source: str) -> tuple[Path, str] | None:
    catalogue = bundled_skills()
    if not any(skill.answers_to(source) for skill in catalogue.skills):
        return None
    skill = catalogue.find(source)
    return skill.directory, skill.category


@contextmanager
def _quarantine(home: Path) -> Iterator[Path]:
    """A private directory on the same file system as the skills, removed at the end."""
    path = ensure_dir(skills_dir(home) / QUARANTINE / new_id())
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _write(path: Path, data: bytes) -> None:
    ensure_dir(path.parent)
    path.write_bytes(data)
    path.chmod(0o600)


def _unlock(home: Path, name: str) -> None:
    """Removes an edited or deleted skill from the lock file: it is no longer the installed one."""
    lock = read_lock(home)
    if lock.pop(name, None) is not None:
        write_lock(home, lock)


LOCK_FILE = ".lock.json"


def hash_files(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}


def read_lock(home: Path) -> dict[str, JSONObject]:
    """Skill name → {source, version, files: {path: sha256}}; empty if no skill was installed."""
    path = skills_dir(home) / LOCK_FILE
    text = read_text(path)
    if text is None:
        return {}
    try:
        data = json.loads(text)
        return {name: {**entry, "files": dict(entry["files"])} for name, entry in data.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is not a skill lock file.", "Move it away and reinstall the skills."
        ) from error


def write_lock(home: Path, lock: Mapping[str, JSONObject]) -> None:
    atomic_write(skills_dir(home) / LOCK_FILE, json.dumps(lock, indent=1, sort_keys=True) + "\n")


def changes(directory: Path, locked: Mapping[str, str]) -> tuple[str, ...]:
    """The differences between the files in `directory` and the installed ones."""
    current = hash_files({name: (directory / name).read_bytes() for name in relative_files(directory)})
    return (
        *(f"{name} was changed" for name in current if name in locked and current[name] != locked[name]),
        *(f"{name} was added" for name in current if name not in locked),
        *(f"{name} is missing" for name in locked if name not in current),
    )
