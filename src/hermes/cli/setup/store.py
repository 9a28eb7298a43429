"""`hermes store`: upkeep of the database of trajectories."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from hermes.cli.options import CommandGroup, json_option


@click.group(cls=CommandGroup)
def store() -> None:
    """The database of trajectories: check, compact, backup, salvage.

    \b
    hermes store check
    hermes store backup hermes-backup.db
    hermes store salvage rescued.db
    """


def _path() -> Path:
    from hermes.config.load import load
    from hermes.config.paths import db_path

    return db_path(load().home)


@store.command()
@json_option
def check(as_json: bool) -> None:
    """Read every page and reference, and report damage.

    The exit code is 1 if there is any.
    """
    from hermes.cli.terminal.waiting import waiting
    from hermes.store.upkeep import maintain

    path = _path()
    with waiting(f"reading {path}"):
        result = maintain.check(path)
    if as_json:
        click.echo(json.dumps({"path": str(path), **asdict(result)}))
    else:
        click.echo(
            f"{path}: schema {result.schema}, {result.trajectories} trajectories, {_size(result.size_bytes)}"
        )
        if result.free_bytes:
            click.echo(f"{_size(result.free_bytes)} are free; 'hermes store compact' returns them")
        for problem in result.problems:
            click.echo(f"damaged: {problem}")
        if result.problems:
            click.echo(f"  fix: restore a backup ('{path.name}*.bak'), or: hermes store salvage NEW.db")
        else:
            click.echo("no damage")
    if result.problems:
        sys.exit(1)


@store.command()
@json_option
def compact(as_json: bool) -> None:
    """Return the space of deleted rows to the disk. It needs as much free space as the database has."""
    from hermes.cli.terminal.waiting import waiting
    from hermes.store.upkeep import maintain

    path = _path()
    with waiting(f"rewriting {path}"):
        saved = maintain.compact(path)
    click.echo(json.dumps({"saved_bytes": saved}) if as_json else f"{_size(max(0, saved))} returned")


@store.command()
@click.argument("target", type=click.Path(path_type=Path))
@json_option
def backup(target: Path, as_json: bool) -> None:
    """Copy the database to a new file; recording may go on meanwhile.

    To restore it, move the file to where 'hermes config show paths' shows the database.
    """
    from hermes.cli.terminal.waiting import waiting
    from hermes.store.upkeep import maintain

    with waiting(f"writing {target}"):
        size = maintain.backup(_path(), target)
    click.echo(
        json.dumps({"path": str(target), "bytes": size}) if as_json else f"wrote {target}, {_size(size)}"
    )


@store.command()
@click.argument("target", type=click.Path(path_type=Path))
@json_option
def salvage(target: Path, as_json: bool) -> None:
    """Copy what can be read of a damaged database to a new file.

    Trajectories come over whole or not at all. To use the new file, move it to where
    'hermes config show paths' has the database. The exit code is 1 if something is lost.
    """
    from hermes.cli.terminal.waiting import waiting
    from hermes.safety.text import printable
    from hermes.store.upkeep.salvage import salvage as rescue

    with waiting(f"reading {_path()}"):
        result = rescue(_path(), target)
    if as_json:
        click.echo(json.dumps({"path": str(target), **asdict(result)}))
    else:
        click.echo(f"wrote {target}: {result.rescued} of {result.rescued + len(result.lost)} trajectories")
        for trajectory_id, reason in result.lost.items():
            click.echo(f"lost {trajectory_id}: {printable(reason)}")
    if result.lost:
        sys.exit(1)


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
