"""`hermes memory`: the facts that the agent remembers across sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.options import CommandGroup, json_option

if TYPE_CHECKING:
    from hermes.core import Fact


@click.group(cls=CommandGroup)
def memory() -> None:
    """List, show, add and remove what the agent remembers across sessions.

    Facts are shown to the model in interactive chat only, never in batch runs or environments. A fact is
    named by its id, or six characters of its beginning or end. To turn the memory off:
    hermes config set memory.enabled false
    """


@memory.command("list")
@click.argument("fact", required=False)
@json_option
def list_(fact: str | None, as_json: bool) -> None:
    """List all facts, or show FACT.

    The list is oldest first. A fact is shown with the step that it comes from.
    """
    from hermes.config.load import load
    from hermes.tools.builtin.memory import stored_facts

    config = load()
    if fact is not None:
        _show(config.home, fact, as_json)
        return
    facts = stored_facts(config.home)
    if as_json:
        click.echo(json.dumps([fact.to_json() for fact in facts], ensure_ascii=False))
        return
    if not facts:
        click.echo("nothing is remembered yet; 'hermes memory add TEXT' adds a fact")
    else:
        click.echo(facts_table(facts))
    if not config.settings.memory.enabled:
        click.echo("the memory is turned off (memory.enabled): the model is not shown these facts", err=True)


memory.former_names["show"] = "list"


def _show(home: Path, fact: str, as_json: bool) -> None:
    from hermes.cli.render import local_time, render_step
    from hermes.config.paths import db_path
    from hermes.safety.text import printable
    from hermes.store import Reader

    with Reader(db_path(home)) as reader:
        entry = reader.resolve_fact(fact)
        source = reader.get(entry.trajectory_id) if entry.trajectory_id else None
    if as_json:
        click.echo(json.dumps(entry.to_json(), ensure_ascii=False))
        return
    click.echo(f"{entry.id}  {local_time(entry.created_at_ms)}  by the {entry.author.value}")
    click.echo(printable(entry.text))
    if source is None:
        click.echo("from no trajectory: it was added on the command line")
        return
    session = f", session {entry.session_id}" if entry.session_id else ""
    click.echo(f"from trajectory {source.header.id}{session}; hermes trajectories show {source.header.id}")
    for step in source.steps:
        if step.index == entry.step_index:
            click.echo(render_step(step))


@memory.command()
@click.argument("text")
@click.option("--trajectory", metavar="ID", help="The trajectory that it comes from; 'last' for the newest.")
@click.option("--step", type=click.IntRange(min=0), help="The step of that trajectory.")
@json_option
def add(text: str, trajectory: str | None, step: int | None, as_json: bool) -> None:
    """Remember TEXT: one fact, in one line."""
    from hermes.agent.build import open_writer
    from hermes.config.load import load
    from hermes.config.paths import db_path
    from hermes.core import FactAuthor
    from hermes.errors import UsageError
    from hermes.safety.text import printable
    from hermes.store import Reader
    from hermes.tools.builtin.memory import new_fact

    config = load()
    if step is not None and trajectory is None:
        raise UsageError("--step needs --trajectory", "name the trajectory that has this step")
    with Reader(db_path(config.home)) as reader:
        trajectory_id = reader.resolve(trajectory) if trajectory else None
    settings = config.settings.memory
    fact = new_fact(text, settings, FactAuthor.USER, trajectory_id=trajectory_id, step_index=step)
    with open_writer(config) as writer:
        writer.add_fact(fact, settings.max_facts).result()
    with Reader(db_path(config.home)) as reader:
        stored = reader.resolve_fact(fact.id)  # as redacted
    if as_json:
        click.echo(json.dumps(stored.to_json(), ensure_ascii=False))
    else:
        click.echo(f"remembered {stored.id}: {printable(stored.text)}")


@memory.command()
@click.argument("facts", nargs=-1, required=True, metavar="FACT...")
@json_option
def remove(facts: tuple[str, ...], as_json: bool) -> None:
    """Remove each FACT. The trajectory that it comes from stays recorded."""
    from hermes.agent.build import open_writer
    from hermes.config.load import load
    from hermes.config.paths import db_path
    from hermes.safety.text import printable
    from hermes.store import Reader

    config = load()
    with Reader(db_path(config.home)) as reader:
        entries = list(dict.fromkeys(reader.resolve_fact(fact) for fact in facts))
    with open_writer(config) as writer:
        for future in [writer.remove_fact(entry.id) for entry in entries]:
            future.result()
    if as_json:
        click.echo(json.dumps([entry.to_json() for entry in entries], ensure_ascii=False))
    for entry in () if as_json else entries:
        click.echo(f"removed {entry.id}: {printable(entry.text)}")


def facts_table(facts: list[Fact]) -> str:
    from hermes.cli.render import local_time
    from hermes.cli.tables import columns
    from hermes.safety.exact import exact

    rows = [
        (
            fact.id,
            local_time(fact.created_at_ms),
            fact.author.value,
            f"{fact.trajectory_id}:{fact.step_index}"
            if fact.step_index is not None
            else fact.trajectory_id or "",
            exact(fact.text),
        )
        for fact in facts
    ]
    return columns([("id", "when", "by", "from", "fact"), *rows])
