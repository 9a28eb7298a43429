"""The `hermes` command: a table of subcommands, each imported only when it is used.

`hermes --help` reads nothing but this file and click. Underscores in flags are accepted as dashes.
Every expected failure is printed here as two lines (the error; the fix) and sets the exit code.
"""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hermes.errors import HermesError

COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module:attribute, one line for --help)
    "api": (
        "hermes.cli.api:api",
        "The trajectory API: environments post groups, a trainer fetches batches.",
    ),
    "batch": (
        "hermes.cli.batch.command:batch",
        "Many prompts in parallel, resumable; nothing lost, nothing paid twice.",
    ),
    "bench": (
        "hermes.cli.batch.bench:bench",
        "The same tasks across models: table, wins and losses, where they diverge.",
    ),
    "bug-report": (
        "hermes.cli.setup.bug_report:bug_report",
        "Collect what a bug report needs in one file, without secrets.",
    ),
    "compress": (
        "hermes.cli.compress.command:compress",
        "Fit trajectories to a token budget; decisions go last.",
    ),
    "completion": (
        "hermes.cli.setup.completion:completion",
        "Print the completion script of a shell: bash, zsh or fish.",
    ),
    "config": ("hermes.cli.setup.config:config", "Show and change settings."),
    "doctor": (
        "hermes.cli.setup.doctor:doctor",
        "Check what works on this machine, and what would fix the rest.",
    ),
    "engine": (
        "hermes.cli.engine:engine",
        "Train and sample adapters on this machine; serves the Tinker and OpenAI APIs.",
    ),
    "env": ("hermes.cli.env:env", "Environments: list, new, check, serve, process, evaluate."),
    "export": ("hermes.cli.data.export:export", "Write trajectories as training data."),
    "import": (
        "hermes.cli.data.import_:import_",
        "Store conversations from elsewhere: agents' sessions, ShareGPT, ATIF.",
    ),
    "memory": (
        "hermes.cli.setup.memory:memory",
        "What the agent remembers across sessions: list, show, add, remove.",
    ),
    "models": (
        "hermes.cli.setup.models:models",
        "List the names that --model takes: of providers, yours, policies, runs.",
    ),
    "improve": (
        "hermes.cli.policy.improve:improve_policy",
        "Learn from new ratings and promote the policy only if it is better.",
    ),
    "policy": (
        "hermes.cli.policy.command:policy",
        "Policies: list, show, promote, delete, serve.",
    ),
    "quickstart": (
        "hermes.cli.quickstart:quickstart",
        "The whole loop, with real training, on the bundled model: CPU only, no key.",
    ),
    "rate": (
        "hermes.cli.rating.command:rate",
        "Rate trajectories: one, two against each other, a queue; and how raters agree.",
    ),
    "record": (
        "hermes.cli.record:record",
        "Run any agent and record it: Claude Code, Codex, opencode, pi, aider, your own.",
    ),
    "reward": (
        "hermes.cli.train.reward:reward",
        "Reward models: serve them over HTTP, score answers with them.",
    ),
    "rl": (
        "hermes.cli.rl.command:rl",
        "Train by reinforcement: environments, runs, results, weights; or by the agent.",
    ),
    "skills": (
        "hermes.cli.skills.command:skills",
        "Browse, search, view, install, check and learn skills.",
    ),
    "store": ("hermes.cli.setup.store:store", "The database of trajectories: check, compact, backup."),
    "tools": ("hermes.cli.setup.tools:tools", "List the tools and why one is unavailable."),
    "train": ("hermes.cli.train.command:train", "Train a LoRA adapter: sft, dpo, kto, reward, rlhf, grpo."),
    "trajectories": (
        "hermes.cli.data.trajectories:trajectories",
        "List, show, search, compare, score and delete what was recorded.",
    ),
    "web": ("hermes.cli.web:web", "The web app: read, rate and watch in a browser."),
}


def _dashes(name: str) -> str:
    return name.replace("_", "-")


def _complete(command: click.Command, name: str) -> None:
    """Adds to a command, and to the commands in it, its examples, and its name for an interrupt."""
    from hermes.cli.examples import examples_text
    from hermes.cli.terminal.interrupted import NamedContext

    command.epilog = command.epilog or examples_text(name)
    command.context_class = NamedContext
    for subcommand in getattr(command, "commands", {}).values():
        _complete(subcommand, f"{name} {subcommand.name}")


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run, and listed without importing them.

    Several words in quotes where a command belongs are a question: `hermes "What is 17 * 23?"`.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        _complete(command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if " " in name.strip():
            return ask.name, ask, args
        if name not in COMMANDS and not name.startswith("-"):
            from hermes.core.names import did_you_mean, nearest

            question = " ".join(args) if len(args) > 1 else name
            groups = {group: getattr(self.get_command(ctx, group), "commands", {}) for group in COMMANDS}
            inside = [
                f"{group} {name}"
                for group in groups
                if name in groups[group] and not groups[group][name].hidden
            ]
            hint = did_you_mean(inside or nearest(name, COMMANDS), "see 'hermes --help'.")
            raise click.UsageError(f"no such command '{name}'; {hint} To ask: hermes -q '{question}'", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            from hermes.cli.terminal.interrupted import report_interrupt

            report_interrupt(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


_SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": _dashes,
    "max_content_width": 100,
}

_CHAT_OPTIONS = (
    click.option(
        "-m",
        "--model",
        metavar="NAME",
        help="Model to use instead of the configured one: see 'hermes models'.",
    ),
    click.option(
        "--base-url",
        metavar="URL",
        help="Any OpenAI-compatible server; without --model, the model it serves.",
    ),
    click.option("--toolsets", metavar="A,B", help="Toolsets to offer; 'none' for no tools."),
    click.option("--sandbox", metavar="NAME", help="local, bubblewrap or docker."),
    click.option(
        "--workspace",
        metavar="DIR",
        type=click.Path(),
        help="Directory the tools work in; default: this one.",
    ),
    click.option("--max-turns", type=click.IntRange(min=1), help="Most model calls for one question."),
    click.option("-s", "--system", metavar="TEXT", help="System prompt to use instead of the built-in one."),
    click.option("-t", "--template", metavar="NAME", help="A template: NAME.yaml in ~/.hermes/templates."),
    click.option(
        "--param", "params", multiple=True, metavar="NAME=VALUE", help="A value for the template; repeatable."
    ),
    click.option(
        "-f",
        "--fragment",
        "fragments",
        multiple=True,
        metavar="FILE",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="A file that becomes part of the question; repeatable.",
    ),
    click.option(
        "--schema", metavar="FILE|JSON", help="JSON schema that the answer must fit; the answer is checked."
    ),
    click.option("-c", "--continue", "continue_last", is_flag=True, help="Continue the last conversation."),
    click.option("--resume", metavar="ID", help="Continue the conversation with this id."),
    click.option("--no-log", is_flag=True, help="Record nothing of this conversation."),
    click.option("--yes", is_flag=True, help="Run commands without asking. Only where you trust the model."),
    click.option("--json", "as_json", is_flag=True, help="With a question: print one JSON object."),
)


def _chat_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_CHAT_OPTIONS):
        command = option(command)
    return command


def _print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from hermes.cli.versions import version_text

        click.echo(version_text())
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings=_SETTINGS,
    epilog="""Examples:

\b
  hermes                                     chat
  hermes "What is 17 * 23?"                  one question
  cat report.txt | hermes -q "Summarise"     a question about a text
  hermes -c                                  continue the last conversation
  hermes --base-url http://127.0.0.1:8000/v1 a server of your own
  hermes quickstart                          the whole loop with training""",
)
@click.option(
    "-q", "--query", metavar="TEXT", help="Ask one question and exit; standard input is added to it."
)
@_chat_options
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version, and those of the packages that matter, and exit.",
)
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:
    """An agent whose every run becomes training data. Without a command: interactive chat."""
    if ctx.invoked_subcommand is None:
        from hermes.cli.chat.start import start

        start(**options)


@click.command(context_settings=_SETTINGS)
@click.argument("words", nargs=-1, required=True)
@_chat_options
@click.pass_context
def ask(ctx: click.Context, /, words: tuple[str, ...], **options: Any) -> None:
    """Ask one question: `hermes "QUESTION"`. The options of `hermes` may stand before or after it."""
    from hermes.cli.chat.start import start

    assert ctx.parent is not None
    before = ctx.parent.params
    if before["query"] is not None:
        raise click.UsageError("there are two questions: -q and the words after it", ctx)
    chosen = {name: options[name] or before[name] for name in options}
    start(**{**chosen, "query": " ".join(words)})


def main() -> None:
    """Entry point: prints expected failures without a traceback."""
    # Without this the interpreter collects garbage at exit: 0.07 s, and a second if torch is loaded.
    atexit.register(gc.freeze)
    from hermes.cli.terminal.colour import colour_default

    try:
        cli(prog_name="hermes", color=colour_default())
    except HermesError as error:
        from hermes.safety.text import printable

        click.echo(f"error: {printable(error.message)}", err=True)
        if error.hint:
            click.echo(f"  fix: {printable(error.hint)}", err=True)
        sys.exit(error.exit_code)
    except Exception as error:
        if not (isinstance(error, OSError) and _report_output_error(error)):
            from hermes.cli.setup.bug_report import record_failure

            record_failure(error)
            raise


def _report_output_error(error: OSError) -> bool:
    """Reports that standard output cannot take more (a full disk); False if that is not what failed."""
    if error.errno != errno.ENOSPC or error.filename is not None:
        return False
    # what is left in the buffer would fail again when the interpreter ends
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    click.echo("error: the output cannot be written: no space is left on its device", err=True)
    click.echo("  fix: free space there, or send the output elsewhere", err=True)
    sys.exit(1)
