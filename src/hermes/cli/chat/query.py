"""`hermes -q`: one question, the answer on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import click

from hermes.agent.build import open_writer
from hermes.agent.chat import Conversation
from hermes.agent.loop import AgentLoop
from hermes.cli.chat.options import ChatOptions, load_config, make_plan, open_chat_model
from hermes.cli.render import call_text, money
from hermes.core import Source, Step, StopReason
from hermes.models.base import StreamDelta
from hermes.safety.text import printable


async def run_query(question: str, options: ChatOptions) -> int:
    """Exit code 0 if the model answered, 1 if it was stopped or failed; either way it is recorded."""
    config = load_config(options)
    model = open_chat_model(config, options)
    plan = make_plan(config, model.name, options)
    if not options.as_json:
        plan = replace(plan, on_delta=_print_delta)
    with open_writer(config) as writer:
        try:
            async with Conversation(config, writer, model, plan, Source.QUERY) as chat:
                async for step in chat.send(question):
                    if not options.as_json:
                        _print_step(step)
                loop = chat.loop
        finally:
            await model.close()
    outcome = loop.outcome
    assert outcome is not None
    if options.as_json:
        click.echo(json.dumps(_report(loop), ensure_ascii=False))
    else:
        _print_end(loop)
    return 0 if outcome.stop_reason is StopReason.COMPLETED else 1


def _report(loop: AgentLoop) -> dict[str, object]:
    assert loop.outcome is not None
    answered = loop.outcome.stop_reason is StopReason.COMPLETED
    return {
        "trajectory_id": loop.recorder.header.id,
        "answer": loop.messages[-1].content if answered else None,
        "outcome": loop.outcome.to_json(),
        "model": loop.model.name,
        "usage": loop.usage.to_json(),
        "cost_usd": loop.cost_usd,
    }


def _print_delta(delta: StreamDelta) -> None:
    if delta.text:
        sys.stdout.write(printable(delta.text))
        sys.stdout.flush()


def _print_step(step: Step) -> None:
    if step.call is not None and (step.message.content or not step.message.tool_calls):
        click.echo()
    for call in step.message.tool_calls:
        click.echo(click.style(f"-> {call_text(call)}", dim=True), err=True)
    if step.result is not None:
        state = "ok" if step.result.ok else f"{step.result.error_kind}"
        line = f"<- {printable(step.result.name)}: {state}, {step.result.duration_ms / 1000:.2f} s"
        click.echo(click.style(line, dim=True), err=True)


def _print_end(loop: AgentLoop) -> None:
    outcome = loop.outcome
    assert outcome is not None
    if outcome.stop_reason is not StopReason.COMPLETED:
        where = f" ({outcome.boundary.value})" if outcome.boundary else ""
        click.echo(f"error: {outcome.stop_reason.value}{where}: {printable(outcome.detail or '')}", err=True)
    spent = f"{loop.usage.prompt} + {loop.usage.completion} tokens, cost {money(loop.cost_usd)}"
    click.echo(click.style(f"[{loop.recorder.header.id}] {spent}", dim=True), err=True)
