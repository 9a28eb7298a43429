"""One sample, from its row to its journal entry: run the agent, score, filter, describe."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from hermes.agent.build import RolloutPlan, new_header, open_agent, prepare_opening
from hermes.agent.examples import examples_for
from hermes.agent.loop import AgentLoop
from hermes.agent.toolset_choice import choose_toolsets
from hermes.batch.attempt import EarlierAttempt, effort, find_attempt
from hermes.batch.journal import SampleEntry, SampleState
from hermes.batch.plan import SampleKey
from hermes.batch.reward import GraderError, RewardFunction, score
from hermes.batch.spec import Filters, RunSpec
from hermes.batch.tasks import TaskRow
from hermes.batch.trial import Trial, Trials
from hermes.config.load import Config
from hermes.core import (
    JSONObject,
    Message,
    Relation,
    Reward,
    Role,
    Sampling,
    Source,
    Step,
    StopReason,
    ToolErrorKind,
    Trajectory,
    canonical_json,
    content_hash,
)
from hermes.core.clock import now_ms
from hermes.data.example import unseen_thinking
from hermes.data.formats import sharegpt
from hermes.models.base import ChatModel
from hermes.sandbox.base import Sandbox, end_processes
from hermes.store import Reader, Writer
from hermes.tools.distributions import sample as draw_toolsets


@dataclass(frozen=True)
class WorkerContext:
    """The objects that all samples of one worker share."""

    spec: RunSpec
    config: Config
    model: ChatModel
    writer: Writer
    reader: Reader
    rewards: Mapping[str, RewardFunction]
    """By reference, as the specification and the rows name them."""
    trials: Trials | None = None
    """Opens and scores the rows; None: they run in the configured sandbox."""

    def grader_of(self, row: TaskRow) -> str | None:
        """The name of the function or the trials that score the row; None: nothing does."""
        return self.trials.name if self.trials is not None else row.reward or self.spec.reward


async def run_sample(context: WorkerContext, row: TaskRow, sample: int) -> SampleEntry:
    """Runs one sample; its entry is terminal, or failed if infrastructure failed.

    A sample that was interrupted goes on from its recorded steps, or is taken over if it had ended.
    """
    started = time.monotonic()
    earlier = await find_attempt(context.reader, context.spec, SampleKey(row.key, sample))
    if earlier is not None and (entry := _take_over(context, row, sample, earlier)) is not None:
        return entry
    async with AsyncExitStack() as stack:
        trial = None
        if context.trials is not None:
            trial = await stack.enter_async_context(context.trials.open(row))
        return await _run(context, row, sample, earlier, trial, started)


async def _run(
    context: WorkerContext,
    row: TaskRow,
    sample: int,
    earlier: EarlierAttempt | None,
    trial: Trial | None,
    started: float,
) -> SampleEntry:
    plan = _plan(context, row, sample, trial)
    config = _config(context, row, trial)
    header = replace(
        new_header(Source.BATCH, context.model),
        run_id=context.spec.name,
        task_id=row.key,
        sample_index=sample,
        config={"run": context.spec.id, "distribution": context.spec.distribution, "seed": context.spec.seed},
        metadata=row.metadata,
        parent_id=earlier.header.id if earlier else None,
        relation=Relation.CONTINUED if earlier else None,
    )
    steps: list[Step] = []
    async with open_agent(config, context.writer, context.model, header, plan) as loop:
        loop.recorded = earlier.recorded_steps(loop.recorder.header) if earlier else None
        _prepare(context, config, loop, plan, row)
        for number, prompt in enumerate(row.prompts, 1):
            steps += [step async for step in loop.turn(Message.user(prompt))]
            if loop.outcome is None or loop.outcome.stop_reason is not StopReason.COMPLETED:
                break
            if trial is not None and number < len(row.prompts):
                await end_processes(loop.bench.sandbox, loop.bench.processes.values())
                if not await trial.next_prompt():
                    break
        trajectory = Trajectory(loop.recorder.header, steps, loop.outcome)
        reward, reward_error = await _reward(context, row, trajectory, loop, trial)
        schemas = [tool.schema for tool in loop.tools]
        used_toolsets = {tool.toolset for tool in loop.tools}
    facts: JSONObject = {"duration_s": round(time.monotonic() - started, 3), "latency_ms": _latencies(steps)}
    facts["toolsets"] = [name for name in plan.toolsets if name in used_toolsets]
    entry = _entry(context, row, sample, trajectory, schemas, reward, reward_error, facts)
    return replace(entry, effort=effort(trajectory, earlier, loop.recorded))


def _take_over(
    context: WorkerContext, row: TaskRow, sample: int, earlier: EarlierAttempt
) -> SampleEntry | None:
    """The entry of an attempt that had ended; None if it had not, or has yet to be scored."""
    reference = context.grader_of(row)
    rewards = [reward.value for reward in earlier.record.rewards if reward.source == reference]
    if not earlier.final or (reference is not None and not rewards):
        return None
    trajectory = earlier.record.trajectory
    ended_at_ms = earlier.record.finished_at_ms or trajectory.header.created_at_ms
    facts: JSONObject = {
        "duration_s": (ended_at_ms - trajectory.header.created_at_ms) / 1000,
        "latency_ms": _latencies(trajectory.steps),
        "toolsets": trajectory.header.config["toolsets"],
    }
    schemas = next((model_input.tools for model_input in earlier.record.inputs.values()), ())
    reward = rewards[-1] if rewards else None
    entry = _entry(context, row, sample, trajectory, schemas, reward, None, facts)
    used = {"replayed_calls": trajectory.turns, "repeated_calls": 0, "paid_usd": earlier.paid_usd}
    return replace(entry, effort=used)


def _suited(context: WorkerContext) -> str:
    """The model whose tools and examples suit the run's."""
    return context.spec.base_model or context.model.name


def choose_sample_toolsets(context: WorkerContext, row: TaskRow, sample: int) -> tuple[str, ...]:
    """Drawn from the distribution, deterministically by (seed, row, sample); or the run's toolsets."""
    spec = context.spec
    if spec.distribution is not None:
        return draw_toolsets(
            spec.distribution,
            seed_parts=(spec.seed or 0, row.key, sample),
            configured=context.config.settings.distributions,
            without=spec.missing_toolsets,
        )
    names = [name for name in spec.toolsets or () if name not in spec.missing_toolsets]
    return choose_toolsets(
        context.config, _suited(context), ",".join(names) if names else None, unattended=True
    )


def _plan(context: WorkerContext, row: TaskRow, sample: int, trial: Trial | None) -> RolloutPlan:
    toolsets = choose_sample_toolsets(context, row, sample)
    sampling = Sampling(**context.config.settings.sampling.model_dump())
    if context.spec.seed is not None:
        digest = hashlib.blake2b(f"{context.spec.seed}/{row.key}/{sample}".encode(), digest_size=4).digest()
        sampling = replace(sampling, seed=int.from_bytes(digest, "big") >> 1)
    return RolloutPlan(
        toolsets=toolsets,
        require_tools=context.spec.distribution is not None or bool(context.spec.toolsets),
        examples=examples_for(_suited(context), toolsets),
        sampling=sampling,
        files={path: text.encode("utf-8", "surrogatepass") for path, text in row.files.items()},
        directory=row.cwd,
        workspace_name=f"hermes-{content_hash(canonical_json([context.spec.id, row.key, sample]))[:16]}",
        open_sandbox=None if trial is None else trial.open_sandbox,
    )


def _config(context: WorkerContext, row: TaskRow, trial: Trial | None) -> Config:
    """The configuration of one row: a row with an image runs in a container of that image, and a trial has
    the time of its task, or that of the run if that is less."""
    config = context.config
    if trial is not None:
        timeout_s = min(trial.timeout_s, context.spec.settings.get("limits.timeout_s", trial.timeout_s))
        limits = config.settings.limits.model_copy(update={"timeout_s": timeout_s})
        return replace(config, settings=config.settings.model_copy(update={"limits": limits}))
    if row.image is None:
        return config
    sandbox = config.settings.sandbox.model_copy(update={"backend": "docker", "image": row.image})
    return replace(config, settings=config.settings.model_copy(update={"sandbox": sandbox}))


def _prepare(
    context: WorkerContext, config: Config, loop: AgentLoop, plan: RolloutPlan, row: TaskRow
) -> None:
    if context.spec.system_prompt is not None:
        loop.prepare(Message.system(context.spec.system_prompt), ephemeral=True)
    elif not any(message.role == "system" for message in row.history):
        prepare_opening(config, loop, plan)
    for data in context.spec.prefill:
        loop.prepare(Message.from_json(data), ephemeral=True)
    for message in row.history:
        loop.prepare(message)


async def _reward(
    context: WorkerContext, row: TaskRow, trajectory: Trajectory, loop: AgentLoop, trial: Trial | None
) -> tuple[float | None, str | None]:
    """(reward, None), (None, the grader's error), or (None, None) if there is nothing to score."""
    reference = context.grader_of(row)
    if reference is None or trajectory.outcome is None or trajectory.outcome.infrastructure:
        return None, None

    async def sandbox() -> Sandbox:
        await end_processes(loop.bench.sandbox, loop.bench.processes.values())
        return loop.bench.sandbox

    detail: JSONObject = {}
    try:
        if trial is not None:
            await sandbox()
            value, detail = await trial.reward()
        else:
            value = await score(context.rewards[reference], row, trajectory, sandbox)
    except GraderError as error:
        return None, error.message
    context.writer.add_reward(Reward(trajectory.header.id, value, reference, detail, now_ms()))
    return value, None


def _entry(
    context: WorkerContext,
    row: TaskRow,
    sample: int,
    trajectory: Trajectory,
    schemas: Sequence[JSONObject],
    reward: float | None,
    reward_error: str | None,
    facts: JSONObject,
) -> SampleEntry:
    outcome = trajectory.outcome
    assert outcome is not None
    if outcome.infrastructure:
        failure: JSONObject = {
            "trajectory_id": trajectory.header.id,
            "outcome": outcome.to_json(),
            "usage": trajectory.usage.to_json(),
            "cost_usd": trajectory.cost_usd,
            **facts,
        }
        cause = outcome.error_type or outcome.stop_reason.value
        return SampleEntry(row.key, sample, SampleState.FAILED, failure, f"{cause}: {outcome.detail}")
    data = sharegpt.to_row(trajectory, schemas, reward=reward)
    data = {name: value for name, value in data.items() if name not in ("parent_id", "relation")}
    data |= {"key": row.key, "sample": sample, **facts}
    data["thinking_shown"] = not unseen_thinking(context.reader, trajectory)
    if reward_error is not None:
        data["reward_error"] = reward_error
    reason = filter_reason(trajectory, reward, context.spec.filters)
    return SampleEntry(row.key, sample, SampleState.FILTERED if reason else SampleState.DONE, data, reason)


def _latencies(steps: Sequence[Step]) -> list[float]:
    return [round(step.call.latency_ms, 1) for step in steps if step.call]


def filter_reason(trajectory: Trajectory, reward: float | None, filters: Filters) -> str | None:
    """The first filter that removes the trajectory, as text; None if it stays."""
    completed = trajectory.outcome is not None and trajectory.outcome.stop_reason is StopReason.COMPLETED
    if filters.only_completed and not completed:
        return (
            f"not completed: {trajectory.outcome.stop_reason.value}"
            if trajectory.outcome
            else "not completed"
        )
    answers = [message for message in trajectory.messages if message.role is Role.ASSISTANT]
    if filters.require_reasoning and not any(message.reasoning for message in answers):
        return "no reasoning"
    if filters.drop_unknown_tools and any(
        step.result and step.result.error_kind is ToolErrorKind.UNKNOWN_TOOL for step in trajectory.steps
    ):
        return "called a tool that does not exist"
    if filters.min_turns is not None and trajectory.turns < filters.min_turns:
        return f"fewer than {filters.min_turns} turns"
    if filters.max_turns is not None and trajectory.turns > filters.max_turns:
        return f"more than {filters.max_turns} turns"
    if filters.min_reward is not None and (reward is None or reward < filters.min_reward):
        return f"reward under {filters.min_reward:g}"
    return None
