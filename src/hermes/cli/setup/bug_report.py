"""`hermes bug-report`: one Markdown file with what a bug report needs, and the record of the last failure.

A failure that nobody foresaw is written to the home with its traceback. The report has versions, the findings
of `hermes doctor`, the settings that were changed, and that failure; secrets of the configuration and of the
environment are replaced by their names. It has no trajectories and no prompts, unless an error message quotes
one, so a person reads the file before it is sent.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import click

_LAST_FAILURE = "last-failure.txt"


@click.command("bug-report")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("hermes-bug-report.md"),
    show_default=True,
    help="Write the report here; '-' for standard output.",
)
def bug_report(output: Path) -> None:
    """Collect versions, checks, settings without secrets and the last failure in one file."""
    from hermes.cli.terminal.waiting import waiting
    from hermes.disk.files import atomic_write

    with waiting("checking this machine"):
        text = _report()
    if str(output) == "-":
        click.echo(text, nl=False)
        return
    atomic_write(output, text)
    click.echo(f"{output}: {len(text.splitlines())} lines. Read it before you send it.")


def record_failure(error: BaseException) -> None:
    """Keeps the traceback for the next report; a home that cannot be written does not hide the failure."""
    from hermes.config.paths import home

    text = "".join(traceback.format_exception(error))
    try:
        path = home() / _LAST_FAILURE
        path.write_text(_redact()(text), encoding="utf-8", errors="replace")
        path.chmod(0o600)
    except OSError:
        return
    click.echo("This is a fault of Hermes. 'hermes bug-report' collects what a report of it needs.", err=True)


def _redact() -> Callable[[str], str]:
    from hermes.config.load import load
    from hermes.config.secrets import find
    from hermes.safety.redact import Redactor

    try:
        return Redactor(load().secrets).text
    except Exception:  # noqa: BLE001 - the configuration may be what is broken, in whatever way
        return Redactor(find(os.environ)).text


def _report() -> str:
    from hermes.cli.setup.doctor import checks
    from hermes.cli.versions import version_text
    from hermes.config.load import SettingOrigin, load
    from hermes.config.paths import home
    from hermes.config.show import entries
    from hermes.errors import HermesError

    lines = ["## What happened", "", "(what you did, what you expected, what came instead)", ""]
    lines += ["## Versions", "", "```text", version_text(), f"{sys.executable}", "```", ""]
    lines += ["## Checks", "", "```text"]
    lines += [f"{check.status:<7}  {check.name}  {check.what}" for check in checks()]
    lines += ["```", "", "## Settings that are not the default", "", "```text"]
    try:
        changed = [entry for entry in entries(load()) if entry.origin is not SettingOrigin.DEFAULT]
        lines += [f"{entry.key} = {entry.text}" for entry in changed] or ["none"]
    except HermesError as error:
        lines.append(f"unreadable: {error.message}")
    lines += ["```", "", "## Last failure", "", "```text"]
    failure = home() / _LAST_FAILURE
    lines.append(failure.read_text(encoding="utf-8").rstrip() if failure.is_file() else "none recorded")
    lines += ["```", ""]
    return _redact()("\n".join(lines)).replace(str(Path.home()), "~")
