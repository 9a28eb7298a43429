"""`hermes web`: the web app."""

from __future__ import annotations

import click

from hermes.cli.options import stored_variables


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8765, show_default=True, type=click.IntRange(0, 65535), help="0: any free port."
)
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@stored_variables
def web(host: str, port: int, no_open: bool) -> None:
    """Read, rate and watch in a browser, until interrupted.

    On any address but loopback, HERMES_WEB_TOKEN must hold a token that people sign in with. Who has
    the token in HERMES_WEB_RATER_TOKEN reads and rates, and can do nothing else.
    """
    import logging
    import os
    import sys

    from hermes.cli.terminal.interrupted import report_stop
    from hermes.config.load import load
    from hermes.safety.output.logs import log_to_stderr
    from hermes.web.server import WebOptions, serve

    log_to_stderr(logging.WARNING)
    token, rater_token = (
        os.environ.get(name) or None for name in ("HERMES_WEB_TOKEN", "HERMES_WEB_RATER_TOKEN")
    )
    serve(
        load(),
        WebOptions(host, port, token, rater_token, open_browser=not no_open and sys.stdout.isatty()),
        lambda url: click.echo(f"hermes web on {url} (Ctrl-C ends it)"),
    )
    report_stop("web")
