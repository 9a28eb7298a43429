"""The `hermes` command: a table of subcommands, each imported only when it is used.

`hermes --help` reads nothing but this file and click. Underscores in flags are accepted as dashes.
Every expected failure is printed here as two lines (the error; the fix) and sets the exit code.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
from difflib import get_close_matches
from typing import Any

import click

from hermes import __version__
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
    "compress": (
        "hermes.cli.compress.command:compress",
        "Fit trajectories to a token budget; decisions go last.",
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
        "Store conversations from elsewhere: ShareGPT, messages, ATIF.",
    ),
    "memory": (
        "hermes.cli.setup.memory:memory",
        "What the agent remembers across sessions: list, show, add, remove.",
    ),
    "models": ("hermes.cli.setup.models:models", "List the providers and the bundled model."),
    "improve": (
        "hermes.cli.policy.improve:improve",
        "Learn from new ratings and promote the policy only if it is better.",
    ),
    "paper": ("hermes.cli.paper:paper", "A LaTeX paper from a run's record, and the check of its numbers."),
    "policy": (
        "hermes.cli.policy.command:policy",
        "Policies: list, show, promote, rollback, compare, serve.",
    ),
    "quickstart": (
        "hermes.cli.quickstart:quickstart",
        "The whole loop, with real training, on the bundled model: CPU only, no key.",
    ),
    "rate": (
        "hermes.cli.rating.command:rate",
        "Rate trajectories: one, two against each other, a queue; and how raters agree.",
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
    "tools": ("hermes.cli.setup.tools:tools", "List the tools and why one is unavailable."),
    "train": ("hermes.cli.train.command:train", "Train a LoRA adapter: sft, dpo, kto, reward, rlhf, grpo."),
    "trajectories": (
        "hermes.cli.data.trajectories:trajectories",
        "List, show, search and compare what was recorded.",
    ),
    "web": ("hermes.cli.web:web", "The web app: read, rate and watch in a browser."),
}


def _dashes(name: str) -> str:
    return name.replace("_", "-")


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run, and listed without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            close = get_close_matches(name, COMMANDS, n=1)
            hint = f"Did you mean '{close[0]}'?" if close else "See 'hermes --help'."
            raise click.UsageError(f"no such command '{name}'. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": _dashes,
        "max_content_width": 100,
    },
)
@click.option("-q", "--query", metavar="TEXT", help="Ask one question and exit.")
@click.option("-m", "--model", metavar="PROVIDER/NAME", help="Model to use instead of the configured one.")
@click.option("--base-url", metavar="URL", help="Any OpenAI-compatible endpoint.")
@click.option("--toolsets", metavar="A,B", help="Toolsets to offer; 'none' for no tools.")
@click.option("--sandbox", metavar="NAME", help="local, bubblewrap or docker.")
@click.option("--workspace", metavar="DIR", type=click.Path(), help="Directory the tools work in.")
@click.option("--max-turns", type=click.IntRange(min=1), help="Most model calls for one question.")
@click.option("--yes", is_flag=True, help="Run commands without asking. Only where you trust the model.")
@click.option("--json", "as_json", is_flag=True, help="With -q: print one JSON object.")
@click.version_option(__version__, prog_name="hermes")
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:
    """An agent whose every run becomes training data. Without a command: interactive chat."""
    if ctx.invoked_subcommand is None:
        from hermes.cli.chat.start import start

        start(**options)


def main() -> None:
    """Entry point: prints expected failures without a traceback."""
    # Without this the interpreter collects garbage at exit: 0.07 s, and a second if torch is loaded.
    atexit.register(gc.freeze)
    try:
        cli(prog_name="hermes")
    except HermesError as error:
        from hermes.safety.text import printable

        click.echo(f"error: {printable(error.message)}", err=True)
        if error.hint:
            click.echo(f"  fix: {printable(error.hint)}", err=True)
        sys.exit(error.exit_code)
