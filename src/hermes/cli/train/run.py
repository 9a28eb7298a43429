"""Runs `hermes train`: builds the run, its data, sinks and services, trains, and prints the result."""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from hermes.cli.terminal.progress import ProgressLines
    from hermes.cli.train.options import RlOptions, SftOptions, TrainOptions
    from hermes.config.load import Config
    from hermes.models.render.chat import ChatRenderer
    from hermes.training.critic import CriticConfig
    from hermes.training.data.sft_examples import SftExamples
    from hermes.training.distill import Teacher
    from hermes.training.monitor.overoptimisation import OveroptimisationGuard
    from hermes.training.monitor.rollout_table import RolloutTable
    from hermes.training.monitor.sinks import Sinks
    from hermes.training.rl import Evaluate, OpenAIProxyConfig, PreferenceCheck
    from hermes.training.schedule import Schedule
    from hermes.training.session import ProgressCallback, TrainingRunSpec, TrainResult


def run_sft(options: SftOptions) -> None:
    from hermes.config.load import load
    from hermes.errors import UsageError
    from hermes.training.schedule import default_sft_rate
    from hermes.training.sft import SftSettings, steps_of, train

    config = load()
    run = run_spec(config, options, "sft")
    check_service(run)
    with progress_lines(options) as progress:
        progress.wait_for("reading the examples")
        examples = _read_examples(config, options)
        if options.patience and not examples.held_out:
            raise UsageError(
                "--patience needs held-out rows, and there are none", "add --eval-share 0.1, or more"
            )
        settings = SftSettings(
            schedule=learning_schedule(options, default_sft_rate, 0),
            epochs=options.epochs,
            batch_size=options.batch_size,
            max_steps=options.max_steps,
            eval_every=options.eval_every,
            patience=options.patience,
        )
        last = steps_of(len(examples.train), settings)
        settings = replace(settings, schedule=replace(settings.schedule, total_steps=last))
        held_out = len(examples.held_out)
        progress(f"run {run.id}: {len(examples.train)} sequences, {held_out} held out, {last} steps")
        for reason, count in examples.left_out.most_common():
            progress(f"left out: {count} ({reason})")
        with open_sinks(config, run, options, settings) as sinks:
            result = train(run, examples, settings, sinks, progress, stop_on_signals(run))
    print_result(run, result, options)


def run_rl(options: RlOptions) -> None:
    from hermes.config.load import load

    config = load()
    run = run_spec(config, options, "rl")
    with progress_lines(options) as progress, start_engine(config, run, options, progress):
        result = train_rl(config, run, options, progress, stop_on_signals(run))
    print_result(run, result, options)


def train_rl(
    config: Config,
    run: TrainingRunSpec,
    options: RlOptions,
    progress: ProgressCallback,
    stop: threading.Event,
    *,
    reference: str | None = None,
    measure_kl: bool = False,
    guard: OveroptimisationGuard | None = None,
    preference: PreferenceCheck | None = None,
    critic: CriticConfig | None = None,
) -> TrainResult:
    """Trains; see `RlTrainerConfig` and `RunServices`."""
    from hermes.config.providers import trajectory_api_url
    from hermes.serving.trajectory_api import DEFAULT_URL
    from hermes.training.data.advantages import Baseline
    from hermes.training.data.batch import BatchConfig
    from hermes.training.monitor.eval_watcher import EvalWatcher
    from hermes.training.rl import RlTrainerConfig, RunServices, train
    from hermes.training.schedule import default_rl_rate

    settings = RlTrainerConfig(
        schedule=learning_schedule(options, default_rl_rate, options.num_steps),
        num_steps=options.num_steps,
        batch_size=options.batch_size,
        loss=options.loss,
        cap=options.correction_cap or None,
        proof_ends_run=options.proof == "end",
        clip=options.clip,
        epochs=options.epochs,
        kl=options.kl,
        reference=reference,
        measure_kl=measure_kl,
        rules=BatchConfig(
            Baseline(options.advantage),
            options.max_staleness,
            options.max_tokens,
            options.distill,
            options.reward_weight,
        ),
        critic=critic,
        eval_every=options.eval_every,
        eval_checkpoints=not options.eval_environments,
        patience=options.eval_patience,
        api_url=options.api_url or trajectory_api_url(config.environ) or DEFAULT_URL,
        api_patience_s=options.api_patience_s,
        env_patience_s=options.env_patience_s,
        lease_s=options.lease_s,
        project=options.project,
        wandb_group=options.wandb_group,
    )
    teacher = _teacher(config, options, run)
    progress(
        f"run {run.id}: {settings.num_steps} steps of {settings.batch_size} sequences from {settings.api_url}"
    )
    with open_sinks(config, run, options, settings) as sinks:
        services = RunServices(
            sinks,
            progress,
            stop,
            _evaluation(options, run, progress),
            EvalWatcher(None if options.eval_environments else options.eval_folder),
            teacher,
            guard,
            preference=preference,
            proxy=_openai_proxy(config, options),
            table=_rollout_table(config, options, sinks, progress),
        )
        return train(run, settings, services)


def check_service(run: TrainingRunSpec) -> None:
    """EngineError at once if no engine of this machine listens: before rows are read and tokenised.

    Another address is left to the SDK, which may reach it through a proxy.
    """
    from hermes.training.service.client import check_reachable

    if run.connection.local:
        check_reachable(run.connection.url)


def run_spec(config: Config, options: TrainOptions, kind: str) -> TrainingRunSpec:
    from hermes.core import new_id
    from hermes.training.checkpoints import RetentionPolicy
    from hermes.training.service.client import LoraSpec, connection
    from hermes.training.session import TrainingRunSpec
    from hermes.training.start_weights import find_start

    model = options.base_model
    if Path(model).is_dir():
        model = str(Path(model).absolute())
    start = find_start(options.start, config.home, model)
    run_id = options.name or f"{kind}-{new_id().lower()}"
    return TrainingRunSpec(
        run_id,
        (options.run_dir or config.home / "runs" / run_id).absolute(),
        connection(options.base_url, config.environ),
        LoraSpec(
            model,
            options.rank,
            options.seed,
            options.policy_name,
            start,
            options.lora_alpha,
            options.lora_targets,
        ),
        RetentionPolicy(options.checkpoint_every, options.keep),
    )


def _read_examples(config: Config, options: SftOptions) -> SftExamples:
    from hermes.config.paths import db_path
    from hermes.data.export.select import TrajectorySelection
    from hermes.envs.tokenise import load_tokenizer
    from hermes.models.render.chat import ChatRenderer
    from hermes.store import Reader
    from hermes.training.data import sft_examples
    from hermes.training.preference.rated_sft import from_ratings

    left_out: Counter[str] = Counter()
    longest = options.max_tokens

    @functools.cache
    def renderer() -> ChatRenderer:
        return ChatRenderer.of(load_tokenizer(options.base_model), options.parser, longest)

    if options.files:
        sequences = sft_examples.from_files(options.files, renderer, left_out)
        return sft_examples.gather(sequences, left_out, longest=longest, eval_share=options.eval_share)
    with Reader(db_path(config.home)) as reader:
        selection = TrajectorySelection(options.filters.build(), only_completed=not options.everything)
        min_rating = options.filters.min_rating
        sequences = (
            sft_examples.from_store(reader, selection, renderer(), left_out)
            if min_rating is None
            else from_ratings(reader, selection, min_rating, renderer(), left_out)
        )
        return sft_examples.gather(sequences, left_out, longest=longest, eval_share=options.eval_share)


def learning_schedule(
    options: TrainOptions, default: Callable[[float | None], float], total: int
) -> Schedule:
    from hermes.training.schedule import Schedule, ScheduleShape, parameters_of

    rate = options.learning_rate or default(parameters_of(options.base_model))
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
        names = dict.fromkeys((*requested, *default_sinks(config.environ)))
        if options.no_wandb:
            names = {name: None for name in names if not name.startswith("wandb")}
        if "wandb-offline" in names:
            names.pop("wandb", None)
        label = Label(run.id, options.project, options.title or run.id, options.wandb_group)
        facts = json.loads(json.dumps({**asdict(settings), **asdict(run.lora)}, default=str))
        try:
            for name in names:
                sinks.add(name, run.folder, label, facts, required=name in requested)
            yield sinks
        finally:
            sinks.close()


def _teacher(config: Config, options: RlOptions, run: TrainingRunSpec) -> Teacher | None:
    from hermes.errors import UsageError
    from hermes.training.distill import GENERATE, KEY_VARIABLE, GenerateTeacher, TinkerTeacher
    from hermes.training.service.client import TOKEN_VARIABLE, ServiceConnection, connection

    url, model = options.teacher_url, options.teacher_model
    if options.distill and not url:
        return None  # the environment sends the teacher's logprobs with the rollouts
    if url and not options.distill:
        raise UsageError("--teacher-url is set, but --distill is 0", "add --distill 1.0")
    if not url:
        return None
    if model and not url.rstrip("/").endswith(GENERATE):
        return TinkerTeacher(connection(url, config.environ), model)
    if not model and urlsplit(url).netloc == urlsplit(run.connection.url).netloc:
        raise UsageError(
            "the teacher would be the policy itself: it is what this engine serves", "add --teacher-model"
        )
    token = config.environ.get(TOKEN_VARIABLE) if ServiceConnection(url, "").local else None
    return GenerateTeacher(url, config.environ.get(KEY_VARIABLE) or token, model)


def _rollout_table(
    config: Config, options: RlOptions, sinks: Sinks, progress: ProgressCallback
) -> RolloutTable | None:
    """Where a sink shows tables. A tokenizer that is not on this machine costs the table, not the run."""
    if not options.rollout_table_every or not sinks.take_tables:
        return None
    from hermes.config.secrets import find
    from hermes.envs.tokenise import load_tokenizer
    from hermes.errors import HermesError
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

    if options.face_port is None:
        return None
    return OpenAIProxyConfig(options.face_port, tokenizer_of(options.base_model, config.home))


@contextmanager
def start_engine(
    config: Config, run: TrainingRunSpec, options: RlOptions, progress: ProgressCallback
) -> Iterator[None]:
    """With --with-engine: an engine at the run's address, unless one is running there or a service trains."""
    from hermes.config.paths import logs_dir
    from hermes.rl.supervise.engine_process import EngineProcessOptions, engine_process
    from hermes.training.service.client import is_ready

    url = run.connection.url
    if not options.with_engine or not run.connection.local or is_ready(url):
        yield
        return
    log = logs_dir(config.home) / "rl_training" / f"engine_{run.id}.log"
    port = urlsplit(url).port or 80
    progress(f"starting an engine for {run.lora.base_model} at {url}; its log is {log}")
    with engine_process(
        run.lora.base_model,
        config.settings.rl.device,
        port,
        log,
        config.home / "engine",
        options=EngineProcessOptions(
            dtype=options.engine_dtype, memory_gib=options.engine_memory_gib, kv_gib=options.engine_kv_gib
        ),
    ):
        yield


def _evaluation(options: RlOptions, run: TrainingRunSpec, progress: ProgressCallback) -> Evaluate | None:
    from hermes.errors import UsageError
    from hermes.training.monitor.eval_command import command_evaluation
    from hermes.training.monitor.eval_environment import environments_evaluation

    if options.eval_environments:
        if len(options.eval_configs) != len(options.eval_environments) or options.eval_folder is None:
            raise UsageError(
                "--eval-environment needs the configuration of the environment and a folder",
                "add --eval-config FILE for each environment, and --eval-folder FOLDER",
            )
        return environments_evaluation(
            list(zip(options.eval_environments, options.eval_configs, strict=True)),
            options.eval_folder,
            progress,
        )
    command = options.eval_command
    return command_evaluation(command, run.id, progress) if command else None


def stop_on_signals(run: TrainingRunSpec) -> threading.Event:
    """The first signal ends the run after the current step, with everything saved; a second one, at once,
    with the processes that the run has launched.

    What is kept is written past Python's buffers: a handler may run in the middle of a write.
    """
    from hermes.rl.supervise.process import terminate_launched

    stop = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        if not stop.is_set():
            stop.set()
            os.write(2, b"\nfinishing this step and saving it; Ctrl-C again stops at once\n")
            return
        os.write(2, f"\nstopped at once; {_kept(run)}\n".encode())
        terminate_launched()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


def _kept(run: TrainingRunSpec) -> str:
    from hermes.training.checkpoints import StateFile

    state = StateFile(run.folder).state()
    if state is None or not state.kept:
        return "no checkpoint was made, and the same command starts again"
    return f"the checkpoint of step {state.kept[-1].step} is kept; to go on: {_same_command(run)}"


def _same_command(run: TrainingRunSpec) -> str:
    return f"the same command with --name {run.id}"


def progress_lines(options: TrainOptions) -> ProgressLines:
    """Progress goes to standard error if the result is JSON."""
    from hermes.cli.terminal.progress import ProgressLines

    return ProgressLines(to_stderr=options.as_json)


def print_result(run: TrainingRunSpec, result: TrainResult, options: TrainOptions) -> None:
    from hermes.training.session import STOPPED

    facts = {"run_id": run.id, "run_dir": str(run.folder), **asdict(result)}
    facts["best"] = result.best._asdict() if result.best else None
    if options.as_json:
        click.echo(json.dumps(facts))
        return
    click.echo(f"{result.reason} at step {result.step}")
    click.echo(f"weights  {result.weights}")
    click.echo(f"sampler  {result.sampler}")
    if result.best:
        click.echo(f"best     step {result.best.step} ({result.best.value:.4f})  {result.best.sampler}")
    click.echo(f"metrics  {run.folder / 'metrics.jsonl'}")
    if result.reason == STOPPED:
        click.echo(f"to go on {_same_command(run)}")
