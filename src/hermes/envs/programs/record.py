"""The record of a program's rollout: its trajectories in the store, its training sequences, its counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.config import paths
from hermes.core import Boundary, Header, JSONObject, Outcome, Relation, Source, StopReason
from hermes.core.history import Echo
from hermes.core.outcome import COMPLETED
from hermes.core.texts import FILE, hashes
from hermes.envs.agent.result import AgentResult, read_result
from hermes.envs.agent.rollout import RolloutContext, RolloutSpec
from hermes.envs.agent.sequences import Exactness, build_sequences
from hermes.gateway.journal import Recording
from hermes.gateway.settle import records
from hermes.models.usage import price_of
from hermes.store import Reader, Record

if TYPE_CHECKING:
    from hermes.envs.programs.launch import Program
    from hermes.errors import HermesError
    from hermes.gateway.sampled import SampledCall, SampledRollout
    from hermes.sandbox.base import CommandResult

SIDE, FORCED = "side", "forced"
"""Why sampled tokens are not trained on."""
_TAIL_CHARS = 2_000
"""How much of the program's output its trajectory keeps."""


@dataclass(frozen=True)
class ProgramSettings:
    """How the rollouts of an environment run their program."""

    program: Program
    timeout_s: float
    max_calls: int
    setup: str | None = None
    """A command that prepares the workspace before the program starts."""
    train_model: str = ""
    """Only calls that name this model are the policy's; empty: all calls are."""
    train_side: bool = False
    """Whether calls beside the task (titles, summaries) are trained on."""
    takes_reward: bool = False
    scores_crashes: bool = False
    """Whether a program that ended with an error is scored by what it left."""


@dataclass(frozen=True, slots=True)
class EndedProgram:
    """A program that has ended, with everything that it started."""

    result: CommandResult
    rollout: SampledRollout


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """Counts of a rollout's model calls and tokens, by what became of them."""

    calls: int
    calls_to_others: int
    """Calls that other models answered."""
    sequences: int
    calls_cancelled: int
    """The program hung up before the answer was sampled."""
    calls_refused: int
    """They came after the last one that was allowed."""
    tokens_sampled: int
    tokens_trained: int
    tokens_side: int
    """Sampled and not trained, because their call is beside the task."""
    tokens_forced: int
    """Sampled and not trained, because the program asked for another distribution."""
    answers_equal: int
    """They came back as they were sampled."""
    answers_rewritten: int
    answers_edited: int
    answers_foreign: int
    """Assistant messages that the policy never wrote."""


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """Facts about the program of a rollout, kept in the metadata of its trajectory."""

    exit_code: int
    duration_s: float
    output: str
    """The end of it."""
    first_prompt_tokens: int
    context_tokens: int | None
    program_reward: float | None
    counts: RolloutCounts

    def to_json(self) -> JSONObject:
        """Flat, so that trajectories can be filtered by each of them."""
        facts = asdict(self)
        return {**facts.pop("counts"), **facts}

    @classmethod
    def from_json(cls, metadata: JSONObject) -> RolloutFacts:
        counts = RolloutCounts(**{name: metadata[name] for name in RolloutCounts.__slots__})
        names = [name for name in cls.__slots__ if name != "counts"]
        return cls(**{name: metadata[name] for name in names}, counts=counts)


def write_rollout(
    context: RolloutContext,
    spec: RolloutSpec,
    settings: ProgramSettings,
    recorded: Path | None,
    ended: EndedProgram,
    fault: HermesError | None,
) -> AgentResult | None:
    """Writes the rollout's trajectories; the main one's result, or None if the model was never called.

    `recorded` is the closed journal of its calls, which is deleted. `fault`: why there is no reward.
    """
    rollout = ended.rollout
    if recorded is None or not rollout.calls:
        if recorded is not None:
            recorded.unlink()
        return None
    recording = Recording(recorded)
    model_calls = {call.id: call.reply.call for call in rollout.calls}
    config = context.config
    with Reader(paths.db_path(config.home)) as reader:
        written = list(records(recording, reader, lambda name: price_of(config.settings, name), model_calls))
    trained = trained_calls(rollout.calls, settings.train_side)
    exactness = build_sequences(call.reply.call for call in trained)
    exactness = replace(exactness, dropped_tokens=_dropped_tokens(rollout.calls, trained))
    if not trained and (names := sorted({name for call in rollout.calls for name in call.not_honoured})):
        exactness = replace(exactness, inexact=f"its model calls force their answers ({', '.join(names)})")
    main = min(range(len(written)), key=lambda index: _distance_from_task(written[index]))
    for index, record in enumerate(written):
        trajectory = record.trajectory
        header = _header(trajectory.header, context, spec, settings.program)
        outcome = trajectory.outcome
        if index == main:
            facts = _facts(ended, exactness)
            header = replace(header, metadata={**header.metadata, **facts.to_json()})
            outcome = _outcome(ended, fault)
        written[index] = replace(record, trajectory=replace(trajectory, header=header, outcome=outcome))
        context.writer.restore(written[index]).result()
    recording.delete()
    result = read_result(written[main].trajectory)
    return replace(result, turns_used=len(rollout.calls), exactness=exactness)


def _outcome(ended: EndedProgram, fault: HermesError | None) -> Outcome:
    """How the main trajectory ended: as the program did, and not as its last answer."""
    if ended.result.timed_out:
        return Outcome(StopReason.TIMEOUT, Boundary.LIMIT, detail=fault.message if fault else None)
    if fault is not None:
        return Outcome(StopReason.ERROR, Boundary.HOST, type(fault).__name__, fault.message)
    if ended.rollout.refused:
        return Outcome(StopReason.MAX_TURNS, Boundary.LIMIT)
    return COMPLETED


def _distance_from_task(record: Record) -> int:
    """The smaller, the more this is the conversation in which the policy does the task."""
    trajectory = record.trajectory
    is_beside = trajectory.header.relation in (Relation.SIDE, Relation.DELEGATE)
    has_tokens = any(step.call and step.call.tokens for step in trajectory.steps)
    return 2 * is_beside + (not has_tokens)


def _header(header: Header, context: RolloutContext, spec: RolloutSpec, program: Program) -> Header:
    """The header of a recorded conversation as a rollout's."""
    files = {name: text for name, text in context.config.texts.items() if name.startswith(FILE)}
    texts = {**header.config.get("texts", {}), **hashes(files)}
    return replace(
        header,
        source=Source.ENV,
        session_id=None,
        run_id=context.run_id,
        task_id=spec.task_id,
        sample_index=spec.sample_index,
        config={**header.config, **({"texts": texts} if texts else {})},
        metadata={
            **header.metadata,
            "agent": program.agent,
            "environment": context.name,
            **spec.metadata,
        },
    )


def trained_calls(calls: Sequence[SampledCall], train_side: bool) -> list[SampledCall]:
    """The policy's calls that are trained on: not those beside the task, nor of another distribution."""
    own_calls = [call for call in calls if not call.other_model]
    has_tools = any(call.offers_tools for call in own_calls)
    return [
        call
        for call in own_calls
        if not call.not_honoured and (train_side or call.offers_tools or not has_tools)
    ]


def _dropped_tokens(calls: Sequence[SampledCall], trained: Sequence[SampledCall]) -> dict[str, int]:
    """The sampled tokens of the policy's calls that are not trained on, by reason."""
    trained_ids = {call.id for call in trained}
    dropped = {FORCED: 0, SIDE: 0}
    for call in calls:
        trace = call.reply.call.tokens
        if trace and not call.other_model and call.id not in trained_ids:
            dropped[FORCED if call.not_honoured else SIDE] += len(trace.sampled_ids)
    return dropped


def _facts(ended: EndedProgram, exactness: Exactness) -> RolloutFacts:
    rollout = ended.rollout
    own_calls = [call.reply.call for call in rollout.calls if not call.other_model]
    traces = [call.tokens for call in own_calls]
    echoes = rollout.tokens.echoes if rollout.tokens else None
    answers = {echo: echoes.counts[echo] if echoes else 0 for echo in Echo}
    first = (own_calls or [call.reply.call for call in rollout.calls])[0]
    return RolloutFacts(
        exit_code=ended.result.exit_code,
        duration_s=round(ended.result.duration_ms / 1000, 3),
        output=ended.result.output[-_TAIL_CHARS:],
        first_prompt_tokens=len(first.tokens.prompt_ids) if first.tokens else first.usage.prompt,
        context_tokens=rollout.tokens.context_tokens if rollout.tokens else None,
        program_reward=rollout.reward,
        counts=RolloutCounts(
            calls=len(rollout.calls),
            calls_to_others=sum(bool(call.other_model) for call in rollout.calls),
            sequences=len(exactness.sequences),
            tokens_sampled=sum(len(trace.sampled_ids) for trace in traces if trace),
            tokens_trained=sum(sum(sequence.loss_mask) for sequence in exactness.sequences),
            tokens_side=exactness.dropped_tokens[SIDE],
            tokens_forced=exactness.dropped_tokens[FORCED],
            calls_cancelled=rollout.cancelled,
            calls_refused=rollout.refused,
            answers_equal=answers[Echo.EQUAL],
            answers_rewritten=answers[Echo.REWRITTEN],
            answers_edited=answers[Echo.EDITED],
            answers_foreign=echoes.foreign if echoes else 0,
        ),
    )
