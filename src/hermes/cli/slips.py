"""Slips in the filters of a command: a name that no trajectory has, answered with the nearest one.

A source and a way to end are fixed words: any other is an error. A run, a model or a tool may be one that has
recorded nothing yet, so the command goes on; a line on standard error says that no trajectory has it.
"""

from __future__ import annotations

import click

from hermes.config.paths import db_path, home
from hermes.core import Source, StopReason
from hermes.core.names import did_you_mean, nearest
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
                f"{option}: no trajectory has '{word}'",
                did_you_mean(nearest(word, words), f"one of: {', '.join(words)}"),
            )


def report_unknown_names(filters: Filter, *, refuse: bool = False) -> None:
    """Prints a line for each run, model, agent and tool that no trajectory of the store has.

    `refuse`: UsageError instead, for a command to which nothing at all is of no use.
    """
    path = db_path(home())
    conditions = {
        "run": Filter(run_id=filters.run_id),
        "model": Filter(model=filters.model),
        "agent": Filter(agent=filters.agent),
        "tool": Filter(tool=filters.tool),
    }
    names = {
        "run": filters.run_id,
        "model": filters.model,
        "agent": filters.agent,
        "tool": filters.tool,
    }
    if not path.exists() and not refuse:
        return
    with Reader(path) as reader:
        for kind, name in names.items():
            if name is None or reader.summaries(conditions[kind], limit=1):
                continue
            candidates = reader.names(kind)
            hint = did_you_mean(nearest(name, candidates))
            if refuse:
                listing = ", ".join(candidates[:8]) or "nothing is recorded yet"
                raise UsageError(f"no trajectory has the {kind} '{name}'", hint or listing)
            click.echo(f"no trajectory has the {kind} '{name}'{hint and f'; {hint}'}", err=True)
