"""`hermes api` (also the script `run-api`): the trajectory API between environments and trainers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hermes.cli.model_options import model_options
from hermes.cli.options import stored_variables
from hermes.config.option import Options, option


class ApiOptions(Options):
    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8000, "0: any free port.", ge=0, le=65535)
    state_dir: Path | None = option(
        None,
        "Store all state here, so that it survives a crash. Without it the server starts empty.",
        path="folder",
    )
    max_groups: int = option(
        20_000, "Maximum number of stored groups; further posts are refused with 503.", hidden=True, ge=1
    )
    max_mb: int | None = option(
        None, "Maximum size of stored groups in MB: 2048, or 32768 with --state-dir.", hidden=True, ge=1
    )
    max_body_mb: int = option(256, "Largest request body in MB, decompressed.", hidden=True, ge=1)
    env_timeout_s: float = option(
        60.0,
        "Seconds without a request after which an environment counts as disconnected.",
        "--timeout",
        former=("--env-timeout",),
        ge=0.1,
    )
    accept_unknown_envs: bool = option(
        False, "Accept groups of unregistered environments, as the original server does.", hidden=True
    )
    no_token: bool = option(
        False, "On loopback without HERMES_API_TOKEN: answer every user of this machine, not only you."
    )


@click.command()
@model_options(ApiOptions)
@stored_variables
def api(options: ApiOptions) -> None:
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
        max_groups=options.max_groups,
        max_bytes=(options.max_mb or (32_768 if options.state_dir else 2_048)) << 20,
        max_body_bytes=options.max_body_mb << 20,
        env_timeout_s=options.env_timeout_s,
        accept_unknown_envs=options.accept_unknown_envs,
    )
    state_dir, no_token = options.state_dir, options.no_token
    storage = f"state in {state_dir}" if state_dir else "state in memory only"
    token = os.environ.get(TOKEN_VARIABLE) or None
    if no_token and token is None:
        click.echo("--no-token: every user of this machine can read, score and reset the run", err=True)
    serve(
        TrajectoryServerOptions(options.host, options.port, state_dir, token, no_token, limits),
        lambda address: click.echo(f"trajectory API on {address}, {storage}"),
    )
    report_stop("api" if state_dir else "api in memory")


def run_api() -> None:
    """The script `run-api`, the name under which other projects start the server."""
    from hermes.cli.main import main

    sys.argv.insert(1, "api")
    main()
