"""`hermes rl "TASK"`: the agent, with the ten `rl_*` tools. It takes the flags of hermes-agent's `rl_cli`."""

from __future__ import annotations

import asyncio
import sys

import click

from hermes.cli.options import RenamedOption, json_option, refuse_key, stored_variables


@click.command(hidden=True)
@click.argument("task", required=False)
@click.option("--model", help="Model of the agent, as provider/name; not the one that is trained.")
@click.option("--base-url", metavar="URL", help="Any OpenAI-compatible endpoint.")
@click.option(
    "--toolsets", metavar="A,B", help="Toolsets beside rl, such as file,web, to write environments."
)
@click.option(
    "--max-turns",
    "--max-iterations",
    "max_iterations",
    cls=RenamedOption,
    default=200,
    show_default=True,
    type=click.IntRange(min=1),
    help="Most model calls.",
)
@click.option("--interactive", is_flag=True, help="Talk to the agent instead of giving it one task.")
@click.option("--list-environments", is_flag=True, help="List the environments and exit.")
@click.option("--check-server", is_flag=True, help="Check whether this machine can train, and exit.")
@click.option("--api-key", hidden=True, help="Refused: a key on a command line is visible to everyone.")
@click.option("--verbose", is_flag=True, hidden=True, help="Every call is shown in any case.")
@click.option("--save-trajectories", is_flag=True, hidden=True, help="Every run is recorded in any case.")
@json_option
@stored_variables
def agent(
    task: str | None,
    model: str | None,
    base_url: str | None,
    toolsets: str | None,
    max_iterations: int,
    interactive: bool,
    list_environments: bool,
    check_server: bool,
    api_key: str | None,
    verbose: bool,
    save_trajectories: bool,
    as_json: bool,
) -> None:
    """Give the agent a task.

    For example "Train SmolLM2 on calculator with LoRA rank 32".
    """
    from hermes.cli.chat.options import ChatOptions
    from hermes.config.load import load
    from hermes.config.providers import BUNDLED_PROVIDER
    from hermes.errors import HermesError, UsageError
    from hermes.rl.config.base_model import allowed_models
    from hermes.rl.machine import missing_requirement
    from hermes.rl.tools import TOOLSET, register_tools

    refuse_key(api_key)
    config = load()
    if list_environments:
        from hermes.rl.render import environments_text

        click.echo(environments_text(config, as_json))
        return
    reasons = {model: missing_requirement(config, model) for model in allowed_models(config.settings.rl)}
    trainable = [model for model, missing in reasons.items() if missing is None]
    missing = next(iter(reasons.values()))
    if not trainable and missing is not None:
        raise HermesError(missing.problem, missing.fix)
    if check_server:
        click.echo(f"{', '.join(trainable)} can be trained here")
        return
    if not task and not interactive:
        raise UsageError("no task", 'hermes rl "Train SmolLM2 on calculator"')
    if base_url is None and (model or config.settings.model).startswith(f"{BUNDLED_PROVIDER}/"):
        click.echo("warning: the bundled model is too small to drive a training; --model names one", err=True)
    register_tools()
    agent_toolsets = ",".join((TOOLSET, *([toolsets] if toolsets else [])))
    options = ChatOptions(
        query=task,
        model=model,
        base_url=base_url,
        toolsets=agent_toolsets,
        max_turns=max_iterations,
        as_json=as_json,
    )
    if interactive:
        from hermes.cli.chat.repl import run_repl

        asyncio.run(run_repl(options))
        return
    assert task, "checked above"
    from hermes.cli.chat.query import run_query

    sys.exit(asyncio.run(run_query(task, options)))
