"""`hermes -q`: one question, the answer on stdout, everything else on stderr.

At a terminal it works in the current directory and asks before it runs a command, as the chat does. Where
nobody can be asked, it works in a folder of its own, which is kept if the agent leaves files in it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from hermes.agent.build import RolloutPlan, UserCallbacks
from hermes.agent.chat import Conversation
from hermes.agent.loop import AgentLoop
from hermes.cli import question as person
from hermes.cli.chat.options import (
    ChatOptions,
    load_config,
    make_plan,
    open_chat_model,
    open_chat_writer,
    read_schema,
    resumed_conversation,
)
from hermes.cli.chat.screen import Screen, outcome_text, spent_text
from hermes.config.load import Config
from hermes.config.paths import workspaces_dir
from hermes.core import JSONObject, Sampling, Source, Step, StopReason
from hermes.sandbox.workspace import Workspace
from hermes.store import Filter

_INTERRUPTED = 130


async def run_query(question: str, options: ChatOptions) -> int:
    """Exit code 0 if the model answered, 1 if it was stopped or failed; either way it is recorded."""
    config = load_config(options)
    schema = read_schema(options.schema)
    resumed = resumed_conversation(config, options)
    model = await open_chat_model(config, options)
    screen = Screen(quiet=options.as_json or schema is not None, answer_only=True)
    plan = _with_schema(config, make_plan(config, model.name, options), schema)
    if not options.as_json:
        plan = replace(plan, on_delta=screen.delta)
    if person.has_person() and not options.as_json:
        plan = replace(plan, user=UserCallbacks(screen.approve, screen.answer, screen.notify))
    with open_chat_writer(config, options) as writer, _workspace(config, plan) as workspace:
        plan = replace(plan, workspace=workspace)
        try:
            async with Conversation(config, writer, model, plan, Source.QUERY, resumed) as chat:
                stopped = await _follow(chat, question, screen, model.name)
                loop = chat.loop
        finally:
            screen.idle()
            await model.close()
    assert loop.outcome is not None
    if config.settings.rating.raters and not options.no_log:
        from hermes.cli.rating.auto import rate_new

        await rate_new(config, Filter(ids=(loop.recorder.header.id,)))
    problem = _schema_problem(loop, schema)
    if options.as_json:
        click.echo(json.dumps(_report(loop, problem), ensure_ascii=False))
    else:
        _print_end(loop, screen, logged=not options.no_log, stopped=stopped, problem=problem, schema=schema)
    if stopped:
        return _INTERRUPTED
    return 0 if loop.outcome.stop_reason is StopReason.COMPLETED and problem is None else 1


async def _follow(chat: Conversation, question: str, screen: Screen, model: str) -> bool:
    """Prints the turn; whether Ctrl-C stopped it."""

    async def follow() -> None:
        screen.busy(model)
        async for step in chat.send(question):
            _show(step, screen, model)

    turn = asyncio.create_task(follow())
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, turn.cancel)
    try:
        await turn
    except asyncio.CancelledError:
        return True
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return False


def _show(step: Step, screen: Screen, model: str) -> None:
    screen.step(step)
    screen.busy(model if step.call is None or not step.message.tool_calls else "the tools")


@contextmanager
def _workspace(config: Config, plan: RolloutPlan) -> Iterator[Path | None]:
    """The directory to work in: the chosen one, the current one if a person can be asked, else a new folder.

    The new folder is removed at the end if it is empty; else its path is printed.
    """
    if plan.workspace is not None or plan.user is not None:
        yield plan.workspace or Path.cwd()
        return
    workspace = Workspace.create(workspaces_dir(config.home))
    workspace.drop_root()
    try:
        yield workspace.path
    finally:
        if any(workspace.path.iterdir()):
            workspace.drop_set_uid()
            notice = f"(files are kept in {workspace.path}; --workspace DIR works in a folder of yours)"
            click.echo(notice, err=True)
        else:
            workspace.remove()


def _with_schema(config: Config, plan: RolloutPlan, schema: JSONObject | None) -> RolloutPlan:
    """Asks the server for an answer that fits the schema; servers that ignore the field are checked later."""
    if schema is None:
        return plan
    sampling = plan.sampling or Sampling(**config.settings.sampling.model_dump())
    response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return replace(
        plan,
        sampling=replace(
            sampling, extra_body={**(sampling.extra_body or {}), "response_format": response_format}
        ),
    )


def _schema_problem(loop: AgentLoop, schema: JSONObject | None) -> str | None:
    """Why the answer does not fit the schema; None if it does, or if there is no answer or no schema."""
    assert loop.outcome is not None
    if schema is None or loop.outcome.stop_reason is not StopReason.COMPLETED:
        return None
    return schema_problem(loop.messages[-1].content, schema)


def schema_problem(answer: str, schema: JSONObject) -> str | None:
    """Why the answer does not fit the schema; None if it does."""
    from hermes.safety.json_schema import violations

    try:
        value = json.loads(answer)
    except RecursionError:
        return "the answer is not JSON: it is nested too deeply"
    except ValueError as error:
        return f"the answer is not JSON: {error}"
    try:
        failures = violations(value, schema)
    except ValueError as error:
        return f"the answer cannot be compared with the schema: {error}"
    for failure in failures[:1]:
        return f"the answer does not fit the schema: {failure.json_path}: {failure.message}"
    return None


def _report(loop: AgentLoop, problem: str | None) -> dict[str, object]:
    assert loop.outcome is not None
    answered = loop.outcome.stop_reason is StopReason.COMPLETED
    report: dict[str, object] = {
        "trajectory_id": loop.recorder.header.id,
        "answer": loop.messages[-1].content if answered else None,
        "outcome": loop.outcome.to_json(),
        "model": loop.model.name,
        "usage": loop.usage.to_json(),
        "cost_usd": loop.cost_usd,
    }
    return report if problem is None else {**report, "schema_error": problem}


def _print_end(
    loop: AgentLoop,
    screen: Screen,
    *,
    logged: bool,
    stopped: bool,
    problem: str | None,
    schema: JSONObject | None,
) -> None:
    outcome = loop.outcome
    assert outcome is not None
    screen.end_line()
    if schema is not None and outcome.stop_reason is StopReason.COMPLETED:
        click.echo(loop.messages[-1].content)
    trajectory = loop.recorder.header.id
    name = trajectory if logged else "not recorded"
    if stopped:
        note = "; what arrived is recorded, 'hermes -c' continues it" if logged else ""
        click.echo(f"stopped{note}", err=True)
    elif outcome.stop_reason is not StopReason.COMPLETED:
        click.echo(outcome_text(outcome), err=True)
    if problem is not None:
        click.echo(f"error: {problem}\n  fix: ask again, or use a model that follows schemas", err=True)
    sys.stdout.flush()
    click.echo(click.style(f"[{name}] {spent_text(loop.usage, loop.cost_usd)}", dim=True), err=True)
