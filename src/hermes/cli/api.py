"""`hermes api` (also the script `run-api`): the trajectory API between environments and trainers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hermes.cli.options import RenamedOption, stored_variables


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0: any free port."
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Store all state here, so that it survives a crash. Without it the server starts empty.",
)
@click.option(
    "--max-groups",
    hidden=True,
    default=20_000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Maximum number of stored groups; further posts are refused with 503.",
)
@click.option(
    "--max-mb",
    type=click.IntRange(min=1),
    help="Maximum size of stored groups in MB: 2048, or 32768 with --state-dir.",
)
@click.option(
    "--max-body-mb",
    hidden=True,
    default=256,
    show_default=True,
    type=click.IntRange(min=1),
    help="Largest request body in MB, decompressed.",
)
@click.option(
    "--timeout",
    "--env-timeout",
    "env_timeout_s",
    cls=RenamedOption,
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Seconds without a request after which an environment counts as disconnected.",
)
@click.option(
    "--accept-unknown-envs",
    is_flag=True,
    help="Accept groups of unregistered environments, as the original server does.",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="On loopback without HERMES_API_TOKEN: answer every user of this machine, not only you.",
)
@stored_variables
def api(
    host: str,
    port: int,
    state_dir: Path | None,
    max_groups: int,
    max_mb: int | None,
    max_body_mb: int,
    env_timeout_s: float,
    accept_unknown_envs: bool,
    no_token: bool,
) -> None:
    """Serve the trajectory API until interrupted: environments post groups, a trainer fetches batches.

    On any address but loopback, HERMES_API_TOKEN must hold a token that clients send. On loopback without
    one, only connections of the user who started it are answered.
    """
    import logging
    import os

    from hermes.cli.terminal.interrupted import report_stop
    from hermes.rollouts.intake import IntakeLimits
    from hermes.rollouts.server import TrajectoryServerOptions, serve
    from hermes.safety.output.logs import log_to_stderr
    from hermes.serving.trajectory_api import TOKEN_VARIABLE

    log_to_stderr(logging.WARNING)
    limits = IntakeLimits(
        max_groups=max_groups,
        max_bytes=(max_mb or (32_768 if state_dir else 2_048)) << 20,
        max_body_bytes=max_body_mb << 20,
        env_timeout_s=env_timeout_s,
        accept_unknown_envs=accept_unknown_envs,
    )
    storage = f"state in {state_dir}" if state_dir else "state in memory only"
    token = os.environ.get(TOKEN_VARIABLE) or None
    if no_token and token is None:
        click.echo("--no-token: every user of this machine can read, score and reset the run", err=True)
    serve(
        TrajectoryServerOptions(host, port, state_dir, token, no_token, limits),
        lambda address: click.echo(f"trajectory API on {address}, {storage}"),
    )
    report_stop("api" if state_dir else "api in memory")


def run_api() -> None:
    """The script `run-api`, the name under which other projects start the server."""
    from hermes.cli.main import main

    sys.argv.insert(1, "api")
    main()
