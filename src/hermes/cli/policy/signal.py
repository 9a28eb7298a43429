"""The signal that options name: the tasks of a file with a grader, or an environment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.config.option import Options, option
from hermes.core import JSONObject
from hermes.errors import UsageError

if TYPE_CHECKING:
    from hermes.batch.tasks import Dataset
    from hermes.config.load import Config
    from hermes.models.base import ChatModel
    from hermes.policies.text.signal import TextSignal
    from hermes.policies.text.task_file import Grader

Prepare = Callable[[JSONObject], str]
"""Given what the scores depend on, opens the ledger for it; the name that its rollouts are recorded under."""


class SignalOptions(Options):
    """Tasks, the agent that works on them, and what scores it."""

    tasks: Path | None = option(
        None, "Tasks to score on, as for 'hermes batch'.", path="file", metavar="FILE"
    )
    env: str | None = option(
        None, "Environment to score on instead of a file of tasks.", metavar="NAME|FILE.py"
    )
    reward: str | None = option(None, "Scores answers to held-out tasks.", metavar="FILE.py:FUNCTION")
    judge: str | None = option(None, "Chat model that scores answers instead, from 1 to 5.", metavar="MODEL")
    reward_model: str | None = option(None, "Served reward model that scores answers instead.", metavar="URL")
    rubric: str | None = option(None, "What the judge is to look at.")
    model: str | None = option(
        None, "Model that works on the tasks; default: the current policy.", metavar="MODEL"
    )
    toolsets: str | None = option(None, "Toolsets of the agent; 'none' for no tools.", metavar="A,B")
    max_cost: float | None = option(None, "Most US dollars to spend on tasks.", gt=0)
    concurrency: int = option(8, "Rollouts at once.", ge=1)
    seed: int = option(0, "Seed of the adapter, of the order of rows, and of sampling.", ge=0)


def check_signal(options: SignalOptions) -> None:
    """UsageError if the options name no signal, or two."""
    rates = options.judge is not None or options.reward_model is not None
    if (options.tasks is None) == (options.env is None) and not (rates and options.tasks is None):
        raise UsageError(
            "this needs tasks to score on",
            "--tasks FILE or --env NAME, one of the two; or --judge MODEL for the questions of your ratings",
        )
    graders = [name for name in (options.reward, options.judge, options.reward_model) if name]
    if options.env is not None and graders:
        raise UsageError("an environment has a reward of its own", "leave the other one out")
    if len(graders) > 1:
        raise UsageError("one grader is enough", "--reward, --judge or --reward-model")


def check_price(config: Config, max_cost: float | None, model: ChatModel) -> None:
    from hermes.models.usage import price_of_model

    if max_cost is not None and price_of_model(config.settings, model) is None:
        raise UsageError(
            f"--max-cost cannot be kept: the price of {model.name} is unknown",
            f'state it in config.yaml, in US dollars per million tokens: prices: {{"{model.name}": '
            "{input: …, output: …}}",
        )


@asynccontextmanager
async def open_worker(
    config: Config, name: str | None, progress: Callable[[str], None]
) -> AsyncIterator[ChatModel]:
    """The model that works on the tasks. One of this machine answers at an engine: many rollouts at once."""
    from hermes.engine.server.options import ModelOptions
    from hermes.models.open import open_model
    from hermes.rl.weights.open import NamedPolicy, find_policy, is_bundled, open_policy
    from hermes.rl.weights.serve import served

    name = name or config.settings.model
    policy = find_policy(config, name, progress)
    if policy is None and is_bundled(name):
        policy = NamedPolicy(name, ModelOptions(model=name))
    async with AsyncExitStack() as stack:
        if policy is None:
            model = open_model(config, name, progress=progress)
        elif policy.provider or policy.url is not None:
            model = open_policy(config, policy, progress)
        else:
            url = stack.enter_context(served(config, policy, progress))
            model = open_model(config, policy.name, url, label=policy.name)
        stack.push_async_callback(model.close)
        yield model


@asynccontextmanager
async def open_signal(
    config: Config, options: SignalOptions, model: ChatModel, prepare: Prepare
) -> AsyncIterator[TextSignal]:
    if options.env is not None:
        async with open_environment(config, options.env, model) as signal:
            prepare({"signal": signal.name, "model": model.name})
            yield signal
        return
    from hermes.batch.start import parse_toolsets
    from hermes.policies.text.task_file import TaskFileSignal, read_tasks

    toolsets = parse_toolsets(options.toolsets)
    dataset = read_tasks(options.tasks) if options.tasks else _rated_tasks(config)
    async with _grader(config, options, dataset) as grader:
        conditions = {"signal": grader.name, "model": model.name, "tasks": dataset.digest}
        run = prepare({**conditions, "toolsets": options.toolsets})
        signal = TaskFileSignal(config, model, dataset, grader, run, toolsets, options.seed)
        try:
            yield signal
        finally:
            await signal.close()


def _rated_tasks(config: Config) -> Dataset:
    from hermes.config.paths import db_path
    from hermes.policies.text.rated import rated_tasks
    from hermes.store import Reader

    with Reader(db_path(config.home)) as reader:
        return rated_tasks(reader)


@asynccontextmanager
async def _grader(config: Config, options: SignalOptions, dataset: Dataset) -> AsyncIterator[Grader]:
    from hermes.policies.text.task_file import expected_grader, function_grader, rater_grader

    if options.reward is not None:
        yield function_grader(options.reward)
    elif options.judge is None and options.reward_model is None:
        yield expected_grader(dataset)
    else:
        from hermes.cli.rating.auto import open_rater
        from hermes.config.paths import db_path
        from hermes.store import Reader

        with Reader(db_path(config.home)) as reader:
            rater, model = open_rater(config, options.model_dump(), reader)
        try:
            yield rater_grader(rater)
        finally:
            if model is not None:
                await model.close()


@asynccontextmanager
async def open_environment(
    config: Config, name: str, model: ChatModel, argv: Sequence[str] = ()
) -> AsyncIterator[TextSignal]:
    from hermes.cli.env import load_environment, locate_environment
    from hermes.envs.cli.sample_grader import sample_settings
    from hermes.envs.modes import commandline
    from hermes.policies.text.environment import EnvironmentSignal

    cls = load_environment(locate_environment(name, ()))
    with sample_settings(cls, argv) as settings:
        env: Any
        env, _ = commandline.build(cls, commandline.parse(["evaluate", *settings]))
        try:
            yield await EnvironmentSignal.open(config, model, env)
        finally:
            await env.close()
