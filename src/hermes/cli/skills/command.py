"""`hermes skills`: browse, search, view and install; check and learn are in files of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.options import CommandGroup, folder_option, json_option
from hermes.cli.skills.trial import trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hermes.skills.catalogue import Catalogue
    from hermes.skills.install import SkillCandidate
    from hermes.skills.skill import Skill


_MOST_MATCHES = 10


@click.group(cls=CommandGroup)
def skills() -> None:
    """Browse, search, view, install, check and learn skills.

    A skill is named by its name or an alias, alone or after category/ or category/area/:
    official/mlops/training/axolotl and axolotl are the same one.
    """


@skills.command()
@click.argument("query", nargs=-1)
@click.option("--category", hidden=True, help="Only this category.")
@json_option
def browse(query: tuple[str, ...], category: str | None, as_json: bool) -> None:
    """List the skills: all, a category's, or the ten that fit QUERY best."""
    catalogue, words = _catalogue(), " ".join(query)
    categories = {skill.category for skill in catalogue.skills}
    chosen = category or (words if words in categories else None)
    if words and chosen is None:
        _print_list(catalogue.search(words)[:_MOST_MATCHES], as_json)
        return
    _print_list([skill for skill in catalogue.skills if chosen in (None, skill.category)], as_json)
    for broken in catalogue.broken:
        _echo(f"left out: {broken.error.message}", err=True)


skills.former_names["search"] = "browse"


@skills.command()
@click.argument("name")
@click.argument("path", required=False)
@click.option("--file", "file_path", metavar="PATH", hidden=True, help="The same as PATH.")
@json_option
def view(name: str, path: str | None, file_path: str | None, as_json: bool) -> None:
    """Print a skill, or the file PATH that comes with it."""
    from hermes.skills import read_skill_file, skill_files

    file_path = path or file_path
    skill = _catalogue().find(name)
    files = skill_files(skill)
    content = read_skill_file(skill, file_path) if file_path else skill.body
    if as_json:
        facts = {**skill.to_json(), "directory": str(skill.directory), "files": files, "content": content}
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    if not file_path:
        _echo(
            f"{skill.category}/{skill.name} {skill.version or ''} ({skill.origin.value}, {skill.directory})"
        )
        _echo(f"{skill.description}\n")
    _echo(content.rstrip("\n"))
    if files and not file_path:
        _echo(f"\nfiles: {', '.join(files)}")


@skills.command()
@click.argument("source")
@click.option("--yes", is_flag=True, help="Install without asking.")
@click.option("--force", is_flag=True, help="Replace a skill of the same name.")
@json_option
def install(source: str, yes: bool, force: bool, as_json: bool) -> None:
    """Install a skill as a copy of your own.

    SOURCE is a directory, a .zip or .tar.gz file, or a bundled skill's name. Its contents are
    shown first. Nothing in it is executed.
    """
    from hermes.cli.question import confirm, has_person
    from hermes.config.paths import home
    from hermes.errors import UsageError
    from hermes.skills.install import install as install_skill
    from hermes.skills.install import prepare

    candidate = prepare(source)
    if not yes or not as_json:
        _show_candidate(candidate, err=as_json)
    if not yes:
        if not has_person():
            raise UsageError(
                "nobody can be asked: standard input is no terminal.",
                "Run it at a terminal, or add --yes to install what you have read.",
            )
        if not confirm("Install it?", err=as_json):
            raise click.Abort
    skill = install_skill(home(), candidate, replace=force)
    if as_json:
        click.echo(json.dumps({**skill.to_json(), "directory": str(skill.directory)}, ensure_ascii=False))
    else:
        _echo(f"installed {skill.name} in {skill.directory}")


def _show_candidate(candidate: SkillCandidate, *, err: bool) -> None:
    """Prints SKILL.md, which agents follow, whole and exact, and the list of the other files."""
    from hermes.cli.question import show_action
    from hermes.safety.exact import exact
    from hermes.skills.skill import SKILL_FILE

    skill, files = candidate.skill, candidate.files
    title = f"{skill.name} {skill.version or ''}, from {candidate.source}"
    show_action(title, files[SKILL_FILE].decode("utf-8"), err=err)
    click.echo("\nIts files, which agents can read too:", err=err)
    for name, data in sorted(files.items()):
        click.echo(f"  {len(data):>9,} bytes  {exact(name)}", err=err)


def _catalogue() -> Catalogue:
    from hermes.config.paths import home
    from hermes.skills import list_skills

    return list_skills(home())


def _print_list(skills: Sequence[Skill], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([skill.to_json() for skill in skills], ensure_ascii=False))
        return
    from hermes.safety.output.columns import wrapped

    if not skills:
        click.echo("no skill fits; 'hermes skills browse' lists all")
    for skill in skills:
        _echo(f"{skill.category}/{skill.name}{'' if skill.origin.value == 'bundled' else '  (yours)'}")
        _echo(wrapped(f"    {skill.description}"))


def _echo(text: str, *, err: bool = False) -> None:
    from hermes.safety.text import printable

    click.echo(printable(text), err=err)


@skills.command()
@click.argument("reference", metavar="RUN|TRAJECTORY")
@click.option("--name", help="Name of the skill; default: from the task's words.")
@folder_option("Folder for the draft.")
@json_option
def learn(reference: str, name: str | None, out: Path | None, as_json: bool) -> None:
    """Draft a skill from work that went well, for you to edit.

    It takes the best trajectory of a run. The draft goes to DIR/NAME/SKILL.md (default: the current
    folder); it is not installed. Edit it, then: hermes skills install DIR/NAME
    """
    from hermes.config.load import load
    from hermes.config.paths import db_path
    from hermes.disk.files import atomic_write
    from hermes.errors import UsageError
    from hermes.skills.install import check_content
    from hermes.skills.learn import choose_trajectory, draft_skill
    from hermes.skills.skill import SKILL_FILE
    from hermes.store import Reader

    with Reader(db_path(load().home)) as reader:
        draft = draft_skill(choose_trajectory(reader, reference), name)
    check_content(draft.name, draft.text)
    file = (out or Path()) / draft.name / SKILL_FILE
    if file.exists():
        raise UsageError(f"{file} exists already.", "Choose another --name or --output.")
    atomic_write(file, draft.text)
    if as_json:
        values = {"name": draft.name, "trajectory": draft.trajectory_id, "file": str(file)}
        click.echo(json.dumps(values, ensure_ascii=False))
        return
    click.echo(f"drafted {file} from trajectory {draft.trajectory_id}")
    click.echo(f"Edit it, then: hermes skills install {file.parent}")


skills.add_command(trial)


@skills.command()
@click.argument("names", nargs=-1, metavar="[NAME]…")
@json_option
@click.pass_context
def check(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Check skills: their form, their files, what they need.

    A skill fails if its SKILL.md is malformed, or if its files are not those that were installed. Programs
    and variables that it needs and this machine lacks are named, a learned skill that no trial has shown to
    help, and a skill that stopped helping. Without a NAME every skill is checked.

    Exits with 1 if a skill failed.
    """
    from hermes.cli.tables import print_table
    from hermes.config.load import load
    from hermes.skills import list_skills
    from hermes.skills.install import check as check_files

    config = load()
    findings = check_files(config.home, config.environ)
    if names:
        by_name = {finding.name: finding for finding in findings}
        catalogue = list_skills(config.home)
        findings = [by_name.get(name) or by_name[catalogue.find(name).name] for name in names]
    if as_json:
        values = [
            {
                "name": finding.name,
                "state": "failed" if finding.problems else "ok",
                "ok": not finding.problems,
                "problems": [{"file": "", "line": 0, "problem": text} for text in finding.problems],
                "missing": list(finding.missing),
                "trial": finding.trial,
            }
            for finding in findings
        ]
        click.echo(json.dumps(values, ensure_ascii=False))
    else:
        print_table([("skill", "result"), *((entry.name, entry.state) for entry in findings)])
    ctx.exit(1 if any(finding.problems for finding in findings) else 0)
