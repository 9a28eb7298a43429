"""From a recording to trajectories of the store.

Settling a recording twice stores nothing twice: a trajectory has the id of its first call. A recording that
continues a session of the store becomes trajectories that point at the earlier ones. Two passes: the first
reads every call for its place in the tree, the second has one trajectory in memory at a time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hermes.config.providers import model_name
from hermes.config.settings import PriceSettings
from hermes.core import (
    Boundary,
    Header,
    JSONObject,
    Message,
    ModelCall,
    Outcome,
    Relation,
    Role,
    Source,
    Step,
    StepKind,
    StopReason,
    ToolResult,
    Trajectory,
    Usage,
)
from hermes.core.history import message_key
from hermes.core.model_call import INTERRUPTED
from hermes.core.outcome import COMPLETED
from hermes.core.step import ToolErrorKind
from hermes.gateway import wire
from hermes.gateway.clients import Identity, agent_of, identify
from hermes.gateway.journal import CallEnd, Group, RecordedCall, Recording
from hermes.gateway.tree import (
    HINT_CHARS,
    OPENING_CHARS,
    SHORTEST_HINT,
    Chain,
    PlacedCall,
    Tree,
    build,
    text_key,
)
from hermes.gateway.wire import Answer, Request
from hermes.models.fields import as_objects
from hermes.models.tokens.traces import read_trace
from hermes.models.usage import cost_usd, reported_cost_usd
from hermes.store import Filter, ModelInput, Reader, Record, RefusedError, Writer

_log = logging.getLogger(__name__)
PriceOf = Callable[[str], PriceSettings | None]
_EARLIER = 50
"""Most trajectories of a session in which its continuation is looked for."""
_PRIOR = "/"
"""Stands between a stored trajectory's id and a step's index in the id of a call that is stored already."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of settling a recording."""

    trajectories: tuple[str, ...] = ()
    main: str | None = None
    """The first of them that is neither a side call nor a sub-agent."""
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = 0.0
    """None as soon as one call's price is unknown."""

    def __add__(self, more: Settled) -> Settled:
        costs = (self.cost_usd, more.cost_usd)
        return Settled(
            (*self.trajectories, *more.trajectories),
            self.main or more.main,
            self.calls + more.calls,
            self.usage + more.usage,
            None if None in costs else sum(cost for cost in costs if cost is not None),
        )


@dataclass(frozen=True, slots=True)
class _ReadCall:
    recorded: RecordedCall
    request: Request
    answer: Answer | None
    identity: Identity


def settle(recording: Recording, reader: Reader, writer: Writer, price_of: PriceOf) -> Settled:
    """Stores what the recording has and deletes it; the result counts what was stored before as well.

    A file of which not everything could be stored is set aside instead, with a warning for each part.
    """
    settled = Settled()
    problems: list[str] = []
    for record in records(recording, reader, price_of):
        trajectory = record.trajectory
        header = trajectory.header
        try:
            if not reader.exists(header.id):
                writer.restore(record).result()
        except RefusedError as error:
            problems.append(error.message)
            continue
        beside = header.relation in (Relation.SIDE, Relation.DELEGATE)
        settled += Settled(
            (header.id,),
            None if beside else header.id,
            trajectory.turns,
            trajectory.usage,
            trajectory.cost_usd,
        )
    problems += [
        f"line {number} cannot be read ({reason})" for number, reason in sorted(recording.damage.items())
    ]
    if problems:
        aside = recording.set_aside()
        for problem in problems:
            _log.warning("%s: %s; the rest was stored", aside, problem)
    else:
        recording.delete()
    return settled


def records(
    recording: Recording,
    reader: Reader,
    price_of: PriceOf,
    model_calls: Mapping[str, ModelCall] = MappingProxyType({}),
) -> Iterator[Record]:
    """The trajectories, parents before children. `model_calls`: by their id, where more is known of them."""
    group = recording.group()
    offsets: dict[str, int] = {}
    placed: list[PlacedCall] = []
    keys: dict[bytes, bytes] = {}
    for offset, recorded in recording.calls():
        if recorded.id not in offsets:
            offsets[recorded.id] = offset
            placed.append(_place(_read(recorded), keys))
    session = _session(recording, group, offsets)
    prior = list(_stored_calls(reader, session, frozenset(offsets))) if session else []

    def opening_text(call: str) -> str:
        return "" if _PRIOR in call else _opening(_read(recording.call_at(offsets[call])).request)

    tree = build([*prior, *placed], opening_text, related=group.has_identity)
    places = _trajectory_ids(tree)
    for chain in tree.chains:
        new_calls = [call for call in chain.calls if _PRIOR not in call]
        if not new_calls and not chain.failed:
            continue
        calls = _read_chain(recording, [offsets[call] for call in new_calls])
        failed = [_read(recording.call_at(offsets[call])).recorded for call in chain.failed]
        attempts = {call: len(tree.attempts.get(call, ())) for call in new_calls}
        earlier = [call for call in chain.calls if _PRIOR in call]
        if earlier:  # a trajectory of the store goes on
            parent, relation = earlier[-1].partition(_PRIOR)[0], Relation.CONTINUED
            chain = replace(chain, parent=parent, relation=relation)
        elif chain.parent is not None:
            fork_of, stored, _ = (chain.fork_of or "").partition(_PRIOR)
            chain = replace(chain, parent=fork_of if stored else places[chain.parent])
        if not calls:
            yield _unanswered(
                chain, [_read(recording.call_at(offsets[chain.failed[0]]))], failed, group, session
            )
            continue
        builder = _Steps(calls, attempts, price_of, model_calls)
        steps, inputs = builder.build()
        header = _header(chain, calls, group, session, failed)
        yield Record(Trajectory(header, steps, _outcome(calls[-1], failed)), inputs)


def _session(recording: Recording, group: Group, offsets: dict[str, int]) -> str | None:
    """The client's session, by which a later recording finds this one; else the group's own name."""
    if not offsets or not group.has_identity:
        return None
    first = _read(recording.call_at(next(iter(offsets.values()))))
    return _storable(first.identity.session or group.id)


def _trajectory_ids(tree: Tree) -> dict[str, str]:
    """The id of the trajectory that each chain becomes, or is already."""
    ids = {}
    for chain in tree.chains:
        new = [call for call in (*chain.calls, *chain.failed) if _PRIOR not in call]
        ids[chain.id] = new[0] if new else chain.id.partition(_PRIOR)[0]
    return ids


def _read(recorded: RecordedCall) -> _ReadCall:
    body = _json_object(recorded.request)
    request = wire.read_request(recorded.protocol, body)
    answer = None
    if recorded.end is not CallEnd.FAILED and recorded.response:
        answer = wire.read_answer(recorded.answer_protocol or recorded.protocol, recorded.response)
    if answer is not None and recorded.end is not CallEnd.COMPLETE:
        answer = replace(answer, complete=False)
    if (
        answer is not None
        and not answer.complete
        and not (answer.message.content or answer.message.tool_calls)
    ):
        answer = None
    return _ReadCall(recorded, request, answer, identify(recorded.headers, body))


def _read_chain(recording: Recording, offsets: list[int]) -> list[_ReadCall]:
    """The calls of a trajectory without their bytes; messages that several have are in memory once."""
    calls: list[_ReadCall] = []
    earlier: tuple[Message, ...] = ()
    for offset in offsets:
        call = _read(recording.call_at(offset))
        messages = call.request.messages
        shared = [old if old == new else new for old, new in zip(earlier, messages, strict=False)]
        earlier = (*shared, *messages[len(shared) :])
        slim = replace(call.recorded, request=b"", response=b"")
        calls.append(replace(call, recorded=slim, request=replace(call.request, messages=earlier)))
    return calls


def _json_object(data: bytes) -> JSONObject:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _opening(request: Request) -> str:
    users = (item.content for item in request.messages if item.role is Role.USER)
    return next(users, "").strip()[:OPENING_CHARS]


def _place(call: _ReadCall, keys: dict[bytes, bytes]) -> PlacedCall:
    """`keys`: those of messages that were seen; equal ones are in memory once."""
    request, answer, identity = call.request, call.answer, call.identity
    message = answer.message if answer else Message.assistant()
    return PlacedCall(
        call.recorded.id,
        tuple(keys.setdefault(key, key) for key in map(message_key, request.messages)),
        message_key(message) if answer else None,
        complete=answer is not None and answer.complete,
        tools=bool(request.tools),
        thread=identity.thread,
        parent_thread=identity.parent_thread,
        issued=frozenset(item.id for item in message.tool_calls),
        cited=frozenset(item.id for earlier in request.messages for item in earlier.tool_calls),
        delegated=_argument_texts(message),
        opening=text_key(_opening(request)),
        text=message.content.strip()[:HINT_CHARS],
        answer_id=answer.id if answer else "",
        previous=request.previous,
    )


def _argument_texts(message: Message) -> frozenset[bytes]:
    texts: set[str] = set()
    for call in message.tool_calls:
        values = () if call.error else call.parsed().values()
        texts.update(value for value in values if isinstance(value, str))
    return frozenset(text_key(text) for text in texts if len(text.strip()) >= SHORTEST_HINT)


def _stored_calls(reader: Reader, session: str, new: frozenset[str]) -> Iterator[PlacedCall]:
    """The calls of the session that are in the store, other than by an earlier attempt to settle these."""
    rows = reader.summaries(Filter(session_id=session, source=Source.RECORD.value), limit=_EARLIER)
    for row in reversed(rows):
        if row.id in new:
            continue
        record = reader.record(reader.get(row.id))
        thread = str(record.trajectory.header.config.get("thread") or "")
        for step in record.trajectory.steps:
            seen_by_model = record.inputs.get(step.index)
            if step.call is None or seen_by_model is None:
                continue
            yield PlacedCall(
                f"{row.id}{_PRIOR}{step.index}",
                tuple(map(message_key, seen_by_model.messages)),
                message_key(step.message),
                complete=step.call.finish_reason != INTERRUPTED,
                tools=bool(seen_by_model.tools),
                thread=thread,
                issued=frozenset(call.id for call in step.message.tool_calls),
            )


class _Steps:
    """The steps of one trajectory: what was new to each call, and its answer."""

    def __init__(
        self,
        calls: Sequence[_ReadCall],
        attempts: dict[str, int],
        price_of: PriceOf,
        model_calls: Mapping[str, ModelCall],
    ) -> None:
        self._calls = calls
        self._attempts = attempts
        self._price_of = price_of
        self._known_calls = model_calls
        self._steps: list[Step] = []
        self._inputs: dict[int, ModelInput] = {}
        self._issued: dict[str, float] = {}
        """When the answer with each tool call of this trajectory was complete."""

    def build(self) -> tuple[list[Step], dict[int, ModelInput]]:
        history: tuple[Message, ...] = ()
        for call in self._calls:
            assert call.answer is not None
            messages = call.request.messages
            if call.request.previous:  # the request leaves out what the provider has
                messages = (*history, *messages)
            for message in messages[len(history) :]:
                self._add_input(message, call)
            self._inputs[len(self._steps)] = ModelInput(messages, call.request.tools)
            self._add(StepKind.MODEL, call.answer.message, call, call=self._model_call(call))
            ended_ms = call.recorded.started_at_ms + call.recorded.latency_ms
            self._issued |= {item.id: ended_ms for item in call.answer.message.tool_calls}
            history = (*messages, call.answer.message)
        return self._steps, self._inputs

    def _add_input(self, message: Message, call: _ReadCall) -> None:
        call_id = message.tool_call_id or ""
        if message.role is not Role.TOOL or call_id not in self._issued:
            self._add(StepKind.INPUT, message, call)
            return
        ok = call_id not in call.request.failed
        result = ToolResult(
            call_id,
            message.name or "",
            ok,
            max(0.0, call.recorded.started_at_ms - self._issued[call_id]),
            None if ok else ToolErrorKind.FAILED,
            result_chars=len(message.content),
        )
        self._add(StepKind.TOOL, message, call, result=result)

    def _add(
        self,
        kind: StepKind,
        message: Message,
        call_read: _ReadCall,
        *,
        call: ModelCall | None = None,
        result: ToolResult | None = None,
    ) -> None:
        self._steps.append(
            Step(len(self._steps), kind, message, call_read.recorded.started_at_ms, call, result)
        )

    def _model_call(self, call: _ReadCall) -> ModelCall:
        answer, recorded = call.answer, call.recorded
        assert answer is not None
        if recorded.id in self._known_calls:
            return self._known_calls[recorded.id]
        name = _model_of(call)
        reported = reported_cost_usd(answer.raw)
        price = self._price_of(name)
        return ModelCall(
            model=name,
            endpoint=recorded.endpoint,
            sampling=call.request.sampling,
            finish_reason=answer.finish_reason if answer.complete else INTERRUPTED,
            usage=answer.usage,
            latency_ms=recorded.latency_ms,
            cost_usd=cost_usd(answer.usage, price) if reported is None else reported,
            first_token_ms=recorded.first_byte_ms,
            attempts=1 + self._attempts[recorded.id],
            raw=answer.raw,
            tokens=read_trace(answer.raw, next(iter(as_objects(answer.raw.get("choices"))), {})),
        )


def _model_of(call: _ReadCall) -> str:
    """The model's name for people, the model as the answer names it."""
    model = (call.answer and call.answer.model) or call.request.model or "unknown"
    return _storable(model_name(call.recorded.provider, model))


def _storable(text: str) -> str:
    """Without halves of surrogate pairs, which JSON may spell and no database holds."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _header(
    chain: Chain,
    calls: Sequence[_ReadCall],
    group: Group,
    session: str | None,
    failed: Sequence[RecordedCall],
) -> Header:
    first = calls[0]
    agent = agent_of(first.recorded.headers)
    facts = dict(group.facts)
    metadata: JSONObject = {
        "agent": facts.pop("agent", None) or (agent.name if agent else None),
        "agent_version": agent.version if agent else None,
        "side": True if chain.side else None,
        "exit_code": facts.pop("exit_code", None),
    }
    run_id = facts.pop("run", None)
    failures = [{"status": item.status, "end": item.end.value} for item in failed]
    config: JSONObject = {
        "protocol": first.recorded.protocol.value,
        "thread": first.identity.thread or None,
        "headers": dict(first.recorded.headers),
        "failures": failures or None,
        "texts": dict(first.recorded.texts) or None,
        **facts,
    }
    names = dict.fromkeys(_storable(str(tool["name"])) for call in calls for tool in call.request.tools)
    return Header(
        first.recorded.id,
        Source.RECORD,
        _model_of(first),
        first.recorded.started_at_ms,
        session_id=session,
        run_id=str(run_id) if run_id else None,
        parent_id=chain.parent,
        relation=chain.relation if chain.parent else None,
        tools=tuple(names),
        config={name: value for name, value in config.items() if value is not None},
        metadata={name: value for name, value in metadata.items() if value is not None},
    )


def _unanswered(
    chain: Chain, calls: list[_ReadCall], failed: Sequence[RecordedCall], group: Group, session: str | None
) -> Record:
    """A request that was never answered, with the reason."""
    read = calls[0]
    steps = [
        Step(index, StepKind.INPUT, message, read.recorded.started_at_ms)
        for index, message in enumerate(read.request.messages)
    ]
    header = _header(chain, calls, group, session, failed)
    return Record(Trajectory(header, steps, _failure(failed[-1])))


def _outcome(last: _ReadCall, failed: Sequence[RecordedCall]) -> Outcome:
    answer = last.answer
    assert answer is not None
    if failed:
        return _failure(failed[-1])
    if last.recorded.end is CallEnd.CANCELLED:
        return Outcome(StopReason.CANCELLED, Boundary.USER, detail="the client hung up")
    if not answer.complete:
        return Outcome(StopReason.ERROR, Boundary.PROVIDER, "cut", "the provider's stream was cut")
    if answer.finish_reason in ("length", "max_tokens", "model_context_window_exceeded"):
        return Outcome(StopReason.TRUNCATED, Boundary.MODEL)
    if answer.finish_reason in ("content_filter", "refusal"):
        return Outcome(StopReason.FILTERED, Boundary.PROVIDER)
    if answer.message.tool_calls:
        return Outcome(
            StopReason.CANCELLED, Boundary.USER, detail="the client ended without returning a tool's result"
        )
    return COMPLETED if answer.message.content else Outcome(StopReason.EMPTY, Boundary.MODEL)


def _failure(call: RecordedCall) -> Outcome:
    if call.end is CallEnd.CANCELLED:
        return Outcome(
            StopReason.CANCELLED, Boundary.USER, detail="the client hung up before the answer began"
        )
    detail = call.response[:500].decode("utf-8", "replace")
    kind = str(call.status) if call.status else "no response"
    return Outcome(StopReason.ERROR, Boundary.PROVIDER, kind, detail or None)
