"""`hermes` without a command: interactive chat, or one question with -q."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.errors import UsageError

if TYPE_CHECKING:
    from hermes.agent.build import RolloutPlan
    from hermes.config.load import Config
    from hermes.models.base import ChatModel


@dataclass(frozen=True)
class ChatOptions:
    """The flags of `hermes` itself."""

    query: str | None
    model: str | None
    base_url: str | None
    toolsets: str | None
    sandbox: str | None
    workspace: str | None
    max_turns: int | None
    yes: bool
    as_json: bool


def start(**flags: Any) -> None:
    from hermes.config.environment import export_stored

    export_stored()
    options = ChatOptions(**flags)
    query = options.query
    if query is None and not sys.stdin.isatty():
        query = sys.stdin.read()
    if query is None:
        if options.as_json:
            raise UsageError("--json needs a question", "hermes -q 'your question' --json")
        from hermes.cli.chat.repl import run_repl

        asyncio.run(run_repl(options))
        return
    if not query.strip():
        raise UsageError("the question is empty", "hermes -q 'your question'")
    from hermes.cli.chat.query import run_query

    sys.exit(asyncio.run(run_query(query, options)))


def load_config(options: ChatOptions) -> Config:
    """The configuration with this command's flags on top."""
    from hermes.config.load import load

    flags = {"sandbox.backend": options.sandbox, "limits.max_turns": options.max_turns}
    return load({key: value for key, value in flags.items() if value is not None})


def make_plan(config: Config, model: str, options: ChatOptions) -> RolloutPlan:
    from hermes.agent.build import RolloutPlan
    from hermes.agent.examples import examples_for
    from hermes.agent.toolset_choice import choose_toolsets
    from hermes.rl.run import named_run

    workspace = Path(options.workspace).resolve() if options.workspace else None
    if workspace is not None and not workspace.is_dir():
        raise UsageError(f"--workspace {workspace} is not a directory", "create it first")
    run = named_run(config.home, options.model)
    toolsets = choose_toolsets(config, model, options.toolsets, run.toolsets() if run else None)
    return RolloutPlan(
        toolsets=toolsets,
        require_tools=options.toolsets is not None,
        examples=examples_for(model, toolsets),
        approve_all=options.yes,
        workspace=workspace,
    )


def open_chat_model(config: Config, options: ChatOptions) -> ChatModel:
    from hermes.models.open import open_model
    from hermes.rl.run import named_run

    if (run := named_run(config.home, options.model)) is not None:
        from hermes.rl.weights.serve import open_run_model

        return open_run_model(config, run, tell_progress)
    return open_model(config, options.model, options.base_url, progress=tell_progress)


def tell_progress(line: str) -> None:
    """What a model in this process does before it can answer, on standard error."""
    click.echo(f"({line})", err=True)
