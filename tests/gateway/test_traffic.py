"""Random traffic of agents in three protocols: what is recorded is what was sent, and what was read.

HERMES_SEED repeats the traffic of a printed seed.
"""

from __future__ import annotations

import os
import random
import re
from typing import NamedTuple

import pytest

from hermes.config.load import Config
from hermes.config.paths import db_path
from hermes.core import Message, Relation, StepKind, Trajectory
from hermes.core.model_call import INTERRUPTED
from hermes.gateway.wire import Protocol
from hermes.store import Reader, Record
from tests.gateway.conftest import EVERYTHING, gateway
from tests.gateway.scripted import ScriptedProvider
from tests.gateway.traffic import Sent, Traffic

SEED = int(os.environ.get("HERMES_SEED") or random.SystemRandom().randrange(1 << 32))


class Place(NamedTuple):
    """Where a call is in the store."""

    trajectory: Trajectory
    turn: int
    """How many answers of the trajectory are before it."""


def check_run(config: Config, seed: int) -> None:
    print(f"HERMES_SEED={seed}")
    draws = random.Random(seed)
    speaks = frozenset({Protocol.CHAT}) if draws.random() < 0.3 else EVERYTHING
    agents = draws.randrange(1, 4)
    with ScriptedProvider() as provider:
        with gateway(config, provider.url, speaks) as recording:
            traffic = Traffic(draws, provider, recording.url, config, passed_on=speaks is EVERYTHING)
            traffic.run(agents)
        if agents == 1:  # a session that goes on when its first part is stored
            with gateway(config, provider.url, speaks) as recording:
                traffic.go_on(recording.url)
    for sent in traffic.log:  # shown when a check fails
        print(
            sent.number, sent.thread, sent.end, f"after {sent.base}", sent.relation or "", sent.answer.items
        )
    with Reader(db_path(config.home)) as reader:
        rows = reader.summaries(limit=10_000)
        records = [reader.record(reader.get(row.id)) for row in rows]
    places = check_calls(traffic.log, records, traffic.passed_on)
    check_failures(traffic.log, records, places)
    check_tree(traffic.log, places, traffic.later)


def number_of(message: Message) -> int:
    """The attempt that this answer was given to: its number is in its text, and in the ids of its calls."""
    (number,) = set(re.findall(r"(?:n|call)(\d+)y", f"{message.content} {message.tool_calls}"))
    return int(number)


def shown(messages: tuple[Message, ...]) -> list[tuple[str, str, tuple[str, ...]]]:
    rows = []
    for message in messages:
        ids = [call.id for call in message.tool_calls] or (
            [message.tool_call_id] if message.tool_call_id else []
        )
        rows.append((message.role.value, message.content, tuple(ids)))
    return rows


def check_calls(log: list[Sent], records: list[Record], passed_on: bool) -> dict[int, Place]:
    """Every answer is in the store once, with what it was an answer to."""
    places: dict[int, Place] = {}
    for record in records:
        steps = [step for step in record.trajectory.steps if step.kind is StepKind.MODEL]
        for turn, step in enumerate(steps):
            sent = log[number_of(step.message)]
            assert sent.number not in places, f"{sent.number} is there twice"
            places[sent.number] = Place(record.trajectory, turn)
            assert shown(record.inputs[step.index].messages) == sent.history, sent.number
            assert step.call is not None
            whole = sent.end == "complete"
            assert (step.call.finish_reason != INTERRUPTED) == whole, sent.number
            told = sent.answer if sent.end != "cancelled" else sent.reply
            text = step.message.content
            if sent.end == "cancelled":
                assert told.text.startswith(text), sent.number
                continue
            assert text == told.text, sent.number
            assert [call.id for call in step.message.tool_calls] == [call.id for call in told.calls]
            if not whole:
                continue
            assert (step.message.reasoning or "") == told.thinking, sent.number
            source = told if passed_on else sent.reply
            arguments = [call.arguments for call in step.message.tool_calls]
            assert arguments == [call.arguments for call in source.calls], sent.number
            usage = step.call.usage
            assert (usage.prompt, usage.completion) == (sent.reply.prompt_tokens, sent.reply.output_tokens)
    assert {sent.number for sent in log if sent.answer.items} <= set(places)
    return places


def check_failures(log: list[Sent], records: list[Record], places: dict[int, Place]) -> None:
    """Each attempt without an answer is counted once: at the call that repeated it, or as what ended it."""
    attempts = sum(step.call.attempts - 1 for one in records for step in one.trajectory.steps if step.call)
    failures = sum(len(one.trajectory.header.config.get("failures") or ()) for one in records)
    assert attempts + failures == sum(sent.number not in places for sent in log)


def check_tree(log: list[Sent], places: dict[int, Place], later: int) -> None:
    """A call stands behind the one whose answer it went on from, if it was the first that did; else it begins
    a trajectory, whose parent is what the agent says."""
    asked = [log[number] for number in sorted(places)]
    kept = {sent.base for sent in log}
    taken: set[int] = set()
    for sent in asked:
        place, base = places[sent.number], sent.base
        repeats = [one for one in asked if one.number > sent.number and asked_alike(one, sent)]
        leaf = (
            sent.end != "complete"
            and sent.number not in kept
            and any(
                one.end == "complete"
                and one.thread == sent.thread
                and (one.number < later) == (sent.number < later)
                for one in repeats
            )
        )
        goes_on = base is not None and base not in taken and not leaf
        goes_on = goes_on and (base < later) == (sent.number < later)
        if goes_on and (log[base].thread, log[base].tools) == (sent.thread, sent.tools):
            taken.add(base)
            behind = places[base]
            assert (place.trajectory.header.id, place.turn) == (
                behind.trajectory.header.id,
                behind.turn + 1,
            ), f"{sent.number} does not go on from {base}"
            continue
        assert place.turn == 0, f"{sent.number} was merged with what it did not continue"
        earlier = [one for one in asked if one.number < sent.number and asked_alike(one, sent)]
        check_parent(
            sent, next((one for one in reversed(earlier) if one.thread == sent.thread), None), places
        )


def asked_alike(one: Sent, other: Sent) -> bool:
    """Whether both are the same question: an answer in it may be written otherwise."""
    folded = [
        [
            (role, "" if ids else " ".join(text.split()), ids) if role == "assistant" else (role, text, ids)
            for role, text, ids in sent.history
        ]
        for sent in (one, other)
    ]
    return folded[0] == folded[1]


def check_parent(sent: Sent, repeated: Sent | None, places: dict[int, Place]) -> None:
    header = places[sent.number].trajectory.header
    if repeated is not None and sent.base is None and sent.relation is not Relation.SIDE:
        if repeated.end != "complete":
            assert header.relation is Relation.RETRY, sent.number
            assert header.parent_id == places[repeated.number].trajectory.header.id, sent.number
        return  # else a twin: it may be what it looks like
    if sent.relation is not None:
        assert header.relation is sent.relation, (sent.number, header.relation)
    elif sent.base is not None:
        assert header.relation is Relation.CONTINUED, (sent.number, header.relation)
    source = sent.parent if sent.parent is not None else sent.base
    if source is not None:
        assert header.parent_id == places[source].trajectory.header.id, sent.number


@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=[pytest.mark.slow] * (run >= 4)) for run in range(200)]
)
def test_random_traffic(config: Config, run: int) -> None:
    check_run(config, SEED + run)
