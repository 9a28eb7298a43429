"""`hermes rl "TASK"`: the agent, with the ten `rl_*` tools. It takes the flags of hermes-agent's `rl_cli`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from hermes.cli.model_options import model_options
from hermes.cli.options import json_option, refuse_key, stored_variables
from hermes.config.option import Options, option

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import JSON


class AgentOptions(Options):
    task: str | None = option(None, "", argument=True)
    model: str | None = option(None, "Model of the agent, as provider/name; not the one that is trained.")
    base_url: str | None = option(None, "Any OpenAI-compatible endpoint.", metavar="URL")
    toolsets: str | None = option(
        None, "Toolsets beside rl, such as file,web, to write environments.", metavar="A,B"
    )
    max_iterations: int = option(200, "Most model calls.", "--max-turns", former=("--max-iterations",), ge=1)
    interactive: bool = option(False, "Talk to the agent instead of giving it one task.")
    list_environments: bool = option(False, "List the environments and exit.")
    check_server: bool = option(False, "Check whether this machine can train, and exit.")
    api_key: str | None = option(
        None, "Refused: a key on a command line is visible to everyone.", hidden=True
    )
    verbose: bool = option(False, "Every call is shown in any case.", hidden=True)
    save_trajectories: bool = option(False, "Every run is recorded in any case.", hidden=True)


@click.command(hidden=True)
@model_options(AgentOptions)
@json_option
@stored_variables
def agent(options: AgentOptions, as_json: bool) -> None:
    """Give the agent a task.

    For example "Train SmolLM2 on calculator with LoRA rank 32".
    """
    from hermes.cli.chat.options import ChatOptions
    from hermes.config.load import load
    from hermes.config.providers import BUNDLED_PROVIDER
    from hermes.errors import HermesError, UsageError
    from hermes.rl.config.base_model import allowed_models, models_named_in
    from hermes.rl.machine import missing_requirement
    from hermes.rl.tools import TOOLSET, register_tools

    refuse_key(options.api_key)
    config = load()
    if options.list_environments:
        from hermes.rl.render import environments_text

        click.echo(environments_text(config, as_json))
        return
    reasons = {model: missing_requirement(config, model) for model in allowed_models(config.settings.rl)}
    trainable = [model for model, missing in reasons.items() if missing is None]
    missing = next(iter(reasons.values()))
    if not trainable and missing is not None:
        raise HermesError(missing.problem, missing.fix)
    if options.check_server:
        click.echo(f"{', '.join(trainable)} can be trained here")
        return
    if not options.task and not options.interactive:
        raise UsageError("no task", 'hermes rl "Train SmolLM2 on calculator"')
    settings = _allow_named(config, models_named_in(options.task or ""))
    if options.base_url is None and (options.model or config.settings.model).startswith(
        f"{BUNDLED_PROVIDER}/"
    ):
        click.echo("warning: the bundled model is too small to drive a training; --model names one", err=True)
    register_tools()
    chat = ChatOptions(
        query=options.task,
        model=options.model,
        base_url=options.base_url,
        toolsets=",".join((TOOLSET, *([options.toolsets] if options.toolsets else []))),
        max_turns=options.max_iterations,
        as_json=as_json,
        settings=settings,
    )
    if options.interactive:
        from hermes.cli.chat.repl import run_repl

        asyncio.run(run_repl(chat))
        return
    assert options.task, "checked above"
    from hermes.cli.chat.query import run_query

    sys.exit(asyncio.run(run_query(options.task, chat)))


def _allow_named(config: Config, named: tuple[str, ...]) -> Mapping[str, JSON]:
    """Settings with which the agent may train the models that its task names, if the person agrees; it
    trains the first one unless it chooses another. HermesError if this machine cannot train them.
    """
    from hermes.cli.question import confirm, has_person
    from hermes.errors import HermesError
    from hermes.rl.config.base_model import ForbiddenModelError, allowed_models
    from hermes.rl.machine import missing_requirement

    allowed = allowed_models(config.settings.rl)
    unlisted = [model for model in named if model not in allowed]
    if not unlisted:
        return {}
    missing = next(filter(None, (missing_requirement(config, model) for model in unlisted)), None)
    if missing is not None:
        raise HermesError(missing.problem, missing.fix)
    if not has_person():
        forbidden = ForbiddenModelError(unlisted[0], allowed)
        click.echo(f"warning: {forbidden.message}; {forbidden.hint}", err=True)
        return {}
    listed = " and ".join(unlisted)
    if not confirm(f"The task names {listed}. May it train {listed}, beside {', '.join(allowed)}?", err=True):
        return {}
    return {"rl.model": named[0], "rl.models": [*named[1:], *allowed]}
