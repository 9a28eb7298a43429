"""`hermes improve --text …`: from options to a search for better texts, and its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.cli.policy.options import ImproveOptions
from hermes.cli.policy.signal import (
    Prepare,
    check_price,
    check_signal,
    open_environment,
    open_signal,
    open_worker,
)
from hermes.config.load import Config
from hermes.core import JSONObject, Message, Sampling
from hermes.core.texts import FILE, parse_names
from hermes.errors import UsageError
from hermes.models.base import ChatModel, ChatRequest
from hermes.training.policy_registry import BASE_ID, PolicyRecord, PolicyRegistry, named_policy

if TYPE_CHECKING:
    from hermes.policies.improve import Improvement
    from hermes.policies.text.proposals import Proposer
    from hermes.policies.text.signal import TextSignal

_PROBE = "Reply with the word OK."


def improve_text(options: ImproveOptions, progress: Callable[[str], None]) -> Improvement:
    """UsageError before anything is spent if something is missing."""
    from hermes.config.load import load

    _check(options)
    return asyncio.run(_improve(load(), options, progress))


def _check(options: ImproveOptions) -> None:
    assert options.text is not None
    names = parse_names(options.text)
    check_signal(options)
    if options.agent is not None:
        _check_agent(options, names)
    if (options.reflect_with is None) == (options.proposals is None):
        raise UsageError(
            "nobody proposes texts", "--reflect-with MODEL, or --proposals FILE with texts that you wrote"
        )
    if options.watch:
        raise UsageError("--watch waits for ratings, and --text learns from tasks", "leave one of them out")


def _check_agent(options: ImproveOptions, names: Sequence[str]) -> None:
    if options.tasks is None or options.reward is None:
        raise UsageError(
            "--agent works on tasks of a file, and tests score it", "--tasks FILE --reward TESTS.sh"
        )
    unfit = next((name for name in names if not name.startswith(FILE)), None)
    if unfit is not None:
        raise UsageError(
            f"--agent has its own {unfit}: of its texts only files are known", "--text file:AGENTS.md"
        )


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
    if options.then is not None:
        _check_then(config, options, current)
    names, toolsets = parse_names(options.text), parse_toolsets(options.toolsets)
    first = first_texts(config, names, current.texts, toolsets)
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(open_worker(config, _model_name(current), progress))
        reflecting = None
        if options.reflect_with is not None:
            reflecting = open_named(config, options.reflect_with)
            stack.push_async_callback(reflecting.close)
        for paid in filter(None, (model, reflecting)):
            check_price(config, options.max_cost, paid)
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

        def prepare(conditions: JSONObject) -> str:
            proposals = str(options.reflect_with or options.proposals)
            work.prepare({**conditions, "proposals": proposals, "eval_share": options.eval_share})
            return work.run

        open_tasks = _open_program if options.agent else open_signal
        async with open_tasks(config, options, model, prepare) as signal:
            split = prepare_split(signal.tasks, options.eval_share, error_rate)
            guard = guard_of(config, signal.tasks)
            proposer: Proposer
            if reflecting is None:
                assert options.proposals is not None
                proposer = ListedProposals.read(options.proposals, guard, options.seed)
            else:
                if not work.ledger.scores:  # it answered before the first of them
                    await _probe(reflecting)
                proposer = ReflectingModel(reflecting, work.ledger, guard)
            return await work.improve(signal, proposer, split)


@asynccontextmanager
async def _open_program(
    config: Config, options: ImproveOptions, model: ChatModel, prepare: Prepare
) -> AsyncIterator[TextSignal]:
    """The signal of a program of others: `hermes rl start --agent`, scored and not trained."""
    from hermes.policies.text.task_file import read_tasks

    assert options.agent and options.tasks and options.reward
    digest = read_tasks(options.tasks).digest
    path, colon, function = options.reward.rpartition(":")
    reward = f"{Path(path).absolute()}:{function}" if colon else str(Path(options.reward).absolute())
    # What a program that crashes has left is scored: its text may be the reason.
    values = {
        "agent": options.agent,
        "dataset_name": str(options.tasks.absolute()),
        "reward": reward,
        "eval_share": str(options.eval_share),
        "agent_crash": "score",
        **({"agent_setup": options.agent_setup} if options.agent_setup else {}),
    }
    argv = [word for name, value in values.items() for word in (f"--env.{name}", value)]
    async with open_environment(config, "program", model, argv) as signal:
        conditions = {"signal": signal.name, "model": model.name, "tasks": digest}
        prepare({**conditions, "agent": options.agent, "reward": reward, "setup": options.agent_setup})
        yield signal


def _check_then(config: Config, options: ImproveOptions, current: PolicyRecord) -> None:
    from hermes.policies.improve import check_ready

    if current.base_model != options.base_model:
        raise UsageError(
            f"--then trains {options.base_model}, and the texts are those of {current.base_model}",
            f"--base-model {current.base_model}, if its weights are yours to train; else leave --then out",
        )
    check_ready(config, options.model_copy(update={"method": options.then}))


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


async def _probe(model: ChatModel) -> None:
    """ProviderError now, if the model refuses, and not after the first rollouts were paid."""
    await model.complete(ChatRequest((Message.user(_PROBE),), sampling=Sampling(max_tokens=16)))
