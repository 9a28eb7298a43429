"""`hermes skills trial`: tasks with a skill and without it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hermes.cli.model_options import model_options
from hermes.cli.options import json_option, stored_variables
from hermes.cli.policy.signal import SignalOptions

if TYPE_CHECKING:
    from hermes.policies.text.trial import Side, SkillTrial


@click.command("trial")
@click.argument("name")
@model_options(SignalOptions)
@json_option
@stored_variables
def trial(options: SignalOptions, name: str, as_json: bool) -> None:
    """Run tasks with a skill and without it, and say what it changes.

    The agent sees the skill in its list, or does not. Stopped, the same command goes on.
    """
    from hermes.cli.policy.signal import check_signal
    from hermes.cli.terminal.progress import ProgressLines

    check_signal(options)
    with ProgressLines(to_stderr=as_json) as progress:
        result = asyncio.run(_run(name, options, progress))
    if as_json:
        click.echo(json.dumps({**asdict(result), "verdict": result.verdict}))
        return
    effect = result.effect
    click.echo(f"{result.skill} on {result.tasks} tasks: {result.verdict}")
    click.echo(f"effect   {effect.mean:+.3f} (95 % interval {effect.low:+.3f} to {effect.high:+.3f})")
    click.echo(_side_line("with", result.having))
    click.echo(_side_line("without", result.lacking))
    click.echo(f"opened   in {result.opened} of {result.tasks} tasks")


def _side_line(label: str, side: Side) -> str:
    from hermes.cli.render import money

    score, cost = side.score, money(side.cost_usd)
    interval = f"{score.low:.2f} to {score.high:.2f}"
    return f"{label:<8} mean score {score.mean:.3f} ({interval}), {side.tokens:,.0f} tokens a task, {cost}"


async def _run(name: str, options: SignalOptions, progress: Callable[[str], None]) -> SkillTrial:
    from hermes.cli.policy.signal import check_price, open_signal, open_worker
    from hermes.config.load import load
    from hermes.config.paths import db_path
    from hermes.core import JSONObject, canonical_json, content_hash
    from hermes.core.clock import now_ms
    from hermes.disk.files import ensure_dir
    from hermes.policies.text.ledger import Ledger, Spending
    from hermes.policies.text.search import Evaluator
    from hermes.policies.text.trial import run_trial
    from hermes.skills import list_skills
    from hermes.skills.trials import TrialResult, store_result
    from hermes.store import Reader

    config = load()
    skill = list_skills(config.home).find(name)
    folders = []

    def prepare(conditions: JSONObject) -> str:
        digest = content_hash(canonical_json({**conditions, "skill": skill.name, "body": skill.body}))
        folders.append(ensure_dir(config.home / "trials" / digest))
        return f"trial-{digest}"

    async with open_worker(config, options.model, progress) as model:
        check_price(config, options.max_cost, model)
        async with open_signal(config, options, model, prepare) as signal:
            ledger = Ledger(folders[0], Spending(max_calls=0, max_cost_usd=options.max_cost))
            progress(f"{len(signal.tasks)} tasks with {skill.name} and without it; signal: {signal.name}")
            evaluator = Evaluator(signal, ledger, options.concurrency)
            with Reader(db_path(config.home)) as reader:
                result = await run_trial(skill, signal.tasks, evaluator, reader.get)
    text = content_hash(skill.body)
    facts = (result.verdict, result.effect.mean, result.tasks, now_ms())
    store_result(config.home, TrialResult(skill.name, text, *facts))
    return result
