"""Checks that what skills name exists in the packages at the pinned versions; for those who maintain skills.

PYTHONPATH=scripts python -m skills_check [NAME…] [--quick] [--online] [--run] [--json]
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from hermes.cli.options import json_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hermes.config.load import Config
    from hermes.skills.install import SkillFinding
    from hermes.skills.skill import Skill
    from skills_check.report import SkillReport
    from skills_check.skill_check import Packages


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--all", "check_all", is_flag=True, help="Every skill; the default without a NAME.")
@click.option("--quick", is_flag=True, help="Only what needs no package: form, syntax, hermes commands.")
@click.option("--online", is_flag=True, help="Ask the registry for the newest version of each package.")
@click.option("--run", "run_blocks", is_flag=True, help="Execute runnable blocks, and scripts with --help.")
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    names: tuple[str, ...],
    check_all: bool,
    quick: bool,
    online: bool,
    run_blocks: bool,
    as_json: bool,
) -> None:
    """Check that what skills name exists.

    Imports, arguments, options of commands and configuration keys are looked up.

    A package is read from this interpreter where it is installed at the pinned version, else from its
    wheel or source distribution, which is downloaded to the cache and never unpacked or executed. --run
    executes blocks of the skills with your rights, in environments that pip makes in the cache.

    Exits with 1 if a skill failed or could not be checked.
    """
    from hermes.cli.tables import table_lines
    from hermes.cli.terminal.waiting import waiting
    from hermes.config.load import load
    from hermes.errors import UsageError
    from skills_check.report import CheckVerdict, table_rows

    if names and check_all:
        raise UsageError("--all and names contradict each other.", "Give one of them.")
    config = load()
    skills, findings = _select(config, names)
    reports = []
    with waiting(f"checking {len(skills)} skills"):
        for report in _reports(skills, config.home, quick=quick, online=online, run_blocks=run_blocks):
            _add_finding(report, findings.get(report.skill.name))
            reports.append(report)
    broken = [finding for name, finding in findings.items() if name not in {skill.name for skill in skills}]
    if as_json:
        values = [report.to_json() for report in reports] + [_broken_json(finding) for finding in broken]
        click.echo(json.dumps(values, ensure_ascii=False))
    else:
        rows = [*table_rows(reports), *((finding.name, "-", "-", "-", "-", "failed") for finding in broken)]
        for line in table_lines(rows):
            click.echo(line)
        _print_details(reports, broken)
    failed = broken or any(report.state is not CheckVerdict.OK for report in reports)
    ctx.exit(1 if failed else 0)


def _select(config: Config, names: Sequence[str]) -> tuple[list[Skill], dict[str, SkillFinding]]:
    """The skills to check, and what `hermes.skills.install` says about them and about broken ones."""
    from hermes.errors import HermesError
    from hermes.skills import list_skills
    from hermes.skills.install import check as check_files

    catalogue = list_skills(config.home)
    findings = {finding.name: finding for finding in check_files(config.home, config.environ)}
    if not names:
        return list(catalogue.skills), findings
    skills: dict[str, Skill] = {}
    chosen: dict[str, SkillFinding] = {}
    for name in names:
        try:
            skill = catalogue.find(name)
            skills[skill.name] = skill
            chosen[skill.name] = findings[skill.name]
        except HermesError:
            if name not in findings:
                raise
            chosen[name] = findings[name]
    return list(skills.values()), chosen


def _reports(
    skills: Sequence[Skill], home: Path, *, quick: bool, online: bool, run_blocks: bool
) -> Iterator[SkillReport]:
    from skills_check.execute import run_skill
    from skills_check.hermes_commands import hermes_commands
    from skills_check.registry import index_url
    from skills_check.skill_check import Packages, check_skill

    commands = hermes_commands()
    cache = home / "cache" / "skills"
    needs_registry = online or (not quick and any(skill.packages for skill in skills))
    packages = Packages(cache, index_url() if needs_registry else "", {})
    for skill in skills:
        report = check_skill(skill, commands, None if quick else packages)
        if run_blocks:
            run_skill(report, cache)
        if online:
            _ask_registry(report, packages)
        yield report


def _ask_registry(report: SkillReport, packages: Packages) -> None:
    from skills_check.registry import RegistryError, list_files, newest_version

    if not report.skill.packages:
        return
    try:
        report.newest = newest_version(list_files(report.skill.packages[0].name, packages.index))
    except RegistryError as error:
        report.newest = "unknown"
        report.notes.append(f"newest version: {error.message}")


def _add_finding(report: SkillReport, finding: SkillFinding | None) -> None:
    from skills_check.report import Problem

    if finding is None:
        return
    report.problems += [Problem(report.skill.name, 0, problem) for problem in finding.problems]
    if finding.missing:
        report.notes.append(f"needs {', '.join(finding.missing)}")


def _broken_json(finding: SkillFinding) -> dict[str, object]:
    problems = [{"file": "", "line": 0, "problem": problem} for problem in finding.problems]
    return {"name": finding.name, "state": "failed", "ok": False, "problems": problems}


def _print_details(reports: Sequence[SkillReport], broken: Sequence[SkillFinding]) -> None:
    from hermes.safety.text import printable

    for report in reports:
        name = report.skill.name
        for problem in report.problems:
            click.echo(printable(f"{name}/{problem}"))
        for reason in report.unchecked[1:]:
            click.echo(printable(f"{name}: not checked: {reason}"))
        if len(reports) == 1:
            for note in report.notes:
                click.echo(printable(f"{name}: {note}"))
    for finding in broken:
        for text in finding.problems:
            click.echo(printable(f"{finding.name}: {text}"))


if __name__ == "__main__":
    check()
