"""Opens trained weights by the name that a person gives: in this process, or at an engine of their own.

    policy               the promoted policy; before the first promotion the base model, which is said
    policy:NAME          a certain policy, by its name or id
    run:RUN[@STEP]       a checkpoint of a run; without a step the newest
    RUN@step-N           a policy's or checkpoint's own name

The base model never answers for weights that cannot be found: that is an error.
"""

from __future__ import annotations

import glob
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.config.providers import likely_names, profiles
from hermes.core.names import SERVICE_SUFFIX, did_you_mean, is_policy_name, policy_name
from hermes.core.texts import Texts
from hermes.engine.server.options import ModelOptions
from hermes.errors import HermesError, UsageError
from hermes.models.local import bundled
from hermes.rl.config.base_model import hub_folder
from hermes.training.policy_registry import (
    BASE_ID,
    NAME,
    PolicyRecord,
    PolicyRegistry,
    names_policy,
    new_policy_id,
)

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.models.base import ChatModel
    from hermes.models.budget import Budget
    from hermes.rl.run import RlRun
    from hermes.rl.weights.source import WeightsSource

Progress = Callable[[str], None]
RUN = "run:"
"""The prefix of a run in a model name."""


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """Weights that can answer."""

    name: str
    """For people; what is recorded as the model."""
    engine: ModelOptions
    """The base model, and how an engine holds it."""
    source: WeightsSource | None = None
    """The adapter; None: the base model itself, or a run in progress."""
    url: str | None = None
    """Where a run in progress samples its newest weights; its model is `policy` there."""
    toolsets: tuple[str, ...] | None = None
    """Those that it was trained with; None: not known."""
    texts: Texts = field(default_factory=dict)
    """Texts around the model, such as its system prompt."""
    provider: bool = False
    """The base model answers at a configured provider, and the policy is texts alone."""
    service_run: RlRun | None = None
    """The run whose service has the weights, and samples them for a price; None: they are on this machine."""

    @property
    def base_model(self) -> str:
        return self.engine.model


def find_policy(config: Config, model: str | None, progress: Progress | None = None) -> NamedPolicy | None:
    """The policy of a model name; None for a model of a provider. UsageError if it names nothing."""
    if model is None:
        return None
    model = config.settings.model_aliases.get(model, model)
    if model.startswith(RUN):
        return _run_policy(config, *_run_and_step(model.removeprefix(RUN)))
    if not names_policy(model):
        _check_prefix(config, model)
        return None
    reference = model.removeprefix(f"{NAME}:")
    registry = PolicyRegistry(config.home)
    if is_policy_name(reference) and reference not in [record.name for record in registry.policies()]:
        return _run_policy(config, *_run_and_step(reference))
    record = registry.find(reference)
    if record.id == BASE_ID and reference != BASE_ID and progress is not None:
        progress(f"no policy is promoted: the base model {record.base_model} answers")
    return of_record(config, record)


def _check_prefix(config: Config, model: str) -> None:
    """UsageError for the name of a run that stands there without `run:`."""
    runs = [path.name for path in (config.home / "runs").glob(f"{glob.escape(model)}*/")] if model else []
    runs = [model] if model in runs else runs
    settings = config.settings
    if "/" in model or not runs or likely_names(model, profiles(settings, {}), settings.model_aliases):
        return
    names = [f"{RUN}{run}" for run in sorted(runs)[:3]]
    raise UsageError(f"the model '{model}' names no provider", did_you_mean(names))


def of_record(config: Config, record: PolicyRecord) -> NamedPolicy:
    if record.weights is None:
        providers = profiles(config.settings, config.environ)
        provider = not is_bundled(record.base_model) and record.base_model.partition("/")[0] in providers
        options = ModelOptions(model=record.base_model)
        return NamedPolicy(record.base_model, options, texts=record.texts, provider=provider)
    return replace(_of_weights(config, record), texts=record.texts)


def with_texts(config: Config, model: str | None, base_url: str | None = None) -> Config:
    """The configuration under which the model of this name answers: with the texts of a policy."""
    policy = find_policy(config, model or config.settings.model) if base_url is None else None
    return replace(config, texts=policy.texts if policy else {})


def _of_weights(config: Config, record: PolicyRecord) -> NamedPolicy:
    run = _run_of(config, record)
    source = replace(_source_of(config, record), name=record.label)
    if run is None:
        return NamedPolicy(record.label, ModelOptions(model=record.base_model), source)
    policy = _of_run(run)
    return replace(policy, name=_priced(record.label, policy), source=source)


def promote(config: Config, name: str, base_model: str | None = None) -> PolicyRecord:
    """Makes it the current policy: a policy of the registry, or weights of a run or at a tinker:// path,
    which become one. UsageError if there is no such thing, or nothing could answer as it."""
    registry = PolicyRegistry(config.home)
    try:
        record = registry.find(name)
    except UsageError as error:
        record = _new_record(config, name, base_model, error)
    policies = registry.policies()
    if record.id != BASE_ID and record not in policies:
        equal_policies = [
            policy for policy in policies if (policy.weights, policy.texts) == (record.weights, record.texts)
        ]
        record = equal_policies[-1] if equal_policies else record
    check_servable(config, record)
    if record.id != BASE_ID and record not in policies:
        registry.add(record)
    return registry.promote(record.id, "by hand")


def _new_record(config: Config, name: str, base_model: str | None, unknown: UsageError) -> PolicyRecord:
    """`unknown` is raised where the name is no run's either."""
    from hermes.core.clock import now_ms
    from hermes.rl.weights.source import SCHEME, find_source

    run, step = (name, None) if name.startswith(SCHEME) else _run_and_step(name.removeprefix(RUN))
    try:
        source = find_source(config, run, step)
    except UsageError as error:
        named = name.startswith((SCHEME, RUN)) or "there is no run" not in error.message
        raise (error if named else unknown) from error
    base = base_model or source.base_model or f"hermes/{bundled.NAME}"
    record = PolicyRecord(
        new_policy_id(),
        base,
        source.path,
        source.sampler,
        run_id=source.name.rpartition("@")[0],
        parent=PolicyRegistry(config.home).current(base).id,
        method="by hand",
        created_at_ms=now_ms(),
        name=source.name,
    )
    rl_run = _run_of(config, record)
    return record if rl_run is None else replace(record, texts=dict(_of_run(rl_run).texts))


def open_named(
    config: Config,
    model: str | None,
    base_url: str | None = None,
    budget: Budget | None = None,
    progress: Progress | None = None,
) -> ChatModel:
    """`models.open.open_model`, also for the names of trained weights, which answer in this process."""
    from hermes.models.open import MeteredChat, open_model
    from hermes.models.usage import FREE

    policy = find_policy(config, model or config.settings.model, progress) if base_url is None else None
    if policy is None or policy.provider:
        return open_model(config, policy.base_model if policy else model, base_url, budget, progress)
    opened = open_policy(config, policy, progress)
    return opened if budget is None else MeteredChat(opened, FREE, budget)


def open_policy(config: Config, policy: NamedPolicy, progress: Progress | None = None) -> ChatModel:
    """In this process; a run in progress at its engine."""
    from hermes.models.open import open_model

    if policy.url is not None:
        return open_model(config, NAME, policy.url, label=policy.name)
    if policy.source is None and (policy.provider or is_bundled(policy.base_model)):
        return open_model(config, policy.base_model, progress=progress)
    from hermes.models.local.chat import LocalChat

    if policy.source is None:
        return LocalChat.open(str(base_folder(policy.base_model)), config.home)
    folder = merged_folder(policy.source, progress)
    LocalChat.open(str(folder), config.home)  # complains about what is missing
    return LocalChat(policy.name, lambda: folder, policy.source.sampler or policy.source.path)


def is_bundled(base_model: str) -> bool:
    """Whether chat and batch know the base model by this name; others are a folder, or on the hub."""
    return base_model == f"hermes/{bundled.NAME}"


def base_folder(base_model: str) -> Path:
    """The folder of a base model that is not the bundled one."""
    folder = Path(base_model).expanduser()
    return folder if folder.is_dir() else hub_folder(base_model)


def merged_folder(source: WeightsSource, progress: Progress | None = None) -> Path:
    """The base model with the policy's adapter, as a model folder; made once."""
    from hermes.rl.weights.export import export_merged

    if not (source.merged_folder / "config.json").exists() and progress is not None:
        progress(f"merging the weights of {source.name}")
    return export_merged(source)


def adapter_folder(source: WeightsSource) -> Path:
    """The adapter's files on this machine: where they were trained, else a copy of what a service has."""
    from hermes.rl.weights.export import export_adapter

    return source.folder or export_adapter(source)


def check_servable(config: Config, record: PolicyRecord) -> None:
    """UsageError if nothing could answer as this policy: its weights are not in this home, and no service has
    them. What a service has is copied into the home."""
    if record.weights is None:
        return
    try:
        adapter_folder(_source_of(config, record))
    except HermesError as error:
        raise UsageError(
            f"the weights {record.weights} are not in this home, and cannot be fetched: {error.message}",
            "name a run of 'hermes rl status --all', or start the service that has the weights",
        ) from error


def _run_and_step(text: str) -> tuple[str, int | None]:
    """The run and the step of RUN, RUN@7, RUN@step-7 or RUN@newest."""
    run, at, step = text.rpartition("@")
    number = step.removeprefix("step-")
    if at and number.isdecimal():
        return run, int(number)
    return (run if step == "newest" else text), None


def _run_policy(config: Config, run_id: str, step: int | None) -> NamedPolicy:
    from hermes.rl.run import find_run
    from hermes.rl.weights.source import find_source, is_training_run, run_source

    if is_training_run(config.home, run_id):
        source = find_source(config, run_id, step)
        base_model = source.base_model or f"hermes/{bundled.NAME}"
        return NamedPolicy(source.name, ModelOptions(model=base_model), source)
    run = find_run(config.home, run_id)
    policy = _of_run(run)
    if step is None and not run.status().state.ended and (url := running_engine(run)) is not None:
        return replace(policy, name=policy_name(run.run_id, None), url=f"{url}/v1")
    source = run_source(run, step)
    return replace(policy, name=_priced(source.name, policy), source=source)


def running_engine(run: RlRun) -> str | None:
    """The address at which the run's newest weights are sampled; None if it does not respond."""
    from hermes.serving.fetch import fetch_json

    url = run.config().run.policy_url
    return url if fetch_json(f"{url}/health") is not None else None


def _of_run(run: RlRun) -> NamedPolicy:
    """With the run's base model and tools, and no weights yet."""
    from hermes.rl.supervise.engine_process import engine_options

    config = run.config()
    quantize = engine_options(config.tinker).quantize
    engine = ModelOptions(model=config.run.model, device=config.run.device, quantize=quantize)
    toolsets = None if config.run.toolsets is None else tuple(config.run.toolsets)
    service_run = run if config.run.service else None
    texts = config.env.texts or {}
    return NamedPolicy(run.run_id, engine, toolsets=toolsets, texts=texts, service_run=service_run)


def _priced(name: str, policy: NamedPolicy) -> str:
    """The name, which says so if a service samples the weights."""
    return name if policy.service_run is None else f"{name}{SERVICE_SUFFIX}"


def _run_of(config: Config, record: PolicyRecord) -> RlRun | None:
    """The run of `hermes rl` that made the policy, if it is still there."""
    from hermes.rl.run import RlRun

    run = RlRun(config.home, record.run_id or "")
    return run if record.run_id and run.status_path.is_file() else None


def _source_of(config: Config, record: PolicyRecord) -> WeightsSource:
    """The adapter of a policy: its copy in the home, else where it was trained."""
    from hermes.rl.weights.source import find_source, is_complete

    target = PolicyRegistry(config.home).folder / record.id
    assert record.weights is not None
    run = _run_of(config, record)
    service = run.config().run.service if run is not None else None
    paths = [path for path in (record.sampler, record.weights) if path is not None]
    sources = [find_source(config, path, base_url=service) for path in paths]
    source = next((source for source in sources if source.folder is not None), sources[-1])
    copy = target / "adapter"
    return replace(
        source,
        folder=copy if is_complete(copy) else source.folder,
        base_model=record.base_model,
        adapter_folder=copy,
        merged_folder=target / "merged",
        sampler=record.sampler,
    )
