"""`hermes improve --text …`: from options to a search for better texts, and its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from hermes.config.load import Config
from hermes.core import Message, Sampling
from hermes.core.texts import parse_names
from hermes.errors import UsageError
from hermes.models.base import ChatModel, ChatRequest
from hermes.training.policy_registry import BASE_ID, PolicyRecord, PolicyRegistry, named_policy

if TYPE_CHECKING:
    from hermes.batch.tasks import Dataset
    from hermes.cli.policy.options import ImproveOptions
    from hermes.policies.improve import Improvement
    from hermes.policies.text.improve import TextImprovement
    from hermes.policies.text.proposals import Proposer
    from hermes.policies.text.signal import TextSignal
    from hermes.policies.text.task_file import Grader

_PROBE = "Reply with the word OK."
_PROBE_TOKENS = 16


def improve_text(options: ImproveOptions, progress: Callable[[str], None]) -> Improvement:
    """UsageError before anything is spent if something is missing."""
    from hermes.config.load import load

    _check(options)
    return asyncio.run(_improve(load(), options, progress))


def _check(options: ImproveOptions) -> None:
    assert options.text is not None
    parse_names(options.text)
    if (options.tasks is None) == (options.env is None):
        raise UsageError("--text needs tasks to improve on", "--tasks FILE or --env NAME, one of the two")
    if (options.reflect_with is None) == (options.proposals is None):
        raise UsageError(
            "nobody proposes texts", "--reflect-with MODEL, or --proposals FILE with texts that you wrote"
        )
    if options.watch:
        raise UsageError("--watch waits for ratings, and --text learns from tasks", "leave one of them out")
    if options.env is not None and (options.reward or options.judge or options.reward_model):
        raise UsageError("an environment has a reward of its own", "leave the other one out")


async def _improve(config: Config, options: ImproveOptions, progress: Callable[[str], None]) -> Improvement:
    from hermes.batch.start import parse_toolsets
    from hermes.policies.text.improve import (
        TextImprovement,
        error_rate_now,
        first_texts,
        guard_of,
        prepare_split,
    )
    from hermes.policies.text.ledger import Spending
    from hermes.policies.text.proposals import ListedProposals, ReflectingModel
    from hermes.rl.weights.open import open_named

    assert options.text is not None
    registry = PolicyRegistry(config.home)
    current = _current(config, registry, options.model)
    names, toolsets = parse_names(options.text), parse_toolsets(options.toolsets)
    first = first_texts(config, names, current.texts, toolsets)
    model = open_named(config, _model_name(current), progress=progress)
    reflecting = open_named(config, options.reflect_with) if options.reflect_with else None
    try:
        for paid in filter(None, (model, reflecting)):
            _check_price(config, options.max_cost, paid.name)
        error_rate = error_rate_now(registry, current, options.error_rate)
        work = TextImprovement(
            config,
            names,
            current,
            first,
            error_rate,
            options.seed,
            Spending(options.max_calls, options.max_cost),
            options.concurrency,
            progress,
        )
        async with _signal(config, options, model, work, toolsets) as signal:
            split = prepare_split(signal.tasks, options.eval_share, error_rate)
            guard = guard_of(config, signal.tasks)
            proposer: Proposer
            if reflecting is None:
                assert options.proposals is not None
                proposer = ListedProposals.read(options.proposals, guard, options.seed)
            else:
                await _probe(reflecting)
                proposer = ReflectingModel(reflecting, work.ledger, guard)
            return await work.improve(signal, proposer, split)
    finally:
        await model.close()
        if reflecting is not None:
            await reflecting.close()


def _current(config: Config, registry: PolicyRegistry, model: str | None) -> PolicyRecord:
    """The policy whose texts are improved; a model by itself is the base of its own first policy."""
    if model is None and (current := registry.current()).id != BASE_ID:
        return current
    name = model or config.settings.model
    record = named_policy(config.home, name)
    if record is not None:
        return record
    current = registry.current(name)
    return current if current.base_model == name else PolicyRecord(BASE_ID, name, None, None)


def _model_name(current: PolicyRecord) -> str:
    return current.base_model if current.id == BASE_ID else f"policy:{current.id}"


def _check_price(config: Config, max_cost: float | None, model: str) -> None:
    from hermes.models.usage import price_of

    if max_cost is not None and price_of(config.settings, model) is None:
        raise UsageError(
            f"--max-cost cannot be kept: the price of {model} is unknown",
            f'state it in config.yaml, in US dollars per million tokens: prices: {{"{model}": '
            "{input: …, output: …}}",
        )


async def _probe(model: ChatModel) -> None:
    """ProviderError now, if the model refuses, and not after the first rollouts were paid."""
    await model.complete(ChatRequest((Message.user(_PROBE),), sampling=Sampling(max_tokens=_PROBE_TOKENS)))


@asynccontextmanager
async def _signal(
    config: Config,
    options: ImproveOptions,
    model: ChatModel,
    work: TextImprovement,
    toolsets: tuple[str, ...] | None,
) -> AsyncIterator[TextSignal]:
    """The signal that the options name; opens the improvement's folder under its conditions."""
    conditions: dict[str, Any] = {
        "model": model.name,
        "policy": work.current.id,
        "attempt": work.error_rate,
        "proposals": str(options.reflect_with or options.proposals),
        "toolsets": options.toolsets,
        "eval_share": options.eval_share,
    }
    if options.env is not None:
        async with _environment(config, options.env, model) as signal:
            work.prepare({**conditions, "signal": signal.name})
            yield signal
        return
    from hermes.policies.text.task_file import TaskFileSignal, read_tasks

    assert options.tasks is not None
    dataset = read_tasks(options.tasks)
    async with _grader(config, options, dataset) as grader:
        work.prepare({**conditions, "signal": grader.name, "tasks": dataset.digest})
        signal = TaskFileSignal(config, model, dataset, grader, work.run, toolsets, options.seed)
        try:
            yield signal
        finally:
            await signal.close()


@asynccontextmanager
async def _grader(config: Config, options: ImproveOptions, dataset: Dataset) -> AsyncIterator[Grader]:
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
async def _environment(config: Config, name: str, model: ChatModel) -> AsyncIterator[TextSignal]:
    from hermes.cli.env import load_environment, locate_environment
    from hermes.envs.cli.sample_grader import sample_settings
    from hermes.envs.modes import commandline
    from hermes.policies.text.environment import EnvironmentSignal

    cls = load_environment(locate_environment(name, ()))
    with sample_settings(cls, ()) as settings:
        env: Any
        env, _ = commandline.build(cls, commandline.parse(["evaluate", *settings]))
        signal = await EnvironmentSignal.open(config, model, env)
        try:
            yield signal
        finally:
            await signal.close()
