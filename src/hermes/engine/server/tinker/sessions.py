"""Sessions: whose models and samplers these are, and when they are over.

A session lives while its client beats or asks for anything. When it finishes, or falls silent for too long,
its adapters leave the engine and its ephemeral samplers go; named checkpoints stay. Samples under way stop
after a shorter silence, because others wait behind them: a client that comes back sends them again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hermes.core.ids import new_id
from hermes.engine.checkpoints.store import TrainingRun
from hermes.engine.server.policies import PolicyNames
from hermes.engine.server.responses import RequestError
from hermes.engine.server.tinker.futures import FutureStore
from hermes.engine.server.tinker.ordering import CallSequencer
from hermes.engine.server.tinker.schema import CreateSession

if TYPE_CHECKING:
    from hermes.engine.engine import Engine

QUIET_S = 30.0
"""Silence after which nobody seems to wait for samples: a living SDK is heard of every ten seconds."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Model:
    """An adapter and the lane of its calls."""

    run: TrainingRun
    lane: CallSequencer
    adapter_id: str | None = None
    """None: not made yet, or gone."""
    alias: str | None = None
    """A name that follows its newest sampler."""
    announced: int = 0
    """Number of the call that its names last followed."""
    last_request_s: float = field(default_factory=time.time)


@dataclass(slots=True, eq=False)
class SamplingSession:
    id: str
    base_model: str
    model_path: str | None
    key: str | None
    """Of its policy; None: the base model."""
    clones: int = 0


@dataclass(slots=True, eq=False)
class TinkerSession:
    id: str
    sdk_version: str = ""
    display_name: str | None = None
    project_id: str | None = None
    user_metadata: Mapping[str, str] = field(default_factory=dict)
    created_s: float = field(default_factory=time.time)
    beat_s: float = field(default_factory=time.monotonic)
    """When its client was last heard of."""
    models: dict[int, Model] = field(default_factory=dict)
    samplers: dict[int, SamplingSession] = field(default_factory=dict)
    ended: str = ""
    """Why it is over, for a person; empty while it is not."""
    status: dict[str, Any] = field(default_factory=lambda: {"type": "active"})

    def model_id(self, number: int) -> str:
        return f"{self.id}:train:{number}"

    def sampler_id(self, number: int) -> str:
        return f"{self.id}:sample:{number}"


class Sessions:
    """All of one server. Belongs to the event loop."""

    def __init__(self, engine: Engine, calls: FutureStore, names: PolicyNames, timeout_s: float) -> None:
        self._engine = engine
        self._calls = calls
        self._names = names
        self._timeout_s = timeout_s
        self._sessions: dict[str, TinkerSession] = {}

    def open(self, request: CreateSession) -> TinkerSession:
        metadata = {str(key): str(value) for key, value in (request.user_metadata or {}).items()}
        session = TinkerSession(
            new_id(), request.sdk_version, request.display_name, request.project_id, user_metadata=metadata
        )
        self._sessions[session.id] = session
        _logger.info("session %s of tinker SDK %s", session.id, request.sdk_version or "(unknown)")
        return session

    def all(self) -> list[TinkerSession]:
        """Newest first, those that are over included."""
        return sorted(
            self._sessions.values(), key=lambda session: (session.created_s, session.id), reverse=True
        )

    def find(self, session_id: str) -> TinkerSession:
        """Refused: unknown."""
        session = self._sessions.get(session_id)
        if session is None:
            raise RequestError(
                404,
                f"there is no session {session_id}: if the engine was restarted, make a new client and resume"
                " from the last checkpoint",
            )
        return session

    def live(self, session_id: str) -> TinkerSession:
        """One that may still be worked with; noted as heard of. Refused: unknown, or over."""
        session = self.find(session_id)
        if session.ended:
            raise RequestError(400, session.ended)
        session.beat_s = time.monotonic()
        return session

    def model(self, model_id: str) -> Model:
        """Refused: unknown, or its session is over."""
        session_id, _, number = model_id.partition(":train:")
        session = self.live(session_id)
        model = session.models.get(int(number)) if number.isdecimal() else None
        if model is None:
            raise RequestError(404, f"there is no model {model_id}")
        model.last_request_s = time.time()
        return model

    def sampler(self, sampler_id: str) -> SamplingSession:
        """Refused: unknown, or its session is over."""
        session_id, _, number = sampler_id.partition(":sample:")
        session = self.live(session_id)
        sampler = session.samplers.get(int(number)) if number.isdecimal() else None
        if sampler is None:
            raise RequestError(404, f"there is no sampler {sampler_id}")
        return sampler

    def heard(self, call_id: str) -> None:
        """Whoever asks for a call's result is alive."""
        session = self._sessions.get(call_id.partition(":")[0])
        if session is not None:
            session.beat_s = time.monotonic()

    def finish(self, session: TinkerSession, reason: str, detail: str | None) -> None:
        """The client says it is done. The first reason stays."""
        if not session.ended:
            status = {"type": "client_finished", "reason": {"type": reason}, "detail": detail}
            self._end(session, f"session {session.id} was finished by its client ({reason})", status)

    def expire(self) -> None:
        """Ends the sessions whose clients have fallen silent; what they wanted sampled is given up sooner."""
        now_s = time.monotonic()
        for session in (one for one in self._sessions.values() if not one.ended):
            silent_s = now_s - session.beat_s
            if silent_s > self._timeout_s:
                why = (
                    f"session {session.id} ended: its client was not heard of for {self._timeout_s:g} s"
                    " (resume from its last checkpoint)"
                )
                _logger.warning("%s", why)
                self._end(session, why, {"type": "cancelled", "detail": why})
            elif silent_s > QUIET_S:
                self._calls.give_up(session.id)

    def _end(self, session: TinkerSession, why: str, status: dict[str, Any]) -> None:
        session.ended, session.status = why, status
        for number, model in session.models.items():
            model.lane.close(why)
            self._names.drop(session.model_id(number))
            self._calls.spawn(self._drop(session, model))
        for sampler in session.samplers.values():
            self._names.drop(sampler.id)
        self._calls.abandon(session.id)

    async def _drop(self, session: TinkerSession, model: Model) -> None:
        await model.lane.ended()
        if model.adapter_id is not None:
            self._engine.drop_adapter(model.adapter_id)
            model.adapter_id = None
        self._calls.abandon(session.id)
