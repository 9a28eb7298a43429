"""`hermes rate auto`: a reward rule, a judge or a reward model rates what the filters select."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.terminal.waiting import waiting
from hermes.config.load import Config, load
from hermes.config.paths import db_path
from hermes.core import RaterSource
from hermes.data.example import Example, UnfitError
from hermes.data.export.select import TrajectorySelection
from hermes.errors import HermesError, UsageError
from hermes.ratings import agreement
from hermes.ratings.auto import (
    RUBRIC,
    AutoRater,
    AutoReport,
    AutoVerdict,
    ModelJudge,
    RewardModelRater,
    StoredReward,
    rate_all,
    score_of,
)
from hermes.safety.author_import import witnessed
from hermes.safety.text import printable
from hermes.store import Filter, Reader

if TYPE_CHECKING:
    from hermes.batch.reward import RewardFunction


class RewardFunctionRater:
    """A user's reward function, applied to stored trajectories: their sandboxes are gone."""

    source = RaterSource.REWARD

    def __init__(self, reference: str) -> None:
        from hermes.batch.reward import load_reward

        self.name = f"reward:{reference}"
        self._function: RewardFunction = load_reward(reference)

    async def rate(self, example: Example) -> AutoVerdict:
        from hermes.batch.reward import GraderError, score
        from hermes.batch.tasks import TaskRow
        from hermes.core import Role

        trajectory = example.trajectory
        prompts = tuple(message.content for message in example.messages if message.role is Role.USER)
        metadata = trajectory.header.metadata
        row = TaskRow(
            trajectory.header.task_id or example.id,
            prompts,
            expected=metadata.get("expected"),
            metadata=metadata,
        )
        try:
            value = await score(self._function, row, trajectory, _no_sandbox)
        except GraderError as error:
            raise UnfitError(f"the reward function failed: {error.message}") from error
        return AutoVerdict(score_of(value))


async def _no_sandbox() -> Any:
    raise HermesError("the sandbox of a stored trajectory no longer exists")


def run_auto(filters: Filter, params: Mapping[str, Any]) -> None:
    config = load()
    chosen = [name for name in ("reward", "judge", "reward_model") if params[name]]
    if len(chosen) != 1:
        raise UsageError(
            "name one rater",
            "--reward NAME, --judge MODEL or --reward-model URL; see hermes rate auto --help",
        )
    selection = _selection(filters)
    with waiting("rating"), witnessed(f"{params[chosen[0]]} rated"):
        report, name = asyncio.run(_run(config, params, selection))
    with Reader(db_path(config.home)) as reader:
        share = agreement.report(reader.all_ratings()).machines.get(name)
    if params["as_json"]:
        agreed = None if share is None else {"count": share.count, "total": share.total}
        facts = {"rater": name, "rated": report.rated, "left_out": dict(report.left_out), "agreement": agreed}
        click.echo(json.dumps(facts))
        return
    click.echo(f"{name} rated {report.rated}")
    for reason, count in report.left_out.most_common():
        click.echo(f"left out: {count} ({reason})")
    if share is None or share.value is None:
        click.echo("agreement with people: unknown, no person rated the same trajectories yet")
    else:
        low, high = share.interval
        click.echo(
            f"agreement with people: {share.value:.0%} of {share.total}"
            f" (95 % interval {low:.0%} to {high:.0%})"
        )


def _selection(filters: Filter) -> TrajectorySelection:
    return TrajectorySelection(filters, only_completed=False, machine_ratings=True)


async def rate_new(config: Config, filters: Filter) -> None:
    """Rates what a command has just recorded, by the rater of the settings. A failure is a note on standard
    error: the command itself has succeeded."""
    params = {**config.settings.rating.model_dump(), "limit": None}
    chosen = config.settings.rating.raters
    try:
        if len(chosen) > 1:
            raise UsageError(f"{' and '.join(f'rating.{name}' for name in chosen)} are set", "keep one")
        report, name = await _run(config, params, _selection(filters))
    except HermesError as error:
        click.echo(f"not rated: {printable(error.message)}; {printable(error.hint)}", err=True)
        return
    left_out = "".join(f"; left out: {count} ({reason})" for reason, count in report.left_out.most_common())
    click.echo(click.style(f"{name} rated {report.rated}{left_out}", dim=True), err=True)


async def _run(
    config: Config, params: Mapping[str, Any], selection: TrajectorySelection
) -> tuple[AutoReport, str]:
    from hermes.agent.build import open_writer

    with Reader(db_path(config.home)) as reader, open_writer(config) as writer:
        rater, model = open_rater(config, params, reader)
        try:
            report = await rate_all(reader, writer, selection, rater, limit=params["limit"])
            return report, rater.name
        finally:
            if model is not None:
                await model.close()


def open_rater(config: Config, params: Mapping[str, Any], reader: Reader) -> tuple[AutoRater, Any]:
    """The rater that the parameters name, and the model to close afterwards, if there is one."""
    if params["judge"]:
        from hermes.rl.weights.open import open_named

        model = open_named(config, params["judge"])
        return ModelJudge(model, params["rubric"] or RUBRIC), model
    if params["reward_model"]:
        from hermes.config.providers import checked_url

        url = checked_url(params["reward_model"], "--reward-model")
        return RewardModelRater(url, config.environ.get("HERMES_REWARD_TOKEN")), None
    if ":" in params["reward"]:
        return RewardFunctionRater(params["reward"]), None
    return StoredReward(reader, params["reward"]), None
