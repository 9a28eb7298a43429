"""Long output on a terminal goes through the pager ($PAGER, else less); everywhere else it is printed."""

from __future__ import annotations

import os
import shutil
import sys

import click

from hermes.cli.terminal.waiting import can_redraw


def show(text: str) -> None:
    """Prints the text, through the pager if it is taller than the terminal."""
    if not can_redraw(sys.stdout) or text.count("\n") + 1 < shutil.get_terminal_size().lines:
        click.echo(text)
        return
    os.environ.setdefault("LESS", "-FRX")  # colours, and nothing to leave if it fits
    context = click.get_current_context(silent=True)
    click.echo_via_pager(text, color=None if context is None else context.color)
