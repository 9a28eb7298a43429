"""Runs a trainer of `hermes train` from its options: the run, its data, sinks and services."""

from __future__ import annotations

import functools
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from hermes.config.load import Config
from hermes.config.settings import MANAGED
from hermes.core import new_id
from hermes.core.names import policy_name
from hermes.errors import HermesError, UsageError
from hermes.training.checkpoints import RetentionPolicy
from hermes.training.options import OfflineOptions, RlOptions, SftOptions, TrainOptions, size_defaults
from hermes.training.schedule import Schedule, ScheduleShape, default_sft_rate, parameters_of
from hermes.training.service.client import (
    KEY_VARIABLE,
    LOCAL_URL,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    LoraSpec,
    ServiceConnection,
    check_reachable,
    connection,
)
from hermes.training.session import ProgressCallback, TrainingRunSpec, TrainResult
from hermes.training.start_weights import find_start

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from hermes.data.export.select import TrajectorySelection
    from hermes.models.render.chat import ChatRenderer
    from hermes.training.critic import CriticConfig
    from hermes.training.data.sft_examples import SftExamples
    from hermes.training.distill import Teacher
    from hermes.training.monitor.overoptimisation import OveroptimisationGuard
    from hermes.training.monitor.rollout_table import RolloutTable
    from hermes.training.monitor.sinks import Sinks
    from hermes.training.offline import OfflineObjective, OfflineSettings
    from hermes.training.rl import Evaluate, OpenAIProxyConfig, PreferenceCheck


Rl = TypeVar("Rl", bound=RlOptions)


@dataclass(frozen=True, slots=True)
class Launch:
    """A run that is about to train."""

    config: Config
    run: TrainingRunSpec
    progress: ProgressCallback
    stop: threading.Event
    """Once set, the trainer finishes the step, saves and ends."""


def run_spec(config: Config, options: TrainOptions, kind: str) -> TrainingRunSpec:
    model = options.base_model
    if Path(model).is_dir():
        model = str(Path(model).absolute())
    run_id = options.name or f"{kind}-{new_id().lower()}"
    return TrainingRunSpec(
        run_id,
        (options.run_dir or config.home / "runs" / run_id).absolute(),
        connection(options.base_url, config.environ),
        LoraSpec(
            model,
            options.lora_rank,
            options.seed,
            options.policy_name,
            find_start(options.start_from or None, config.home, model),
            options.lora_alpha,
            tuple(options.lora_targets),
        ),
        RetentionPolicy(options.save_checkpoint_interval, options.keep),
    )


def check_service(run: TrainingRunSpec) -> None:
    """EngineError at once if no engine of this machine listens: before rows are read and tokenised.

    Another address is left to the SDK, which may reach it through a proxy.
    """
    if run.connection.local:
        check_reachable(run.connection.url)


def choose_service(options: Rl, environ: Mapping[str, str]) -> Rl:
    """With --with-engine: the managed service and an OpenAI port here, or an engine on loopback."""
    if not options.with_engine or options.base_url or environ.get(URL_VARIABLE):
        return options
    port = urlsplit(options.sampling_url or LOCAL_URL).port or urlsplit(LOCAL_URL).port
    if environ.get(KEY_VARIABLE):
        proxy_port = port if options.openai_port is None else options.openai_port
        return options.model_copy(update={"base_url": MANAGED, "openai_port": proxy_port})
    return options.model_copy(update={"base_url": f"http://127.0.0.1:{port}"})


def train_sft(launch: Launch, options: SftOptions, selection: TrajectorySelection | None) -> TrainResult:
    """`selection`: the stored trajectories to train on, unless files are named."""
    from hermes.training.sft import SftObjective

    examples = _read_examples(launch.config, options, selection)
    objective = SftObjective(examples.train, examples.held_out)
    settings = offline_settings(options, objective, default_sft_rate)
    launch.progress(
        f"run {launch.run.id}: {len(examples.train)} sequences, {len(examples.held_out)} held out, "
        f"{settings.schedule.total_steps} steps"
    )
    return train_on_rows(launch, options, objective, settings, examples.left_out)


def train_on_rows(
    launch: Launch,
    options: OfflineOptions,
    objective: OfflineObjective[Any],
    settings: OfflineSettings,
    left_out: Counter[str],
) -> TrainResult:
    """Trains after the counts of rows that were left out are told."""
    from hermes.training.offline import train_offline

    for reason, count in left_out.most_common():
        launch.progress(f"left out: {count} ({reason})")
    with open_sinks(launch.config, launch.run, options, settings) as sinks:
        return train_offline(launch.run, objective, settings, sinks, launch.progress, launch.stop)


def offline_settings(
    options: OfflineOptions, objective: OfflineObjective[Any], default_rate: Callable[[float | None], float]
) -> OfflineSettings:
    from hermes.training.offline import OfflineSettings, steps_of

    if options.patience and not objective.held_out:
        raise UsageError(
            "--patience needs held-out rows, and there are none", "add --eval-share 0.2, or more rows"
        )
    settings = OfflineSettings(
        schedule=_schedule(options, options.learning_rate, default_rate, 0),
        epochs=options.epochs,
        batch_size=options.batch_size,
        max_steps=options.max_steps,
        eval_every=options.eval_every,
        patience=options.patience,
    )
    last = steps_of(len(objective.train), settings)
    return replace(settings, schedule=replace(settings.schedule, total_steps=last))


def train_rl(
    launch: Launch,
    options: RlOptions,
    *,
    api_url: str | None = None,
    reference: str | None = None,
    measure_kl: bool = False,
    guard: OveroptimisationGuard | None = None,
    preference: PreferenceCheck | None = None,
    critic: CriticConfig | None = None,
) -> TrainResult:
    """Trains on rollouts from the trajectory API; see `RlTrainerConfig` and `RunServices`."""
    from hermes.config.providers import trajectory_api_url
    from hermes.serving.trajectory_api import DEFAULT_URL
    from hermes.training.data.batch import BatchConfig
    from hermes.training.monitor.evaluations import EvalWatcher
    from hermes.training.rl import RlTrainerConfig, RunServices, train

    config, run = launch.config, launch.run
    rate = options.learning_rate or size_defaults(options.base_model).learning_rate
    settings = RlTrainerConfig(
        schedule=Schedule(rate, ScheduleShape(options.schedule), options.warmup_steps, options.steps),
        num_steps=options.steps,
        batch_size=options.sequences,
        loss=options.loss,
        cap=options.correction_cap or None,
        proof_ends_run=options.proof == "end",
        clip=None if options.clip is None else (options.clip[0], options.clip[1]),
        epochs=options.epochs,
        kl=options.kl_coefficient,
        reference=reference,
        measure_kl=measure_kl,
        rules=BatchConfig(
            options.advantage,
            options.max_staleness,
            options.max_tokens,
            options.distill,
            options.reward_weight,
        ),
        critic=critic,
        eval_every=options.eval_every,
        eval_checkpoints=not options.eval_environments,
        patience=options.eval_patience,
        api_url=api_url or options.api_url or trajectory_api_url(config.environ) or DEFAULT_URL,
        api_patience_s=options.api_patience,
        env_patience_s=options.env_patience,
        lease_s=options.lease,
        project=options.wandb_project,
        wandb_group=options.wandb_group,
    )
    teacher = _teacher(config, options, run)
    launch.progress(
        f"run {run.id}: {settings.num_steps} steps of {settings.batch_size} sequences from {settings.api_url}"
    )
    with open_sinks(config, run, options, settings) as sinks:
        services = RunServices(
            sinks,
            launch.progress,
            launch.stop,
            _evaluation(options, run, launch.progress),
            EvalWatcher(None if options.eval_environments else options.eval_folder),
            teacher,
            guard,
            preference=preference,
            proxy=_openai_proxy(config, options),
            table=_rollout_table(config, options, sinks, launch.progress),
        )
        return train(run, settings, services)


def chat_renderer(options: TrainOptions, parser: str = "hermes") -> ChatRenderer:
    from hermes.envs.tokenise import load_tokenizer
    from hermes.models.render.chat import ChatRenderer

    return ChatRenderer.of(load_tokenizer(options.base_model), parser, options.max_tokens)


def _read_examples(config: Config, options: SftOptions, selection: TrajectorySelection | None) -> SftExamples:
    from hermes.config.paths import db_path
    from hermes.store import Reader
    from hermes.training.data import sft_examples
    from hermes.training.preference.sources import from_ratings

    left_out: Counter[str] = Counter()
    renderer = functools.cache(lambda: chat_renderer(options, options.parser))
    if selection is None:
        sequences = sft_examples.from_files(options.files, renderer, left_out)
        return sft_examples.gather(
            sequences, left_out, longest=options.max_tokens, eval_share=options.eval_share
        )
    with Reader(db_path(config.home)) as reader:
        min_rating = selection.filters.min_rating
        sequences = (
            sft_examples.from_store(reader, selection, renderer(), left_out)
            if min_rating is None
            else from_ratings(reader, selection, min_rating, renderer(), left_out)
        )
        return sft_examples.gather(
            sequences, left_out, longest=options.max_tokens, eval_share=options.eval_share
        )


def _schedule(
    options: TrainOptions, rate: float | None, default: Callable[[float | None], float], total: int
) -> Schedule:
    rate = rate or default(parameters_of(options.base_model))
    return Schedule(rate, ScheduleShape(options.schedule), options.warmup_steps, total)


@contextmanager
def open_sinks(
    config: Config, run: TrainingRunSpec, options: TrainOptions, settings: DataclassInstance
) -> Iterator[Sinks]:
    from hermes.agent.build import open_writer
    from hermes.training.monitor.incidents.alerts import AlertSink, parse_rule
    from hermes.training.monitor.sinks import JsonLines, Label, Sinks, StoreSink, default_sinks

    with open_writer(config) as writer:
        rules = [parse_rule(rule) for rule in config.settings.rl.alerts]
        sinks = Sinks([JsonLines(run.folder), StoreSink(writer, run.id), AlertSink(rules)])
        requested = options.extra_sinks
        names: dict[str, None] = dict.fromkeys((*requested, *default_sinks(config.environ)))
        if options.no_wandb:
            names = {name: None for name in names if not name.startswith("wandb")}
        if "wandb-offline" in names:
            names.pop("wandb", None)
        label = Label(run.id, options.wandb_project, options.title or run.id, options.wandb_group)
        facts = json.loads(json.dumps({**asdict(settings), **asdict(run.lora)}, default=str))
        try:
            for name in names:
                sinks.add(name, run.folder, label, facts, required=name in requested)
            yield sinks
        finally:
            sinks.close()


def _teacher(config: Config, options: RlOptions, run: TrainingRunSpec) -> Teacher | None:
    from hermes.training import distill

    url, model = options.teacher_url, options.teacher_model or None
    if options.distill and not url:
        return None  # the environment sends the teacher's logprobs with the rollouts
    if url and not options.distill:
        raise UsageError("--teacher-url is set, but --distill is 0", "add --distill 1.0")
    if not url:
        return None
    if model and not url.rstrip("/").endswith(distill.GENERATE):
        return distill.TinkerTeacher(connection(url, config.environ), model)
    if not model and urlsplit(url).netloc == urlsplit(run.connection.url).netloc:
        raise UsageError(
            "the teacher would be the policy itself: it is what this engine serves", "add --teacher-model"
        )
    token = config.environ.get(TOKEN_VARIABLE) if ServiceConnection(url, "").local else None
    return distill.GenerateTeacher(url, config.environ.get(distill.KEY_VARIABLE) or token, model)


def _rollout_table(
    config: Config, options: RlOptions, sinks: Sinks, progress: ProgressCallback
) -> RolloutTable | None:
    """For sinks that show tables. A tokenizer that is not on this machine costs the table, not the run."""
    if not options.rollout_table_every or not sinks.take_tables:
        return None
    from hermes.config.secrets import find
    from hermes.envs.tokenise import load_tokenizer
    from hermes.safety.redact import Redactor
    from hermes.training.monitor.rollout_table import RolloutTable

    try:
        tokenizer = load_tokenizer(options.base_model)
    except HermesError as error:
        progress(f"no tables of rollouts: {error.message}")
        return None
    return RolloutTable(
        lambda tokens: str(tokenizer.decode(list(tokens))),
        Redactor(find(config.environ, config.settings)).text,
        options.rollout_table_every,
    )


def _openai_proxy(config: Config, options: RlOptions) -> OpenAIProxyConfig | None:
    from hermes.training.rl import OpenAIProxyConfig
    from hermes.training.service.openai_proxy import tokenizer_of

    if options.openai_port is None:
        return None
    return OpenAIProxyConfig(options.openai_port, tokenizer_of(options.base_model, config.home))


def _evaluation(options: RlOptions, run: TrainingRunSpec, progress: ProgressCallback) -> Evaluate | None:
    from hermes.training.monitor.evaluations import command_evaluation, environments_evaluation

    if options.eval_environments:
        if len(options.eval_configs) != len(options.eval_environments) or options.eval_folder is None:
            raise UsageError(
                "--eval-environment needs the configuration of the environment and a folder",
                "add --eval-config FILE for each environment, and --eval-folder FOLDER",
            )
        environments = list(zip(options.eval_environments, options.eval_configs, strict=True))
        at_service = options.openai_port is not None  # the trainer itself passes the requests on to it
        return environments_evaluation(
            environments,
            options.eval_folder,
            progress,
            lambda step: policy_name(run.id, step, at_service=at_service),
        )
    command = options.eval_command
    return command_evaluation(command, run.id, progress) if command else None
