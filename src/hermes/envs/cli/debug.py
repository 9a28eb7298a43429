"""`hermes env debug`: one task of an agent environment, played once, with everything that training sees.

The author's `gold` turns, silence or one of the `exploits` play without a model and leave nothing behind; a
model plays through the servers of the settings, and its rollout is recorded like any other. The report has
the task, the prompt, the tools, every step, the parts of the reward, and for token-exact rollouts the tokens
with their loss mask. Environments that are not agent environments have no steps to show; `hermes env process`
writes their groups.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from hermes.core import JSONObject, Message, Step, StepKind
from hermes.core.sequence import TrainSequence
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.agent.rollout import ScoredRollout
from hermes.envs.base import BaseEnv
from hermes.envs.cli.sample_grader import ScriptedPolicy, sample_settings
from hermes.envs.modes import commandline
from hermes.errors import UsageError

GOLD, SILENCE, MODEL = "gold", "silence", "model"
_SERVER_OPTIONS = ("--openai.", "--config")
_LOCAL_MODEL = "--openai.base_url local --openai.model_name hermes/smollm2"
_TEXT_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class TokenSegment:
    """Neighbouring tokens of a sequence with the same loss mask."""

    in_loss: bool
    tokens: int
    text: str
    mean_logprob: float | None
    """None where nothing was sampled."""


@dataclass(frozen=True, slots=True)
class DebugReport:
    environment: str
    number: int
    """The number of the task, from 1."""
    task: Any
    player: str
    rollout: ScoredRollout
    tools: tuple[str, ...]
    """Names of those that were offered; empty if a model played."""
    sequences: tuple[tuple[TokenSegment, ...], ...]
    recorded: bool

    def to_json(self) -> JSONObject:
        result, reward = self.rollout.result, self.rollout.reward
        return {
            "environment": self.environment,
            "task_number": self.number,
            "task": json.loads(json.dumps(self.task, default=repr)),
            "player": self.player,
            "tools": list(self.tools),
            "messages": result.messages,
            "outcome": result.outcome.stop_reason.value,
            "reward": reward.value,
            "reward_parts": dict(reward.parts),
            "reward_detail": reward.detail,
            "sequences": [[asdict(segment) for segment in sequence] for sequence in self.sequences],
            "not_trainable": result.exactness.inexact,
            "trajectory": result.trajectory.header.id if self.recorded else None,
        }


def debug_class(
    load: Callable[[], type[BaseEnv]], argv: Sequence[str], *, number: int = 1, player: str | None = None
) -> DebugReport:
    """Plays task `number`; `argv` are the environment's settings, as for `process`.

    `player`: gold, silence, model or the name of an exploit. None: a model if the settings name a server,
    else gold, else silence.
    """
    cls = load()
    with sample_settings(cls, argv) as settings, ExitStack() as stack:
        env, _ = commandline.build(cls, commandline.parse(["evaluate", *settings]))
        if not isinstance(env, HermesAgentBaseEnv):
            raise UsageError(
                f"{env.display_name} is not an agent environment: it has no steps to show",
                "'hermes env process' writes its groups, with tokens and masks",
            )
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hermes-debug-")))
        return asyncio.run(_debug(env, argv, number, player, home))


async def _debug(
    env: HermesAgentBaseEnv, argv: Sequence[str], number: int, player: str | None, home: Path
) -> DebugReport:
    try:
        await env.setup()
        item = None
        for _ in range(number):
            item = await env.get_next_item()
        if item is None:
            raise UsageError(f"{env.display_name} has no task {number}", "name a smaller one with --task")
        chosen = player or _default_player(env, argv)
        policy = ScriptedPolicy()
        if chosen != MODEL:
            policy.turns = tuple(_turns(env, item, chosen))
            env.rehearse(policy, home)
        rollout = await env.run_item(item)
        return DebugReport(
            env.display_name,
            number,
            item,
            chosen,
            rollout,
            tuple(str(tool.get("function", tool).get("name")) for tool in policy.offered),
            tuple(_segments(env, sequence) for sequence in rollout.result.sequences),
            recorded=chosen == MODEL,
        )
    finally:
        await env.close()


def _default_player(env: HermesAgentBaseEnv, argv: Sequence[str]) -> str:
    if any(argument.startswith(_SERVER_OPTIONS) for argument in argv):
        return MODEL
    return GOLD if hasattr(env, "gold") else SILENCE


def _turns(env: HermesAgentBaseEnv, item: Any, player: str) -> Sequence[Message]:
    """The script of a player that is no model."""
    if player == SILENCE:
        return (Message.assistant(""),)
    if player == GOLD:
        gold: Callable[[Any], Sequence[Message]] | None = getattr(env, "gold", None)
        if gold is None:
            raise UsageError(f"{env.display_name} has no gold(item)", "--play silence, or --play model")
        return gold(item)
    exploits = env.exploits(item) if hasattr(env, "exploits") else {}
    if player not in exploits:
        names = ", ".join((GOLD, SILENCE, MODEL, *exploits))
        raise UsageError(f"nobody called '{player}' can play {env.display_name}", f"--play one of: {names}")
    turns: Sequence[Message] = exploits[player]
    return turns


def _segments(env: HermesAgentBaseEnv, sequence: TrainSequence) -> tuple[TokenSegment, ...]:
    segments, begin = [], 0
    for in_loss, run in groupby(sequence.loss_mask):
        end = begin + len(list(run))
        logprobs = sequence.logprobs[begin:end]
        text = env.tokenizer.decode(list(sequence.tokens[begin:end]), skip_special_tokens=False)
        mean = sum(logprobs) / len(logprobs) if in_loss else None
        segments.append(TokenSegment(in_loss, end - begin, str(text), mean))
        begin = end
    return tuple(segments)


def debug_blocks(report: DebugReport) -> Iterator[tuple[str, str]]:
    """The report for a terminal: heading and text of each block, in the order of the rollout."""
    result = report.rollout.result
    task = json.dumps(report.task, ensure_ascii=False, indent=2, default=repr)
    yield f"task {report.number} of {report.environment}, played by {report.player}", _clipped(task)
    if report.tools:
        yield "tools", ", ".join(report.tools)
    for step in result.trajectory.steps:
        yield _step_block(step)
    outcome = result.outcome
    yield f"ended: {outcome.stop_reason.value}", outcome.detail or ""
    reward = report.rollout.reward
    parts = "\n".join(f"{name:20} {value:g}" for name, value in reward.parts.items())
    yield f"reward {reward.value:g}", "\n".join(text for text in (parts, reward.detail) if text)
    yield from _token_blocks(report)


def _step_block(step: Step) -> tuple[str, str]:
    message = step.message
    lines = [f"(thinking) {message.reasoning}"] if message.reasoning else []
    lines += [message.content] if message.content else []
    lines += [f"call {call.name} {call.arguments}" for call in message.tool_calls]
    heading = f"step {step.index}: {message.role.value}"
    if step.kind is StepKind.INPUT and step.ephemeral:
        heading += ", an example: not part of the data"
    if step.call is not None:
        usage = step.call.usage
        heading += f"  finish {step.call.finish_reason}, {usage.total} tokens"
    if step.result is not None:
        state = "ok" if step.result.ok else f"failed: {step.result.error_kind}"
        heading += f" {step.result.name}  {state}, {step.result.duration_ms:.0f} ms"
    return heading, _clipped("\n".join(lines))


def _token_blocks(report: DebugReport) -> Iterator[tuple[str, str]]:
    if not report.sequences:
        reason = report.rollout.result.exactness.inexact or ""
        hint = "" if report.recorded else f"; a model samples tokens: {_LOCAL_MODEL}"
        yield "tokens: none to train on", f"{reason}{hint}"
    for number, sequence in enumerate(report.sequences, 1):
        total = sum(segment.tokens for segment in sequence)
        trained = sum(segment.tokens for segment in sequence if segment.in_loss)
        heading = f"tokens: sequence {number} of {len(report.sequences)}, {trained} of {total} carry loss"
        yield heading, "\n".join(_segment_line(segment) for segment in sequence)


def _segment_line(segment: TokenSegment) -> str:
    mark = "loss" if segment.in_loss else "    "
    text = _clipped(json.dumps(segment.text, ensure_ascii=False))
    mean = "" if segment.mean_logprob is None else f"  mean logprob {segment.mean_logprob:.3f}"
    return f"{mark} {segment.tokens:5}  {text}{mean}"


def _clipped(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS else f"{text[:_TEXT_CHARS]} … {len(text) - _TEXT_CHARS} more"
