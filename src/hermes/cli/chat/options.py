"""The options of `hermes` itself, and the configuration, model and plan that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.errors import UsageError

if TYPE_CHECKING:
    from hermes.agent.build import RolloutPlan
    from hermes.config.load import Config
    from hermes.models.base import ChatModel


@dataclass(frozen=True)
class ChatOptions:
    """Fields are named like the flags; `hermes --help` documents them."""

    query: str | None
    model: str | None
    base_url: str | None
    toolsets: str | None
    sandbox: str | None
    workspace: str | None
    max_turns: int | None
    yes: bool
    as_json: bool


def load_config(options: ChatOptions) -> Config:
    """The configuration with this command's flags on top."""
    from hermes.config.load import load

    flags = {"sandbox.backend": options.sandbox, "limits.max_turns": options.max_turns}
    return load({key: value for key, value in flags.items() if value is not None})


def make_plan(config: Config, model: str, options: ChatOptions) -> RolloutPlan:
    from hermes.agent.build import RolloutPlan
    from hermes.agent.examples import examples_for
    from hermes.agent.toolset_choice import choose_toolsets
    from hermes.policies.registry import named_policy
    from hermes.rl.run import named_run

    workspace = Path(options.workspace).resolve() if options.workspace else None
    if workspace is not None and not workspace.is_dir():
        raise UsageError(f"--workspace {workspace} is not a directory", "create it first")
    run = named_run(config.home, options.model)
    if options.base_url is None and (policy := named_policy(config.home, options.model)) is not None:
        model = policy.base_model  # what suits the base model suits what was trained from it
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
    from hermes.policies.registry import named_policy
    from hermes.rl.run import named_run

    if options.base_url is None and (policy := named_policy(config.home, options.model)) is not None:
        from hermes.policies.open import open_policy_model

        return open_policy_model(config, policy, print_progress)
    if (run := named_run(config.home, options.model)) is not None:
        from hermes.rl.weights.serve import open_run_model

        return open_run_model(config, run, print_progress)
    return open_model(config, options.model, options.base_url, progress=print_progress)


def print_progress(line: str) -> None:
    """Prints what a local model does while it loads, on standard error."""
    click.echo(f"({line})", err=True)
