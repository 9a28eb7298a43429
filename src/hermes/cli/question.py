"""Questions to the person at the terminal, whose answers decide what happens.

What is asked about is shown exactly (`safety.exact`). An answer counts only if it was typed after that was on
the screen: what was typed before is discarded, and so is an answer with further input right behind it, which
is pasted text. Where standard input is no terminal nobody has seen the question, and the answer is no.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import shutil
import sys
import time

import click

from hermes.errors import UsageError
from hermes.safety.exact import block, exact, foreign_characters

_SETTLE_S = 0.25
"""How long a question is on the screen before a key counts: shorter than anyone reads, longer than the rest
of a word takes that is being typed."""
_PASTE_S = 0.05
_CURSOR_REPORT = re.compile(rb"\x1b\[\d+;\d+R")
_LONG_LINES = 20
_AGAIN = "(text came with the answer, so it may be pasted: please answer again)"


def has_person() -> bool:
    """Whether someone can read a question and answer it."""
    return sys.stdin.isatty() and (sys.stdout.isatty() or sys.stderr.isatty())


def show_action(title: str, action: str, *, err: bool = False) -> None:
    """Prints what is asked about: whole and exact."""
    lines = block(action, shutil.get_terminal_size().columns)
    click.echo(click.style(f"\n{exact(title)}", bold=True), err=err)
    click.echo("\n".join(lines), err=err)
    if note := foreign_characters(action):
        click.echo(f"({note})", err=err)
    if len(lines) > _LONG_LINES:
        count = f"{len(lines)} lines, {len(action)} characters"
        click.echo(f"(the text above has {count}; scroll up to read all of it)", err=err)


async def ask(prompt: str) -> str:
    """Reads the reply to a question that was just printed; it is not added to the chat's history."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.input.typeahead import get_typeahead

    while True:
        session: PromptSession[str] = PromptSession()
        await asyncio.sleep(_SETTLE_S)
        _discard_typed()
        get_typeahead(session.input)
        reply: str = await session.prompt_async(prompt)
        if not has_person() or not (get_typeahead(session.input) or _more_input()):
            return reply
        click.echo(_AGAIN)


def confirm(question: str, *, err: bool = False) -> bool:
    """Asks about what was just shown; anything but yes is no. False where nobody can answer."""
    if not has_person():
        return False
    while True:
        time.sleep(_SETTLE_S)
        _discard_typed()
        click.echo(f"{question} [y/N]: ", err=err, nl=False)
        reply = sys.stdin.readline()
        if not _more_input():
            return reply.strip().lower() in ("y", "yes")
        click.echo(_AGAIN, err=err)


def confirm_deletion(what: str, *, yes: bool) -> None:
    """Asks whether to delete what was just shown, unless `yes`; UsageError if it is not confirmed."""
    if not yes and not confirm(f"Delete {what} for good?"):
        hint = "answer y" if has_person() else "add --yes: standard input is no terminal"
        raise UsageError("nothing was deleted: it was not confirmed", hint)


def _discard_typed() -> None:
    """Waits until everything printed has reached the terminal, then drops the keys typed so far."""
    import termios

    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        if stream.isatty():
            termios.tcdrain(stream.fileno())
    if sys.stdin.isatty():
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _more_input() -> bool:
    """Whether more was typed at once; it is read and dropped."""
    dropped = b""
    while sys.stdin.isatty() and select.select([sys.stdin], [], [], _PASTE_S)[0]:
        data = os.read(sys.stdin.fileno(), 65536)
        if not data:
            break
        dropped += data
    return bool(_CURSOR_REPORT.sub(b"", dropped))
