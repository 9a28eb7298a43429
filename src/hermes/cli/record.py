"""`hermes record`: runs any agent and records it; `hermes record serve`: a gateway for many."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.model_options import model_options
from hermes.cli.options import WholeSummaries, stored_variables
from hermes.config.option import Options, option
from hermes.errors import UsageError

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.gateway.relay import RelayOptions
    from hermes.gateway.settle import Settled
    from hermes.gateway.upstream import Upstream

URL_VARIABLE = "HERMES_RECORD_URL"
"""The gateway that records already: set for the commands of `hermes record`, and by hand."""
_TERMS = (
    "note: the terms of some providers forbid training other models on their models' answers; every recorded"
    " call has its model's name. (stated once)"
)


class UpstreamOptions(Options):
    """Which provider answers."""

    model: str | None = option(
        None,
        "Model that answers in place of the one that the client names; its provider's key is used.",
        *("-m", "--model"),
        metavar="PROVIDER/NAME",
    )
    base_url: str | None = option(None, "Any server, such as an engine of yours or vLLM.", metavar="URL")
    protocols: tuple[str, ...] = option(
        (),
        "What the server speaks: chat, responses, messages; repeatable. Unset: by its name, else chat.",
        "--protocol",
        metavar="NAME",
    )
    timeout: float = option(600.0, "Longest silence of the provider, in seconds.", gt=0)


class RecordOptions(UpstreamOptions):
    install: bool = option(
        False,
        "Print the lines of a shell's start file that make clients always recorded, and how to undo it.",
    )
    write: bool = option(False, "Append the lines that --install prints, after asking.")
    remove: bool = option(False, "Take the lines of --install out again, after asking.")
    tag: str | None = option(None, "A run name for the trajectories.", "--run", metavar="NAME")


class ServeOptions(UpstreamOptions):
    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8790, "0: any free port.", ge=0, le=65535)
    idle: float = option(
        300.0, "Seconds after its last call when a session becomes trajectories of the store.", gt=0
    )


class _RecordGroup(WholeSummaries):
    """Words that name no command of the group are the command to record."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return "run", _run, args


@click.group(
    cls=_RecordGroup,
    invoke_without_command=True,
    subcommand_metavar="[serve | -- COMMAND...]",
)
@model_options(RecordOptions)
@click.pass_context
def record(ctx: click.Context, options: RecordOptions) -> None:
    """Run any agent and record it: every call becomes part of a trajectory.

    `hermes record -- claude -p "fix the tests"` starts a gateway for this one command, points the command
    at it, and stores its trajectories when it ends. Claude Code, Codex, opencode, pi, aider and
    mini-swe-agent have presets; other programs get the variables that the SDKs of OpenAI and Anthropic
    read. Without --model and --base-url the command uses its own account, and a gateway that runs
    already if HERMES_RECORD_URL names it.
    """
    ctx.obj = options
    if ctx.invoked_subcommand is not None:
        return
    if options.install:
        _install(options)
        return
    if options.write or options.remove:
        raise UsageError("--write and --remove belong to --install", "hermes record --install --write")
    raise UsageError("no command to record", "hermes record -- claude, or hermes record serve")


@click.command(
    "run", hidden=True, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
@stored_variables
def _run(options: RecordOptions, words: tuple[str, ...]) -> None:
    import logging
    import secrets
    import tempfile

    from hermes.config.load import load
    from hermes.config.providers import checked_url
    from hermes.gateway.presets import Target, prepare, preset_of
    from hermes.gateway.service import record_command
    from hermes.gateway.workspace import git_state
    from hermes.safety.output.logs import log_to_stderr

    if options.install:
        _install(options, words)
        return
    log_to_stderr(logging.WARNING)
    config = load()
    preset = preset_of(words[0])
    if shutil.which(words[0]) is None:
        raise UsageError(f"there is no program '{words[0]}'", "name one that is on the PATH")
    _state_terms(config)
    folder = Path.cwd()
    running = os.environ.get(URL_VARIABLE)
    if running and options.model is None and options.base_url is None:
        sys.exit(_run_at(checked_url(running, URL_VARIABLE), words))
    with (
        _upstream(config, options) as upstream,
        record_command(config, _relay_options(upstream, options), secrets.token_urlsafe(16)) as recording,
    ):
        facts = {"command": list(words), "folder": str(folder), "run": options.tag}
        recording.note(agent=preset.agent if preset else None, git_before=git_state(folder), **facts)
        with tempfile.TemporaryDirectory(prefix="hermes-record-") as scratch:
            target = Target(recording.url, upstream.model if upstream else None, own_key=upstream is None)
            launch = prepare(words, target, Path(scratch))
            around = {**launch.variables, URL_VARIABLE: recording.url}
            code = _run_command(launch.command, {**os.environ, **around})
        recording.note(exit_code=code, git_after=git_state(folder))
    click.echo(_summary(recording.settled), err=True)
    sys.exit(code)


def _run_at(url: str, words: tuple[str, ...]) -> int:
    """Runs the command at a gateway that is there already, which stores what it records."""
    import secrets
    import tempfile

    from hermes.gateway.presets import Target, prepare

    url = url.rstrip("/").removesuffix("/v1")
    url = url if "/r/" in url else f"{url}/r/{secrets.token_urlsafe(16)}"
    with tempfile.TemporaryDirectory(prefix="hermes-record-") as scratch:
        launch = prepare(words, Target(url), Path(scratch))
        code = _run_command(launch.command, {**os.environ, **launch.variables, URL_VARIABLE: url})
    click.echo(f"recorded by the gateway at {url.partition('/r/')[0]}, which stores it", err=True)
    return code


@contextmanager
def _restored_terminal() -> Iterator[None]:
    """At the end the terminal has the modes that it had, also after a command that was killed in its own."""
    import termios

    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _run_command(command: tuple[str, ...], environ: dict[str, str]) -> int:
    """The command's exit code, as a shell has it. The terminal, its interrupts included, is the command's."""
    import signal
    import subprocess

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            command, env=environ, preexec_fn=lambda: signal.signal(signal.SIGINT, before) and None
        )
        signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
        with _restored_terminal():
            code = child.wait()
    except OSError as error:
        raise UsageError(f"'{command[0]}' cannot be started: {error.strerror}") from error
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - code if code < 0 else code


def _summary(settled: Settled) -> str:
    if not settled.trajectories:
        return "recorded: no call of a model (did the command use another address?)"
    cost = "cost unknown" if settled.cost_usd is None else f"${settled.cost_usd:.4f}"
    more = len(settled.trajectories) - 1
    rest = f", and {more} beside it" if more else ""
    trajectory_id = settled.main or settled.trajectories[0]
    calls = "1 call" if settled.calls == 1 else f"{settled.calls} calls"
    return (
        f"recorded: {calls}, {settled.usage.total:,} tokens, {cost};"
        f" hermes trajectories show {trajectory_id}{rest}"
    )


@record.command()
@model_options(ServeOptions)
@stored_variables
def serve(options: ServeOptions) -> None:
    """Serve the gateway until interrupted, for clients that are pointed at it.

    It speaks OpenAI Chat Completions, OpenAI Responses and Anthropic Messages, with and without /v1. A path
    that begins with /r/NAME makes the calls below it one recording. On any address but loopback
    HERMES_RECORD_TOKEN must hold a token, which clients send as their API key, and the provider's key is
    the configured one. On loopback only connections of the user who started it are answered.
    """
    import logging

    from hermes.cli.terminal.interrupted import report_stop
    from hermes.config.load import load
    from hermes.gateway import service
    from hermes.safety.output.logs import log_to_stderr

    log_to_stderr(logging.WARNING)
    config = load()

    def announce(url: str) -> None:
        click.echo(f"gateway on {url} (ANTHROPIC_BASE_URL={url} OPENAI_BASE_URL={url}/v1)")
        sys.stdout.flush()

    with _upstream(config, options) as upstream:
        _state_terms(config)
        serving = service.ServeOptions(
            options.host,
            options.port,
            os.environ.get(service.TOKEN_VARIABLE) or None,
            _relay_options(upstream, options),
            options.idle,
        )
        settled = service.serve(config, serving, announce)
    if settled.trajectories:
        click.echo(_summary(settled), err=True)
    report_stop("record serve")


@contextmanager
def _upstream(config: Config, options: UpstreamOptions) -> Iterator[Upstream | None]:
    """Who answers: a policy, which is served for the block, or the provider that the options name; None: that
    of the client's own account."""
    if options.model is not None and options.base_url is None:
        from hermes.rl.weights.open import find_policy

        if policy := find_policy(config, options.model, _note):
            from hermes.rl.weights.serve import policy_upstream

            with policy_upstream(config, policy, _note) as upstream:
                yield upstream
            return
    yield _provider(config, options)


def _note(text: str) -> None:
    click.echo(f"({text})", err=True)


def _provider(config: Config, options: UpstreamOptions) -> Upstream | None:
    from hermes.config.providers import CUSTOM, checked_url, resolve_model
    from hermes.gateway.upstream import Upstream, spoken_at
    from hermes.gateway.wire import Protocol

    unknown = set(options.protocols) - set(Protocol)
    if unknown:
        raise UsageError(f"--protocol: '{unknown.pop()}' is none", f"one of: {', '.join(Protocol)}")
    protocols = frozenset(map(Protocol, options.protocols))
    if options.model is None and options.base_url is None:
        return None
    if options.model is None:
        url = checked_url(options.base_url or "", "--base-url")
        return Upstream(CUSTOM, url, protocols or spoken_at(url))
    target = resolve_model(config.settings, config.environ, options.model, options.base_url)
    if target.is_local:
        raise UsageError(
            f"{target.name} runs inside a process and has no address",
            "hermes engine serve; then --base-url http://127.0.0.1:8001/v1 --model hermes/smollm2",
        )
    return Upstream(
        target.provider,
        target.base_url,
        protocols or spoken_at(target.base_url),
        target.api_key,
        target.model,
    )


def _relay_options(upstream: Upstream | None, options: UpstreamOptions) -> RelayOptions:
    from hermes.gateway.relay import RelayOptions
    from hermes.gateway.upstream import Accounts

    return RelayOptions(upstream, Accounts.of(os.environ), options.timeout)


def _state_terms(config: Config) -> None:
    from hermes.gateway.service import recordings_dir

    marker = recordings_dir(config) / "terms"
    if not marker.exists():
        from hermes.disk.files import atomic_write

        click.echo(_TERMS, err=True)
        atomic_write(marker, _TERMS + "\n")


def _install(options: RecordOptions, words: tuple[str, ...] = ()) -> None:
    from hermes.disk.files import atomic_write
    from hermes.gateway.presets import PRESETS, shell_lines, start_file, with_lines

    programs = [program for preset in PRESETS for program in preset.programs if shutil.which(program)]
    names = list(words) or programs or ["claude"]
    if unfit := [name for name in names if not re.fullmatch(r"[\w.-]+", name)]:
        raise UsageError(f"'{unfit[0]}' is not the name of a program", "hermes record --install -- claude")
    shell = Path(os.environ.get("SHELL") or "bash").name
    script = Path(sys.executable).with_name("hermes")
    hermes = str(script) if script.exists() else shutil.which("hermes") or "hermes"
    lines = "" if options.remove else shell_lines(names, hermes, shell)
    path = Path.home() / start_file(shell)
    text = path.read_text("utf-8") if path.is_file() else ""
    if not options.write and not options.remove:
        click.echo(f"# {path}; --write appends this\n{lines}", nl=False)
        click.echo("# to undo: hermes record --install --remove", err=True)
        return
    question = f"Take the lines out of {path}?" if options.remove else f"Append to {path}:\n{lines}?"
    if click.confirm(question, err=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode if path.is_file() else 0o644
        atomic_write(path, with_lines(text, lines))
        path.chmod(mode & 0o7777)
        click.echo(f"{path} is changed; to undo: hermes record --install --remove", err=True)
