"""Drafts of skills that are proposed after a task that took many corrections; a person decides about each.

A draft lies beside the skills and is none of them: no agent is offered it. A trajectory is proposed once,
whatever the person decides.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from hermes.config.paths import skills_dir
from hermes.core import Role, StepKind, Trajectory
from hermes.core.names import unused_name
from hermes.disk.appendlog import AppendLog, read_lines
from hermes.disk.files import atomic_write, ensure_dir
from hermes.errors import UsageError
from hermes.skills.catalogue import list_skills
from hermes.skills.install import save_skill
from hermes.skills.learn import SkillDraft, draft_skill, failure, suggest_name
from hermes.skills.skill import SKILL_FILE, Skill, SkillError, SkillOrigin, parse_skill
from hermes.store import Reader

_PROPOSED = "proposed"
"""The file of the trajectories that were proposed."""


def corrections(trajectory: Trajectory) -> int:
    """Calls that failed, and what a person had to add to the first message."""
    results = [step.result for step in trajectory.steps if step.kind is StepKind.TOOL]
    failed = sum(result is None or not result.ok for result in results)
    messages = sum(message.role is Role.USER for message in trajectory.messages)
    return failed + max(0, messages - 1)


def propose(home: Path, reader: Reader, trajectory: Trajectory, least: int) -> SkillDraft | None:
    """Writes a draft if the work went well after at least so many corrections."""
    trajectory_id, log = trajectory.header.id, _folder(home) / _PROPOSED
    if corrections(trajectory) < least or failure(reader, trajectory) is not None:
        return None
    if log.exists() and trajectory_id.encode() in read_lines(log):
        return None
    task = next((message.content for message in trajectory.messages if message.role is Role.USER), "")
    names = [draft.name for draft in drafts(home)] + [skill.name for skill in list_skills(home).skills]
    draft = draft_skill(trajectory, unused_name(suggest_name(task), names))
    atomic_write(ensure_dir(log.parent / draft.name) / SKILL_FILE, draft.text)
    with AppendLog(log) as proposed:
        proposed.append([trajectory_id])
    return draft


def drafts(home: Path) -> list[SkillDraft]:
    """Those that nobody has decided about, by name."""
    readable = []
    for path in sorted(_folder(home).glob(f"*/{SKILL_FILE}")):
        with suppress(SkillError, OSError, UnicodeDecodeError):  # damaged: nobody could accept it
            readable.append(_read(path))
    return readable


def find_draft(home: Path, name: str) -> SkillDraft:
    draft = next((draft for draft in drafts(home) if draft.name == name), None)
    if draft is None:
        raise UsageError(f"there is no draft of a skill '{name}'", "the page Skills lists the drafts")
    return draft


def accept(home: Path, name: str, text: str) -> Skill:
    """The draft, as it is or edited, becomes the user's skill. SkillError if it is malformed."""
    draft = find_draft(home, name)
    skill = save_skill(home, draft.name, text)
    refuse(home, name)
    return skill


def refuse(home: Path, name: str) -> None:
    shutil.rmtree(_folder(home) / find_draft(home, name).name)


def _read(path: Path) -> SkillDraft:
    text, name = path.read_text("utf-8"), path.parent.name
    skill = parse_skill(text, file=str(path), directory=path.parent, category="", origin=SkillOrigin.USER)
    return SkillDraft(name, skill.learned_from or "", text)


def _folder(home: Path) -> Path:
    return skills_dir(home) / ".drafts"
