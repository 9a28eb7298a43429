"""Keeps the results of skill trials, and decides which skills the agent is offered by default.

A learned skill is offered once a trial of its present text has shown that it helps; other skills are the
person's own choice and are always offered. A skill whose newest trial shows nothing, after one that did, has
stopped helping. Not promised: that a trial's tasks are like those to come.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hermes.core import content_hash
from hermes.core.texts import SKILL, Texts, named
from hermes.disk.appendlog import AppendLog, read_lines
from hermes.disk.files import ensure_dir
from hermes.skills.catalogue import Catalogue, list_skills
from hermes.skills.skill import Skill

HELPS = "helps"


@dataclass(frozen=True, slots=True)
class TrialResult:
    skill: str
    text: str
    """Hash of the skill's body."""
    verdict: str
    effect: float
    """Mean difference of the scores."""
    tasks: int
    created_at_ms: int


def store_result(home: Path, result: TrialResult) -> None:
    path = _log(home)
    ensure_dir(path.parent)
    with AppendLog(path) as log:
        log.append([json.dumps(asdict(result))])


def results(home: Path) -> dict[str, list[TrialResult]]:
    """By skill, oldest first."""
    path, by_skill = _log(home), dict[str, list[TrialResult]]()
    for line in read_lines(path) if path.is_file() else ():
        try:
            result = TrialResult(**json.loads(line))
        except (ValueError, TypeError, RecursionError):
            continue  # damaged: a skill without a trial is not offered, and a chat goes on
        by_skill.setdefault(str(result.skill), []).append(result)
    return by_skill


def skills_in_use(home: Path, texts: Texts) -> Catalogue:
    """The skills that the agent is offered, with the bodies that a policy's texts have for them."""
    bodies = named(texts, SKILL)
    catalogue = list_skills(home).with_bodies(bodies)
    if not any(skill.learned_from for skill in catalogue.skills):
        return catalogue
    trials = results(home)
    offered = [skill for skill in catalogue.skills if skill.name in bodies or _is_proven(skill, trials)]
    return replace(catalogue, skills=tuple(offered))


def note(skill: Skill, trials: Mapping[str, Sequence[TrialResult]]) -> str | None:
    """A note about the skill's trials that the person has to know; None: there is none."""
    tried = trials.get(skill.name, ())
    if tried and tried[-1].verdict != HELPS and any(result.verdict == HELPS for result in tried):
        last = tried[-1]
        return f"stopped helping: {last.verdict} (effect {last.effect:+.3f} on {last.tasks} tasks)"
    if skill.learned_from and not _is_proven(skill, trials):
        if tried and tried[-1].text == content_hash(skill.body):
            return f"not offered by default: {tried[-1].verdict}"
        return f"not offered by default before a trial: hermes skills trial {skill.name}"
    return None


def _is_proven(skill: Skill, trials: Mapping[str, Sequence[TrialResult]]) -> bool:
    if skill.learned_from is None:
        return True
    tried = [result for result in trials.get(skill.name, ()) if result.text == content_hash(skill.body)]
    return bool(tried) and tried[-1].verdict == HELPS


def _log(home: Path) -> Path:
    return home / "trials" / "results.jsonl"
