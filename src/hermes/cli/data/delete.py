"""`hermes trajectories delete`: remove recorded trajectories for good, after a confirmation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.filters import FilterOptions
from hermes.cli.model_options import model_options
from hermes.cli.options import json_option
from hermes.core.names import counted
from hermes.errors import UsageError

if TYPE_CHECKING:
    from hermes.store import Filter

_SHOWN = 5


@dataclass(frozen=True)
class _Doomed:
    """The subject of a deletion, as it is shown before the question."""

    ids: tuple[str, ...]
    derived: tuple[str, ...]
    """Made from these, and not deleted with them."""
    exports: tuple[str, ...]
    runs: tuple[str, ...]
    """Batch or training runs whose folders have rows of them."""
    backups: tuple[str, ...]


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@model_options(FilterOptions)
@click.option("--all", "everything", is_flag=True, help="Every recorded trajectory.")
@click.option(
    "--with-derived", is_flag=True, help="Also what was continued, retried or compressed from them."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def delete(
    filters: FilterOptions,
    ids: tuple[str, ...],
    everything: bool,
    with_derived: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete trajectories for good.

    Name them, or select them by a filter.

    Whatever nothing else refers to is deleted too: messages, tool schemas, token ids, ratings, rewards.
    Exported files, batch folders and backups are not touched; they are named, so that you can delete them.

    \b
    hermes trajectories delete 01M7M0MZ
    hermes trajectories delete --source chat --until 30d
    """
    from hermes.cli import question
    from hermes.cli.terminal.waiting import waiting
    from hermes.config.load import load
    from hermes.config.paths import db_path
    from hermes.store.upkeep.delete import delete_trajectories

    if not ids and not everything and not filters.model_fields_set:
        raise UsageError(
            "nothing is selected", "name trajectories, or add a filter such as --source chat, or --all"
        )
    if ids and (everything or filters.model_fields_set):
        raise UsageError("ids and filters exclude each other", "choose one")
    home = load().home
    conditions = filters.build()
    with waiting("looking for what refers to them"):
        doomed = _find(home, ids, conditions, with_derived=with_derived)
    if not doomed.ids:
        click.echo(json.dumps({"deleted": {}}) if as_json else "nothing matches")
        return
    if not as_json:
        _show(doomed)
    question.confirm_deletion(counted(len(doomed.ids), "trajectories"), yes=yes)
    with waiting(f"deleting {counted(len(doomed.ids), 'trajectories')}"):
        deletion = delete_trajectories(db_path(home), doomed.ids)
    if as_json:
        facts = {name: value for name, value in asdict(doomed).items() if name != "ids"}
        click.echo(json.dumps({"deleted": deletion.counts, **facts}))
        return
    click.echo("deleted: " + ", ".join(counted(count, name) for name, count in deletion.counts.items()))
    click.echo("'hermes store compact' returns the space")


def _find(home: Path, ids: Sequence[str], conditions: Filter, *, with_derived: bool) -> _Doomed:
    from hermes.config.paths import db_path
    from hermes.data.export.manifest import exports_with
    from hermes.store import Reader

    path = db_path(home)
    with Reader(path) as reader:
        if ids:
            chosen = list(dict.fromkeys(reader.resolve(name) for name in ids))
        else:
            running = reader.running_ids()
            chosen = [name for name in reader.matching_ids(conditions) if name not in running]
        derived = reader.derived(chosen)
        if with_derived:
            chosen, derived = [*chosen, *derived], []
        runs = reader.run_ids(chosen)
    return _Doomed(
        tuple(chosen),
        tuple(derived),
        tuple(exports_with(home, chosen)) if chosen else (),
        tuple(runs),
        tuple(str(backup) for backup in sorted(path.parent.glob(f"{path.name}*.bak"))),
    )


def _show(doomed: _Doomed) -> None:
    click.echo(f"{counted(len(doomed.ids), 'trajectories')}: {_listing(doomed.ids)}")
    lines = (
        ("derived from them, and kept (--with-derived)", doomed.derived),
        ("exports that have them, and stay", doomed.exports),
        ("runs whose folders have rows of them, and stay", doomed.runs),
        ("backups that may have them, and stay", doomed.backups),
    )
    for title, names in lines:
        if names:
            click.echo(f"  {title}: {_listing(names)}")


def _listing(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
