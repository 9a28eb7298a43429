"""Runs `hermes train reward`: the members of the ensemble one after the other, then the held-out report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.options import FilterOptions, make_options
from hermes.cli.train.preference_run import (
    VerdictOptions,
    chat_renderer,
    eval_data,
    eval_limits,
    offline_settings,
    read_verdicts,
    row_limits,
)
from hermes.cli.train.run import check_service, open_sinks, progress_lines, run_spec, stop_on_signals

if TYPE_CHECKING:
    from pathlib import Path

    from hermes.config.load import Config
    from hermes.models.render.chat import ChatRenderer
    from hermes.training.preference.calibration import RewardReport
    from hermes.training.preference.examples import RowSplit
    from hermes.training.preference.readout import ReadOut
    from hermes.training.preference.reward import RewardPair, RewardPoint
    from hermes.training.preference.reward_model import RewardModelSpec, RewardScorer
    from hermes.training.preference.sources import PreferenceData
    from hermes.training.session import ProgressCallback, TrainingRunSpec


@dataclass(frozen=True, kw_only=True)
class RewardOptions(VerdictOptions):
    pairs_from: tuple[str, ...]
    min_margin: float
    loss: str
    margin: float
    centre: float
    members: int
    question: str | None
    words: tuple[str, str]


def read_reward_options(params: Mapping[str, Any]) -> RewardOptions:
    return make_options(RewardOptions, {**params, "filters": make_options(FilterOptions, params)})


def run_reward(options: RewardOptions) -> None:
    from hermes.config.load import load
    from hermes.training.preference import reward
    from hermes.training.preference.reward_model import write_spec

    config = load()
    run = run_spec(config, options, reward.KIND)
    check_service(run)
    with progress_lines(options) as progress:
        progress.wait_for("reading the ratings")
        spec = _train_members(config, options, run, progress)
    if spec is not None:
        write_spec(run.folder, spec)
        _print(run, spec, options)


def _train_members(
    config: Config, options: RewardOptions, run: TrainingRunSpec, progress: ProgressCallback
) -> RewardModelSpec | None:
    """The trained model with its held-out report; None if a signal stopped it."""
    from hermes.training.offline import train_offline
    from hermes.training.preference import reward
    from hermes.training.preference.readout import QUESTION, ReadOut, readout_tokens
    from hermes.training.preference.reward_model import RewardModelSpec, RewardScorer
    from hermes.training.schedule import default_sft_rate

    data = read_verdicts(config, options, options.pairs_from, options.min_margin)
    renderer = chat_renderer(options)
    readout = ReadOut(options.question or QUESTION, *options.words)
    rows, pairs = _reward_rows(options, data, readout, renderer)
    loss = reward.RewardConfig(reward.RewardLoss(options.loss), options.margin, options.centre)
    objective = reward.RewardObjective(rows, loss, readout, readout_tokens(readout, renderer))
    settings = offline_settings(options, objective, default_sft_rate)
    progress(f"run {run.id}: {len(rows.train)} rows, {len(rows.held_out)} held out")
    for reason, count in data.left_out.most_common():
        progress(f"left out: {count} ({reason})")
    stop = stop_on_signals(run)
    samplers = []
    for member in _member_runs(run, options.members):
        with open_sinks(config, member, options, settings) as sinks:
            result = train_offline(member, objective, settings, sinks, progress, stop)
        if stop.is_set():
            progress(f"stopped; to go on: the same command with --name {run.id}")
            return None
        samplers.append((result.best or result).sampler)
    spec = RewardModelSpec(
        run.lora.base_model,
        tuple(samplers),
        readout,
        options.max_tokens,
        options.parser,
        run.connection.url,
    )
    if pairs is None or not pairs.held_out:
        return spec
    report = held_out_report(RewardScorer(spec, run.connection, renderer), pairs)
    _write_plot(run, report)
    return replace(spec, held_out=json.loads(json.dumps(asdict(report))))


def _reward_rows(
    options: RewardOptions, data: PreferenceData, readout: ReadOut, renderer: ChatRenderer
) -> tuple[RowSplit[RewardPair] | RowSplit[RewardPoint], RowSplit[RewardPair] | None]:
    """The rows to train on; and as pairs, if they are pairs."""
    from hermes.training.preference import reward

    limits, held_out = row_limits(options, data), eval_data(options)
    used = {} if held_out is None else eval_limits(options, held_out)
    if options.loss == reward.RewardLoss.POINTWISE:
        points = reward.reward_points(data.rated, readout, renderer, **limits)
        if held_out is not None:
            points.held_out = reward.reward_points(held_out.rated, readout, renderer, **used).train
        return points, None
    pairs = reward.reward_pairs(data.pairs, readout, renderer, **limits)
    if held_out is not None:
        pairs.held_out = reward.reward_pairs(held_out.pairs, readout, renderer, **used).train
    return pairs, pairs


def _member_runs(run: TrainingRunSpec, count: int) -> list[TrainingRunSpec]:
    """One run for each seed; a member that is trained already is not trained again."""
    return [
        replace(
            run,
            id=run.id if number == 0 else f"{run.id}-{number}",
            folder=run.folder / f"member-{number}",
            lora=replace(run.lora, seed=run.lora.seed + number),
        )
        for number in range(count)
    ]


def held_out_report(scorer: RewardScorer, pairs: RowSplit[RewardPair]) -> RewardReport:
    from hermes.training.preference.calibration import ScoredPair, report_of

    rows = pairs.held_out
    chosen = scorer.score_prompts([row.chosen for row in rows])
    rejected = scorer.score_prompts([row.rejected for row in rows])
    return report_of(
        [
            ScoredPair(
                better.score,
                worse.score,
                row.chosen_words,
                row.rejected_words,
                max(better.spread, worse.spread),
            )
            for row, better, worse in zip(rows, chosen, rejected, strict=True)
        ]
    )


def _write_plot(run: TrainingRunSpec, report: RewardReport) -> Path:
    from hermes.disk.files import atomic_write
    from hermes.training.preference.calibration import reliability_svg

    path = run.folder / "reliability.svg"
    atomic_write(path, reliability_svg(report, run.id))
    return path


def _print(run: TrainingRunSpec, spec: RewardModelSpec, options: RewardOptions) -> None:
    if options.as_json:
        facts = {"run_id": run.id, "run_dir": str(run.folder), **asdict(spec)}
        click.echo(json.dumps(facts))
        return
    for sampler in spec.members:
        click.echo(f"sampler  {sampler}")
    if spec.held_out is not None:
        report = spec.held_out
        click.echo(
            f"held out {report['pairs']} pairs: accuracy {report['accuracy']:.1%}, ECE {report['ece']:.3f}, "
            f"longer answer preferred {report['longer_preferred']:.0%} "
            f"(by people {report['longer_chosen']:.0%})"
        )
        click.echo(f"plot     {run.folder / 'reliability.svg'}")
    click.echo(f"model    {run.folder / 'reward_model.json'}")
    click.echo(f"next     hermes reward serve {run.id}")
