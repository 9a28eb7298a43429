"""What the options of `hermes train` ask for, put together and run."""

from __future__ import annotations

import functools
import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.models.render.chat import ChatRenderer
    from hermes.training.data.sft_examples import SftExamples
    from hermes.training.distill import Teacher
    from hermes.training.monitor.sinks import Sinks
    from hermes.training.rl import Evaluate, OpenAIProxyConfig
    from hermes.training.schedule import Schedule
    from hermes.training.session import TrainingRunSpec, TrainResult


def run_sft(given: dict[str, Any]) -> None:
    from hermes.config.load import load
    from hermes.errors import UsageError
    from hermes.training.schedule import default_sft_rate
    from hermes.training.sft import SftSettings, steps_of, train

    config = load()
    run = _run(config, given, "sft")
    lessons = _lessons(config, given)
    if given["patience"] and not lessons.held_out:
        raise UsageError(
            "--patience needs held-out rows, and there are none", "add --eval-share 0.1, or more"
        )
    settings = SftSettings(
        schedule=_schedule(given, default_sft_rate, 0),
        epochs=given["epochs"],
        batch_size=given["batch_size"],
        max_steps=given["max_steps"],
        eval_every=given["eval_every"],
        patience=given["patience"],
    )
    last = steps_of(len(lessons.train), settings)
    settings = _with_total(settings, last)
    tell = _teller(given)
    tell(f"run {run.id}: {len(lessons.train)} sequences, {len(lessons.held_out)} held out, {last} steps")
    for reason, count in lessons.left_out.most_common():
        tell(f"left out: {count} ({reason})")
    with _sinks(config, run, given, settings) as sinks:
        _report(run, train(run, lessons, settings, sinks, tell, _stop_on_signals()), given)


def run_rl(given: dict[str, Any]) -> None:
    from hermes.config.load import load
    from hermes.config.providers import trajectory_api_url
    from hermes.training.data.advantages import Baseline
    from hermes.training.data.api import DEFAULT_URL
    from hermes.training.data.batch import BatchConfig
    from hermes.training.monitor.eval_watcher import EvalWatcher
    from hermes.training.rl import RlTrainerConfig, RunServices, train
    from hermes.training.schedule import default_rl_rate

    config = load()
    run = _run(config, given, "rl")
    settings = RlTrainerConfig(
        schedule=_schedule(given, default_rl_rate, given["num_steps"]),
        num_steps=given["num_steps"],
        batch_size=given["batch_size"],
        loss=given["loss"],
        cap=given["correction_cap"] or None,
        clip=given["clip"],
        epochs=given["epochs"],
        kl=given["kl"],
        rules=BatchConfig(
            Baseline(given["advantage"]),
            given["max_staleness"],
            given["max_tokens"],
            given["distill"],
            given["reward_weight"],
        ),
        eval_every=given["eval_every"],
        api_url=given["api_url"] or trajectory_api_url(config.environ) or DEFAULT_URL,
        api_patience_s=given["api_patience_s"],
        env_patience_s=given["env_patience_s"],
        lease_s=given["lease_s"],
        project=given["project"],
        wandb_group=given["wandb_group"],
    )
    teacher = _teacher(config, given, run)
    tell = _teller(given)
    tell(
        f"run {run.id}: {settings.num_steps} steps of {settings.batch_size} sequences from {settings.api_url}"
    )
    with _engine(config, run, given, tell), _sinks(config, run, given, settings) as sinks:
        services = RunServices(
            sinks,
            tell,
            _stop_on_signals(),
            _evaluate(given, run, tell),
            EvalWatcher(given["eval_folder"]),
            teacher,
            _face(config, given),
        )
        _report(run, train(run, settings, services), given)


def _run(config: Config, given: dict[str, Any], kind: str) -> TrainingRunSpec:
    from hermes.core import new_id
    from hermes.training.checkpoints import RetentionPolicy
    from hermes.training.service.client import LoraSpec, connection
    from hermes.training.session import TrainingRunSpec
    from hermes.training.start_weights import find_weights

    model = given["base_model"]
    if Path(model).is_dir():
        model = str(Path(model).absolute())
    start = find_weights(given["start"], config.home) if given["start"] else None
    run_id = given["name"] or f"{kind}-{new_id().lower()}"
    return TrainingRunSpec(
        run_id,
        (given["run_dir"] or config.home / "runs" / run_id).absolute(),
        connection(given["base_url"], config.environ),
        LoraSpec(model, given["rank"], given["seed"], given["policy_name"], start),
        RetentionPolicy(given["checkpoint_every"], given["keep"]),
    )


def _lessons(config: Config, given: dict[str, Any]) -> SftExamples:
    from hermes.cli.options import build_filter
    from hermes.config.paths import db_path
    from hermes.data.export.select import TrajectorySelection
    from hermes.envs.tokenise import load_tokenizer
    from hermes.models.render.chat import ChatRenderer
    from hermes.store import Reader
    from hermes.training.data import sft_examples

    left_out: Counter[str] = Counter()
    longest = given["max_tokens"]

    @functools.cache
    def speech() -> ChatRenderer:
        return ChatRenderer.of(load_tokenizer(given["base_model"]), given["parser"], longest)

    if given["files"]:
        found = sft_examples.from_files(given["files"], speech, left_out)
        return sft_examples.gather(found, left_out, longest=longest, eval_share=given["eval_share"])
    which = build_filter(**given["filters"])
    with Reader(db_path(config.home)) as reader:
        selection = TrajectorySelection(which, only_completed=not given["everything"])
        found = sft_examples.from_store(reader, selection, speech(), left_out)
        return sft_examples.gather(found, left_out, longest=longest, eval_share=given["eval_share"])


def _schedule(given: dict[str, Any], default: Callable[[float | None], float], total: int) -> Schedule:
    from hermes.training.schedule import Schedule, ScheduleShape, parameters_of

    rate = given["learning_rate"] or default(parameters_of(given["base_model"]))
    return Schedule(rate, ScheduleShape(given["schedule"]), given["warmup_steps"], total)


def _with_total(settings: Any, total: int) -> Any:
    from dataclasses import replace

    return replace(settings, schedule=replace(settings.schedule, total_steps=total))


@contextmanager
def _sinks(config: Config, run: TrainingRunSpec, given: dict[str, Any], settings: Any) -> Iterator[Sinks]:
    from hermes.agent.build import open_writer
    from hermes.training.monitor.sinks import JsonLines, Label, Sinks, StoreSink, default_sinks

    with open_writer(config) as writer:
        sinks = Sinks([JsonLines(run.folder), StoreSink(writer, run.id)])
        requested = given["extra_sinks"]
        names = dict.fromkeys((*requested, *default_sinks(config.environ)))
        if given["no_wandb"]:
            names = {name: None for name in names if not name.startswith("wandb")}
        if "wandb-offline" in names:
            names.pop("wandb", None)
        label = Label(run.id, given["project"], given["title"] or run.id, given["wandb_group"])
        facts = json.loads(json.dumps({**asdict(settings), **asdict(run.lora)}, default=str))
        try:
            for name in names:
                sinks.add(name, run.folder, label, facts, required=name in requested)
            yield sinks
        finally:
            sinks.close()


def _teacher(config: Config, given: dict[str, Any], run: TrainingRunSpec) -> Teacher | None:
    from hermes.errors import UsageError
    from hermes.training.distill import GENERATE, KEY_VARIABLE, GenerateTeacher, TinkerTeacher
    from hermes.training.service.client import TOKEN_VARIABLE, ServiceConnection, connection

    url, model = given["teacher_url"], given["teacher_model"]
    if given["distill"] and not url:
        return None  # the environment brings the teacher's word along
    if url and not given["distill"]:
        raise UsageError("a teacher is named whose word has no weight", "add --distill 1.0")
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


def _face(config: Config, given: dict[str, Any]) -> OpenAIProxyConfig | None:
    from hermes.training.rl import OpenAIProxyConfig
    from hermes.training.service.openai_proxy import tokenizer_of

    if given["face_port"] is None:
        return None
    return OpenAIProxyConfig(given["face_port"], tokenizer_of(given["base_model"], config.home))


@contextmanager
def _engine(
    config: Config, run: TrainingRunSpec, given: dict[str, Any], tell: Callable[[str], None]
) -> Iterator[None]:
    """With --with-engine: an engine at the run's address, unless one answers there or a service trains."""
    from hermes.config.paths import logs_dir
    from hermes.rl.supervise.engine_process import engine_process
    from hermes.training.service.client import is_ready

    url = run.connection.url
    if not given["with_engine"] or not run.connection.local or is_ready(url):
        yield
        return
    log = logs_dir(config.home) / "rl_training" / f"engine_{run.id}.log"
    port = urlsplit(url).port or 80
    tell(f"starting an engine for {run.lora.base_model} at {url}; its log is {log}")
    with engine_process(run.lora.base_model, config.settings.rl.device, port, log, config.home / "engine"):
        yield


def _evaluate(given: dict[str, Any], run: TrainingRunSpec, tell: Callable[[str], None]) -> Evaluate | None:
    from hermes.training.monitor.eval_command import command_evaluation

    command = given["eval_command"]
    return command_evaluation(command, run.id, tell) if command else None


def _stop_on_signals() -> threading.Event:
    """The first signal ends the run after the step, with everything saved; a second one at once."""
    stop = threading.Event()

    def ask(number: int, frame: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
    return stop


def _teller(given: dict[str, Any]) -> Callable[[str], None]:
    """Progress goes to standard error where the result is JSON."""
    return lambda line: click.echo(line, err=given["as_json"])


def _report(run: TrainingRunSpec, done: TrainResult, given: dict[str, Any]) -> None:
    facts = {"run_id": run.id, "run_dir": str(run.folder), **asdict(done)}
    facts["best"] = done.best._asdict() if done.best else None
    if given["as_json"]:
        click.echo(json.dumps(facts))
        return
    click.echo(f"{done.reason} at step {done.step}")
    click.echo(f"weights  {done.weights}")
    click.echo(f"sampler  {done.sampler}")
    if done.best:
        click.echo(f"best     step {done.best.step} ({done.best.value:.4f})  {done.best.sampler}")
    click.echo(f"metrics  {run.folder / 'metrics.jsonl'}")
