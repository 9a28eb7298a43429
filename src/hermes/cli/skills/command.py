"""`hermes skills`: browse, search, view and install; check and learn are in files of their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from hermes.cli.options import CommandGroup, json_option
from hermes.cli.skills.check import check
from hermes.cli.skills.learn import learn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hermes.skills.catalogue import Catalogue
    from hermes.skills.install import SkillCandidate
    from hermes.skills.skill import Skill


@click.group(cls=CommandGroup)
def skills() -> None:
    """Browse, search, view, install, check and learn skills.

    A skill is named by its name or an alias, alone or after category/ or category/area/:
    official/mlops/training/axolotl and axolotl are the same one.
    """


skills.add_command(check)
skills.add_command(learn)


@skills.command()
@click.argument("query", nargs=-1)
@click.option("--category", hidden=True, help="Only this category.")
@json_option
def browse(query: tuple[str, ...], category: str | None, as_json: bool) -> None:
    """List the skills: all, those of a category, or those that fit QUERY."""
    catalogue, words = _catalogue(), " ".join(query)
    categories = {skill.category for skill in catalogue.skills}
    chosen = category or (words if words in categories else None)
    if words and chosen is None:
        _print_list(catalogue.search(words), as_json)
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
