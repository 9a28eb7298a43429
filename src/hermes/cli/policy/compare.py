"""`hermes policy compare`: both policies answer, through the ordinary agent loop."""

from __future__ import annotations

import asyncio
import json

import click

from hermes.agent.loop import AgentLoop
from hermes.cli.terminal.progress import ProgressLines
from hermes.config.load import Config, load
from hermes.core import Role
from hermes.errors import HermesError, UsageError
from hermes.rl.weights.open import of_record, open_policy
from hermes.safety.text import printable
from hermes.training.policy_registry import PolicyRecord, PolicyRegistry


def run_compare(first: str, second: str, queries: tuple[str, ...], as_json: bool) -> None:
    config = load()
    registry = PolicyRegistry(config.home)
    records = [registry.find(name) for name in (first, second)]
    if records[0].id == records[1].id:
        raise UsageError(f"both are policy {records[0].label}", "name two policies: hermes policy list")
    sides = []
    for record in records:
        with ProgressLines(to_stderr=True) as progress:
            progress.wait_for(f"policy {record.label} answers")
            sides.append(asyncio.run(_answers(config, record, queries, progress)))
    rows = [
        {"question": question, "answers": {records[0].label: left, records[1].label: right}}
        for question, left, right in zip(queries, *sides, strict=True)
    ]
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False))
        return
    for question, left, right in zip(queries, *sides, strict=True):
        click.secho(f"\n{printable(question)}", bold=True)
        for record, text in zip(records, (left, right), strict=True):
            click.echo(f"[{record.label}]\n{printable(text)}")
    click.echo("\nRate one against the other: hermes rate A --over B (hermes trajectories list)")


async def _answers(
    config: Config, record: PolicyRecord, queries: tuple[str, ...], progress: ProgressLines
) -> list[str]:
    from hermes.agent.build import RolloutPlan, open_writer
    from hermes.agent.chat import Conversation
    from hermes.agent.examples import examples_for
    from hermes.agent.toolset_choice import choose_toolsets
    from hermes.core import Source

    model = open_policy(config, of_record(config, record), progress)
    toolsets = choose_toolsets(config, record.base_model, None, None)
    plan = RolloutPlan(toolsets=toolsets, examples=examples_for(record.base_model, toolsets))
    answers = []
    with open_writer(config) as writer:
        try:
            for question in queries:
                async with Conversation(config, writer, model, plan, Source.QUERY) as chat:
                    async for _ in chat.send(question):
                        pass
                    answers.append(_answer(chat.loop, record))
        finally:
            await model.close()
    return answers


def _answer(loop: AgentLoop, record: PolicyRecord) -> str:
    """The last answer, or why there is none. HermesError if the policy was not reached at all."""
    outcome, last = loop.outcome, loop.messages[-1]
    if outcome is not None and outcome.infrastructure:
        raise HermesError(f"policy {record.label} did not answer: {outcome.detail}", "hermes doctor")
    if last.role is Role.ASSISTANT:
        return last.content
    return f"(no answer: {outcome.stop_reason.value if outcome else 'interrupted'})"
