"""Whether output is coloured: never with NO_COLOR or on a dumb terminal."""

from __future__ import annotations

import os

import click


def colour_default() -> bool | None:
    """For click's contexts: False where the environment forbids colour, else None: click decides."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return None


def use_colour() -> bool:
    """Whether this command may use colour on a terminal."""
    context = click.get_current_context(silent=True)
    return colour_default() is not False and (context is None or context.color is not False)
