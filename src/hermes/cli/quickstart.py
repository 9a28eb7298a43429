"""`hermes quickstart`: the loop from question to training data, on the bundled model, CPU only."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import Trajectory
    from hermes.models.base import ChatModel
    from hermes.store import Writer

MODEL = "hermes/smollm2"
RUN = "quickstart"


@dataclass(frozen=True)
class Task:
    question: str
    answer: str


TASKS = (
    Task("What is 384 * 29?", "11136"),
    Task("Please compute 5127 + 3894.", "9021"),
    Task("How much is 9000 - 4321?", "4679"),
    Task("What is 57 * 43?", "2451"),
    Task("How much is 1944 divided by 24?", "81"),
    Task("What is 1234 + 8765?", "9999"),
)


@click.command()
@click.option("--tasks", "count", type=click.IntRange(1, len(TASKS)), default=len(TASKS), show_default=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("data/quickstart/trajectories.jsonl"),
    show_default=True,
)
def quickstart(count: int, output: Path) -> None:
    """The loop on the bundled model: ask, use a tool, record, score, export. CPU only, no key."""
    asyncio.run(_quickstart(TASKS[:count], output))


async def _quickstart(tasks: tuple[Task, ...], output: Path) -> None:
    from hermes.agent.build import open_writer
    from hermes.cli.chat import tell_progress
    from hermes.cli.render import render_trajectory
    from hermes.config.load import load
    from hermes.config.paths import db_path
    from hermes.core import new_id
    from hermes.data.export import export_sharegpt
    from hermes.data.formats.sharegpt import Roles
    from hermes.models.open import open_model
    from hermes.store import Filter, Reader

    config = load({"limits.max_turns": 4, "sampling.temperature": 0.0, "sampling.max_tokens": 64})
    click.echo(f"1. The bundled model {MODEL} answers {len(tasks)} tasks with the calculator tool.")
    run_id = f"{RUN}-{new_id()}"
    model = open_model(config, MODEL, progress=tell_progress)
    with open_writer(config) as writer:
        for task in tasks:
            await _attempt(config, writer, model, task, run_id)
    await model.close()
    with Reader(db_path(config.home)) as reader:
        which = Filter(run_id=run_id)
        solved = reader.count(replace(which, min_reward=1.0))
        click.echo(f"   {solved} of {len(tasks)} right. This model has not been trained for it yet.\n")
        click.echo(f"2. Every step is recorded in {db_path(config.home)}. The first one:")
        first = next(reader.each(which))
        first = replace(first, steps=[step for step in first.steps if not step.ephemeral])
        click.echo(_indented(render_trajectory(first, (), reader.rewards(first.header.id))) + "\n")
        report = export_sharegpt(reader, which, output, roles=Roles.HUMAN_GPT, only_completed=True)
    click.echo(f"3. Exported {report.rows} rows of training data to {output}.")
    for reason, number in sorted(report.left_out.items()):
        click.echo(f"   left out: {number} ({reason})")
    click.echo("\nNext:  hermes trajectories list      hermes trajectories show last")
    click.echo("       hermes rate last good         hermes            (chat; /help)")


async def _attempt(config: Config, writer: Writer, model: ChatModel, task: Task, run_id: str) -> None:
    """One task: run it, score it, say how it went."""
    from hermes.agent.build import Plan, new_header, open_agent, prepare_opening
    from hermes.agent.examples import examples_for
    from hermes.config.paths import db_path
    from hermes.core import Message, Reward, Source
    from hermes.store import Reader

    started = time.monotonic()
    plan = Plan(toolsets=("math",), examples=examples_for(MODEL, ("math",)))
    header = replace(new_header(Source.QUERY, model), run_id=run_id, task_id=task.question)
    async with open_agent(config, writer, model, header, plan) as loop:
        prepare_opening(config, loop, plan)
        async for _ in loop.turn(Message.user(task.question)):
            pass
    with Reader(db_path(config.home)) as reader:
        trajectory = reader.get(header.id)
    assert trajectory.outcome is not None
    if trajectory.outcome.infrastructure:
        click.echo(f"   failed  {task.question}  {trajectory.outcome.detail}")
        return
    score = 1.0 if is_right(trajectory, task) else 0.0
    now_ms = time.time_ns() // 1_000_000
    await asyncio.wrap_future(writer.add_reward(Reward(header.id, score, "exact answer", {}, now_ms)))
    verdict = "right" if score else "wrong"
    click.echo(
        f"   {verdict}   {task.question:<34} {_shown(trajectory):<40} {time.monotonic() - started:.1f} s"
    )


def is_right(trajectory: Trajectory, task: Task) -> bool:
    """True if the last answer names the number, written with or without separators."""
    import re

    numbers = re.findall(r"-?\d+(?:\.\d+)?", trajectory.answer.replace(",", ""))
    return any(float(number) == float(task.answer) for number in numbers)


def _shown(trajectory: Trajectory) -> str:
    from hermes.cli.render import one_line

    return one_line(trajectory.answer or f"({trajectory.outcome.stop_reason.value})", 40)  # type: ignore[union-attr]


def _indented(text: str) -> str:
    return "\n".join(f"   {line}" for line in text.splitlines())
