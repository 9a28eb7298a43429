"""Slips in the filters of a command: a name that no trajectory has, answered with the nearest one.

A source and a way to end are fixed words: any other is an error. A run, a model or a tool may be one that has
recorded nothing yet, so the command goes on; a line on standard error says that no trajectory has it.
"""

from __future__ import annotations

from difflib import get_close_matches

import click

from hermes.config.paths import db_path, home
from hermes.core import Source, StopReason
from hermes.errors import UsageError
from hermes.store import Filter, Reader


def check_words(filters: Filter) -> None:
    """UsageError if the source or the outcome is a word that no trajectory can have."""
    sources = [source.value for source in Source]
    outcomes = [*(reason.value for reason in StopReason), "running"]
    for option, word, words in (
        ("--source", filters.source, sources),
        ("--outcome", filters.stop_reason, outcomes),
    ):
        if word is not None and word not in words:
            raise UsageError(
                f"{option}: no trajectory has '{word}'", f"{_nearest(word, words)}one of: {', '.join(words)}"
            )


def report_unknown_names(filters: Filter) -> None:
    """Prints a line for each run, model and tool that no trajectory of the store has."""
    path = db_path(home())
    conditions = {
        "run": Filter(run_id=filters.run_id),
        "model": Filter(model=filters.model),
        "tool": Filter(tool=filters.tool),
    }
    names = {"run": filters.run_id, "model": filters.model, "tool": filters.tool}
    if not path.exists():
        return
    with Reader(path) as reader:
        for kind, name in names.items():
            if name is None or reader.summaries(conditions[kind], limit=1):
                continue
            nearest = _nearest(name, reader.names(kind)).strip()
            click.echo(f"no trajectory has the {kind} '{name}'{'; ' if nearest else ''}{nearest}", err=True)


def _nearest(word: str, words: list[str]) -> str:
    close = get_close_matches(word, words, n=1)
    return f"did you mean '{close[0]}'? " if close else ""
