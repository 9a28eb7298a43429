"""Runs the trainers on verdicts from their options: rows of files or the store, reference, objective.

DPO and KTO train a policy against a reference. A reward model is an ensemble whose members are trained one
after the other, and then measured on the held-out rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

from hermes.config.paths import db_path
from hermes.disk.files import atomic_write
from hermes.models.render.chat import ChatRenderer
from hermes.store import Reader
from hermes.training.data import sft_examples
from hermes.training.launch import Launch, chat_renderer, offline_settings, open_sinks, train_on_rows
from hermes.training.offline import OfflineObjective, train_offline
from hermes.training.options import (
    DpoOptions,
    KtoOptions,
    PairOptions,
    PreferenceOptions,
    RewardOptions,
    VerdictOptions,
)
from hermes.training.preference import reward
from hermes.training.preference.calibration import RewardReport, ScoredPair, reliability_svg, report_of
from hermes.training.preference.dpo import DpoObjective
from hermes.training.preference.examples import (
    RowLimits,
    RowSplit,
    label_by_rating,
    pair_examples,
    unpaired_examples,
)
from hermes.training.preference.kto import KtoObjective, balanced_weights
from hermes.training.preference.losses import DpoConfig, KtoConfig
from hermes.training.preference.readout import QUESTION, ReadOut, readout_tokens
from hermes.training.preference.reference import BASE
from hermes.training.preference.reward_model import RewardModelSpec, RewardScorer, write_spec
from hermes.training.preference.sources import (
    DEFAULT_ORIGINS,
    PreferenceData,
    answers_reference,
    from_files,
    from_store,
)
from hermes.training.schedule import default_preference_rate, default_sft_rate
from hermes.training.session import TrainingRunSpec, TrainResult
from hermes.training.sft import ReplayObjective, ReplayRows
from hermes.training.start_weights import find_start

if TYPE_CHECKING:
    from hermes.data.export.select import TrajectorySelection

Row = TypeVar("Row")
RELIABILITY_PLOT = "reliability.svg"


def train_dpo(launch: Launch, options: DpoOptions, selection: TrajectorySelection | None) -> TrainResult:
    """`selection`: the stored trajectories whose verdicts are used, unless files are named."""
    data = _read_verdicts(launch, options, selection)
    renderer = chat_renderer(options, options.parser)
    rows = _rows(
        options,
        data,
        lambda source, limits: pair_examples(source.pairs, renderer, source.left_out, limits),
    )
    loss = DpoConfig(
        options.loss, options.beta, options.label_smoothing, options.target_margin, options.sft_weight
    )
    reference = _reference(launch, options, data)
    _announce(launch, rows, "pairs", reference if loss.uses_reference else None)
    objective = DpoObjective(rows, loss, reference)
    return _train_policy(launch, options, objective, renderer, rows.left_out)


def train_kto(launch: Launch, options: KtoOptions, selection: TrajectorySelection | None) -> TrainResult:
    data = _read_verdicts(launch, options, selection)
    renderer = chat_renderer(options, options.parser)
    rows = _rows(
        options,
        data,
        lambda source, limits: unpaired_examples(
            label_by_rating(source.rated, options.good_rating), renderer, source.left_out, limits
        ),
    )
    good, bad = balanced_weights(rows.train)
    if options.desirable_weight is not None or options.undesirable_weight is not None:
        good, bad = options.desirable_weight or 1.0, options.undesirable_weight or 1.0
    reference = _reference(launch, options, data)
    _announce(launch, rows, "rated answers", reference)
    liked = sum(row.desirable for row in rows.train)
    launch.progress(
        f"{liked} good with weight {good:.3g}, {len(rows.train) - liked} bad with weight {bad:.3g}"
    )
    objective = KtoObjective(rows, KtoConfig(options.beta, good, bad), reference, options.max_tokens)
    return _train_policy(launch, options, objective, renderer, rows.left_out)


def train_reward(
    launch: Launch, options: RewardOptions, selection: TrajectorySelection | None
) -> RewardModelSpec | None:
    """The trained model, which is also written to the run's folder; None if a signal stopped it.

    A member that is trained already is not trained again.
    """
    run = launch.run
    data = _read_verdicts(launch, options, selection)
    renderer = chat_renderer(options, options.parser)
    readout = ReadOut(options.question or QUESTION, *options.words)
    rows, pairs = _reward_rows(options, data, readout, renderer)
    loss = reward.RewardConfig(reward.RewardLoss(options.loss), options.margin, options.centre)
    objective = reward.RewardObjective(rows, loss, readout, readout_tokens(readout, renderer))
    settings = offline_settings(options, objective, default_sft_rate)
    launch.progress(f"run {run.id}: {len(rows.train)} rows, {len(rows.held_out)} held out")
    for reason, count in data.left_out.most_common():
        launch.progress(f"left out: {count} ({reason})")
    samplers = []
    for member in _member_runs(run, options.members):
        with open_sinks(launch.config, member, options, settings) as sinks:
            result = train_offline(member, objective, settings, sinks, launch.progress, launch.stop)
        if launch.stop.is_set():
            launch.progress(f"stopped; to go on: the same command with --name {run.id}")
            return None
        samplers.append((result.best or result).sampler)
    spec = RewardModelSpec(
        *(run.lora.base_model, tuple(samplers), readout),
        *(options.max_tokens, options.parser, run.connection.url),
    )
    if pairs is not None and pairs.held_out:
        report = _held_out_report(RewardScorer(spec, run.connection, renderer), pairs)
        atomic_write(run.folder / RELIABILITY_PLOT, reliability_svg(report, run.id))
        spec = replace(spec, held_out=json.loads(json.dumps(asdict(report))))
    write_spec(run.folder, spec)
    return spec


def _read_verdicts(
    launch: Launch, options: VerdictOptions, selection: TrajectorySelection | None
) -> PreferenceData:
    if selection is None:
        return from_files(options.files)
    origins, margin = (
        (options.pairs_from or DEFAULT_ORIGINS, options.min_margin)
        if isinstance(options, PairOptions)
        else (DEFAULT_ORIGINS, 0.0)
    )
    with Reader(db_path(launch.config.home)) as reader:
        return from_store(reader, selection, origins, margin)


def _rows(
    options: VerdictOptions,
    data: PreferenceData,
    make: Callable[[PreferenceData, RowLimits], RowSplit[Row]],
) -> RowSplit[Row]:
    if not options.eval_files:
        return make(data, RowLimits(options.max_tokens, options.eval_share, options.min_rows))
    rows = make(data, RowLimits(options.max_tokens, 0.0, options.min_rows))
    rows.held_out = make(from_files(options.eval_files), RowLimits(options.max_tokens, 0.0, 1)).train
    return rows


def _reward_rows(
    options: RewardOptions, data: PreferenceData, readout: ReadOut, renderer: ChatRenderer
) -> tuple[RowSplit[reward.RewardPair] | RowSplit[reward.RewardPoint], RowSplit[reward.RewardPair] | None]:
    """The rows to train on; and as pairs, if they are pairs."""

    def pairs(source: PreferenceData, limits: RowLimits) -> RowSplit[reward.RewardPair]:
        return reward.reward_pairs(source.pairs, readout, renderer, source.left_out, limits)

    def points(source: PreferenceData, limits: RowLimits) -> RowSplit[reward.RewardPoint]:
        return reward.reward_points(source.rated, readout, renderer, source.left_out, limits)

    if options.loss == "pointwise":
        return _rows(options, data, points), None
    rows = _rows(options, data, pairs)
    return rows, rows


def _reference(launch: Launch, options: PreferenceOptions, data: PreferenceData) -> str:
    """BASE, or weights as the service names them; weights on this machine are uploaded once."""
    name, home = options.reference, launch.config.home
    if name is None:
        return launch.run.lora.start or BASE
    if name == BASE:
        return BASE
    if name == "answers":
        return answers_reference(data, home)
    return find_start(name, home, launch.run.lora.base_model) or BASE


def _announce(launch: Launch, rows: RowSplit[Row], noun: str, reference: str | None) -> None:
    compared = f"; reference: {reference}" if reference else ""
    launch.progress(f"run {launch.run.id}: {len(rows.train)} {noun}, {len(rows.held_out)} held out{compared}")


def _train_policy(
    launch: Launch,
    options: PreferenceOptions,
    objective: OfflineObjective[Any],
    renderer: ChatRenderer,
    left_out: Counter[str],
) -> TrainResult:
    if options.replay_files:
        objective = _with_replay(launch, objective, options, renderer)
    settings = offline_settings(options, objective, default_preference_rate)
    return train_on_rows(launch, options, objective, settings, left_out)


def _with_replay(
    launch: Launch, objective: OfflineObjective[Any], options: PreferenceOptions, renderer: ChatRenderer
) -> OfflineObjective[Any]:
    left_out: Counter[str] = Counter()
    examples = sft_examples.gather(
        sft_examples.from_files(options.replay_files, lambda: renderer, left_out),
        left_out,
        longest=options.max_tokens,
        eval_share=0.0,
    ).train
    launch.progress(f"replay: {len(examples)} sequences with weight {options.replay_weight:.3g}")
    for reason, count in left_out.most_common():
        launch.progress(f"replay: left out: {count} ({reason})")
    return ReplayObjective(objective, ReplayRows(examples, options.replay_weight))


def _member_runs(run: TrainingRunSpec, count: int) -> list[TrainingRunSpec]:
    """One run for each seed."""
    return [
        replace(
            run,
            id=run.id if number == 0 else f"{run.id}-{number}",
            folder=run.folder / f"member-{number}",
            lora=replace(run.lora, seed=run.lora.seed + number),
        )
        for number in range(count)
    ]


def _held_out_report(scorer: RewardScorer, pairs: RowSplit[reward.RewardPair]) -> RewardReport:
    rows = pairs.held_out
    chosen = scorer.score_prompts([row.chosen for row in rows])
    rejected = scorer.score_prompts([row.rejected for row in rows])
    return report_of(
        [
            ScoredPair(
                *(better.score, worse.score, row.chosen_words, row.rejected_words),
                max(better.spread, worse.spread),
            )
            for row, better, worse in zip(rows, chosen, rejected, strict=True)
        ]
    )
