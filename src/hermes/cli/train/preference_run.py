"""Runs `hermes train dpo` and `kto`: rows from files or the store, the reference, the objective, the loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.cli.options import FilterOptions, make_options
from hermes.cli.train.options import TrainOptions
from hermes.cli.train.run import (
    check_service,
    learning_schedule,
    open_sinks,
    print_result,
    progress_lines,
    run_spec,
    stop_on_signals,
)

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.models.render.chat import ChatRenderer
    from hermes.training.offline import OfflineObjective, OfflineSettings
    from hermes.training.preference.sources import PreferenceData
    from hermes.training.session import ProgressCallback, TrainingRunSpec, TrainResult


@dataclass(frozen=True, kw_only=True)
class VerdictOptions(TrainOptions):
    """What all trainers on verdicts have, named like the commands' parameters."""

    files: tuple[Path, ...]
    filters: FilterOptions
    max_steps: int | None
    patience: int | None
    parser: str
    eval_share: float
    eval_files: tuple[Path, ...]
    min_rows: int
    everything: bool


@dataclass(frozen=True, kw_only=True)
class PreferenceOptions(VerdictOptions):
    """What the trainers of policies have in common."""

    reference: str | None
    beta: float
    replay_files: tuple[Path, ...]
    replay_weight: float


@dataclass(frozen=True, kw_only=True)
class DpoOptions(PreferenceOptions):
    pairs_from: tuple[str, ...]
    min_margin: float
    loss: str
    label_smoothing: float
    target_margin: float
    sft_weight: float


@dataclass(frozen=True, kw_only=True)
class KtoOptions(PreferenceOptions):
    desirable_weight: float | None
    undesirable_weight: float | None
    good_rating: float | None


def read_dpo_options(params: Mapping[str, Any]) -> DpoOptions:
    return make_options(DpoOptions, {**params, "filters": make_options(FilterOptions, params)})


def read_kto_options(params: Mapping[str, Any]) -> KtoOptions:
    return make_options(KtoOptions, {**params, "filters": make_options(FilterOptions, params)})


def run_dpo(options: DpoOptions) -> None:
    from hermes.config.load import load
    from hermes.training.preference.dpo import KIND, DpoObjective
    from hermes.training.preference.examples import pair_examples
    from hermes.training.preference.losses import DpoConfig, DpoLoss

    config = load()
    run = run_spec(config, options, KIND)
    check_service(run)
    with progress_lines(options) as progress:
        progress.wait_for("reading the pairs")
        data = read_verdicts(config, options, options.pairs_from, options.min_margin)
        renderer = chat_renderer(options)
        rows = pair_examples(data.pairs, renderer, **row_limits(options, data))
        if (held_out := eval_data(options)) is not None:
            rows.held_out = pair_examples(held_out.pairs, renderer, **eval_limits(options, held_out)).train
        loss = DpoConfig(
            DpoLoss(options.loss),
            options.beta,
            options.label_smoothing,
            options.target_margin,
            options.sft_weight,
        )
        reference = _reference(config, options, run, data)
        _announce(
            progress,
            run,
            len(rows.train),
            len(rows.held_out),
            "pairs",
            reference if loss.uses_reference else None,
        )
        objective = DpoObjective(rows, loss, reference)
        result = _train(config, options, run, objective, renderer, rows.left_out, progress)
    print_result(run, result, options)


def run_kto(options: KtoOptions) -> None:
    from hermes.config.load import load
    from hermes.training.preference.examples import label_by_rating, unpaired_examples
    from hermes.training.preference.kto import KIND, KtoObjective, balanced_weights
    from hermes.training.preference.losses import KtoConfig

    config = load()
    run = run_spec(config, options, KIND)
    check_service(run)
    with progress_lines(options) as progress:
        progress.wait_for("reading the rated answers")
        data = read_verdicts(config, options, (), 0.0)
        renderer = chat_renderer(options)
        rated = label_by_rating(data.rated, options.good_rating)
        rows = unpaired_examples(rated, renderer, **row_limits(options, data))
        if (held_out := eval_data(options)) is not None:
            rated = label_by_rating(held_out.rated, options.good_rating)
            rows.held_out = unpaired_examples(rated, renderer, **eval_limits(options, held_out)).train
        good, bad = balanced_weights(rows.train)
        if options.desirable_weight is not None or options.undesirable_weight is not None:
            good, bad = options.desirable_weight or 1.0, options.undesirable_weight or 1.0
        reference = _reference(config, options, run, data)
        _announce(progress, run, len(rows.train), len(rows.held_out), "rated answers", reference)
        liked = sum(row.desirable for row in rows.train)
        progress(f"{liked} good with weight {good:.3g}, {len(rows.train) - liked} bad with weight {bad:.3g}")
        objective = KtoObjective(rows, KtoConfig(options.beta, good, bad), reference, options.max_tokens)
        result = _train(config, options, run, objective, renderer, rows.left_out, progress)
    print_result(run, result, options)


def read_verdicts(
    config: Config, options: VerdictOptions, origins: tuple[str, ...], min_margin: float
) -> PreferenceData:
    from hermes.config.paths import db_path
    from hermes.data.export.select import TrajectorySelection
    from hermes.store import Reader
    from hermes.training.preference.sources import DEFAULT_ORIGINS, from_files, from_store

    if options.files:
        return from_files(options.files)
    with Reader(db_path(config.home)) as reader:
        selection = TrajectorySelection(options.filters.build(), only_completed=not options.everything)
        return from_store(reader, selection, origins or DEFAULT_ORIGINS, min_margin)


def row_limits(options: VerdictOptions, data: PreferenceData) -> dict[str, Any]:
    """Which rows are used, and which of them are held out."""
    return {
        "longest": options.max_tokens,
        "eval_share": 0.0 if options.eval_files else options.eval_share,
        "left_out": data.left_out,
        "min_rows": options.min_rows,
    }


def eval_data(options: VerdictOptions) -> PreferenceData | None:
    """The rows of --eval-file; None: there are none."""
    from hermes.training.preference.sources import from_files

    return from_files(options.eval_files) if options.eval_files else None


def eval_limits(options: VerdictOptions, data: PreferenceData) -> dict[str, Any]:
    return {"longest": options.max_tokens, "eval_share": 0.0, "left_out": data.left_out, "min_rows": 1}


def chat_renderer(options: VerdictOptions) -> ChatRenderer:
    from hermes.envs.tokenise import load_tokenizer
    from hermes.models.render.chat import ChatRenderer

    return ChatRenderer.of(load_tokenizer(options.base_model), options.parser, options.max_tokens)


def _reference(config: Config, options: PreferenceOptions, run: TrainingRunSpec, data: PreferenceData) -> str:
    """BASE, or weights as the service names them; weights on this machine are uploaded once."""
    from hermes.training.preference.reference import BASE
    from hermes.training.preference.sources import answers_reference
    from hermes.training.start_weights import find_start

    name = options.reference
    if name is None:
        return run.lora.start or BASE
    if name == BASE:
        return BASE
    if name == "answers":
        return answers_reference(data, config.home)
    return find_start(name, config.home, run.lora.base_model) or BASE


def _announce(
    progress: ProgressCallback,
    run: TrainingRunSpec,
    trained: int,
    held_out: int,
    noun: str,
    reference: str | None,
) -> None:
    compared = f"; reference: {reference}" if reference else ""
    progress(f"run {run.id}: {trained} {noun}, {held_out} held out{compared}")


def _train(
    config: Config,
    options: PreferenceOptions,
    run: TrainingRunSpec,
    objective: OfflineObjective,
    renderer: ChatRenderer,
    left_out: Counter[str],
    progress: ProgressCallback,
) -> TrainResult:
    from hermes.training.offline import train_offline
    from hermes.training.schedule import default_preference_rate

    if options.replay_files:
        objective = _with_replay(objective, options, renderer, progress)
    settings = offline_settings(options, objective, default_preference_rate)
    for reason, count in left_out.most_common():
        progress(f"left out: {count} ({reason})")
    with open_sinks(config, run, options, settings) as sinks:
        return train_offline(run, objective, settings, sinks, progress, stop_on_signals(run))


def _with_replay(
    objective: OfflineObjective,
    options: PreferenceOptions,
    renderer: ChatRenderer,
    progress: ProgressCallback,
) -> OfflineObjective:
    from hermes.training.data import sft_examples
    from hermes.training.replay import ReplayObjective, ReplayRows

    left_out: Counter[str] = Counter()
    examples = sft_examples.gather(
        sft_examples.from_files(options.replay_files, lambda: renderer, left_out),
        left_out,
        longest=options.max_tokens,
        eval_share=0.0,
    ).train
    progress(f"replay: {len(examples)} sequences with weight {options.replay_weight:.3g}")
    for reason, count in left_out.most_common():
        progress(f"replay: left out: {count} ({reason})")
    return ReplayObjective(objective, ReplayRows(examples, options.replay_weight))


def offline_settings(
    options: VerdictOptions, objective: OfflineObjective, default_rate: Callable[[float | None], float]
) -> OfflineSettings:
    from hermes.errors import UsageError
    from hermes.training.offline import OfflineSettings, steps_of

    if options.patience and not objective.has_held_out:
        raise UsageError(
            "--patience needs held-out rows, and there are none", "add --eval-share 0.2, or more rows"
        )
    settings = OfflineSettings(
        schedule=learning_schedule(options, default_rate, 0),
        epochs=options.epochs,
        batch_size=options.batch_size,
        max_steps=options.max_steps,
        eval_every=options.eval_every,
        patience=options.patience,
    )
    last = steps_of(objective.row_count, settings)
    return replace(settings, schedule=replace(settings.schedule, total_steps=last))
