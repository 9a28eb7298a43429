"""The result of checking a skill: ok, failed with places, or not checked with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from hermes.core import JSONObject
from hermes.skills.skill import Skill


class CheckVerdict(StrEnum):
    OK = "ok"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that does not exist or does not parse."""

    file: str
    line: int
    """0: the file as a whole."""
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


@dataclass(slots=True)
class SkillReport:
    """What was checked of one skill, and what came out."""

    skill: Skill
    problems: list[Problem] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    """Why a part could not be checked: a package that cannot be had. With one of these it is never ok."""
    notes: list[str] = field(default_factory=list)
    """Skipped blocks, packages that are imported but not pinned: said, and no obstacle."""
    sources: dict[str, str] = field(default_factory=dict)
    """Pinned package → where its source was read from."""
    newest: str | None = None
    """Newest version of the main package in the registry; None: not asked for, or no package."""
    blocks: int = 0
    lookups: int = 0
    """Names, keywords, options and keys that were decided."""
    runs: int = 0
    """Blocks and scripts that were executed."""
    quick: bool = False

    @property
    def state(self) -> CheckVerdict:
        if self.problems:
            return CheckVerdict.FAILED
        return CheckVerdict.NOT_CHECKED if self.unchecked else CheckVerdict.OK

    @property
    def result(self) -> str:
        """The state in one line."""
        match self.state:
            case CheckVerdict.FAILED:
                return f"failed: {len(self.problems)} problem{'s' if len(self.problems) != 1 else ''}"
            case CheckVerdict.NOT_CHECKED:
                return f"not checked: {self.unchecked[0]}"
        if self.quick:
            return "ok (quick)"
        return f"ok ({self.blocks} blocks, {self.lookups} names{f', {self.runs} runs' if self.runs else ''})"

    def to_json(self) -> JSONObject:
        main = self.skill.packages[0] if self.skill.packages else None
        return {
            "name": self.skill.name,
            "category": self.skill.category,
            "origin": self.skill.origin.value,
            "state": self.state.value,
            "ok": self.state is CheckVerdict.OK,
            "package": main.name if main else None,
            "pinned": main.version if main else None,
            "newest": self.newest,
            "verified": self.skill.verified,
            "problems": [
                {"file": problem.file, "line": problem.line, "problem": problem.text}
                for problem in self.problems
            ],
            "unchecked": list(self.unchecked),
            "notes": list(self.notes),
            "sources": dict(self.sources),
            "blocks": self.blocks,
            "lookups": self.lookups,
            "runs": self.runs,
            "quick": self.quick,
        }


def table_rows(reports: Sequence[SkillReport]) -> list[tuple[str, ...]]:
    """The table of the command line and of the documentation, with its heading."""
    heading = ("SKILL", "PACKAGE", "PINNED", "NEWEST", "VERIFIED", "RESULT")
    rows = []
    for report in reports:
        main = report.skill.packages[0] if report.skill.packages else None
        rows.append(
            (
                f"{report.skill.category}/{report.skill.name}",
                main.name if main else "-",
                main.version if main else "-",
                report.newest or "-",
                report.skill.verified or "never",
                report.result,
            )
        )
    return [heading, *rows]
