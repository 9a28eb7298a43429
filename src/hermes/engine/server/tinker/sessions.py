"""Sessions of Tinker clients: the models and samplers they own, and when they end.

A session lives while its client sends heartbeats or other requests. When it is finished, or its client sends
nothing for too long, its adapters and ephemeral samplers are dropped; checkpoints stay. Its running samples
are cancelled after a shorter silence, because other clients wait for them: a client that returns resubmits
them.
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
from hermes.engine.server.tinker.calls import CallSequencer
from hermes.engine.server.tinker.futures import FutureStore
from hermes.engine.server.tinker.schema import CreateSession
from hermes.engine.types import EngineUserError

if TYPE_CHECKING:
    from hermes.engine.info import EngineInterface

SAMPLES_TIMEOUT_S = 30.0
"""Silence after which samples are cancelled. A live SDK sends a heartbeat every ten seconds."""

_MAX_DIGITS = 15
_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Model:
    """An adapter in training and its calls."""

    run: TrainingRun
    calls: CallSequencer
    adapter_id: str | None = None
    """None: not created yet, or dropped."""
    alias: str | None = None
    """A name that refers to its newest sampler."""
    published_call: int = 0
    """Number of the newest call whose weights its names refer to."""
    last_request_s: float = field(default_factory=time.time)

    def require_adapter(self) -> str:
        """The adapter id. EngineUserError: it was not created, or was dropped."""
        if self.adapter_id is None:
            raise EngineUserError(
                f"model {self.run.id} has no adapter", "see the error that create_model returned"
            )
        return self.adapter_id


@dataclass(slots=True, eq=False)
class SamplingSession:
    id: str
    base_model: str
    model_path: str | None
    key: str | None
    """The key of its policy; None: the base model."""
    clones: int = 0


@dataclass(slots=True, eq=False)
class TinkerSession:
    id: str
    sdk_version: str = ""
    display_name: str | None = None
    project_id: str | None = None
    user_metadata: Mapping[str, str] = field(default_factory=dict)
    created_s: float = field(default_factory=time.time)
    last_seen_s: float = field(default_factory=time.monotonic)
    """When its client last sent a request."""
    models: dict[int, Model] = field(default_factory=dict)
    samplers: dict[int, SamplingSession] = field(default_factory=dict)
    end_reason: str = ""
    """For error messages; empty while the session is active."""
    status: dict[str, Any] = field(default_factory=lambda: {"type": "active"})

    def model_id(self, number: int) -> str:
        return f"{self.id}:train:{number}"

    def sampler_id(self, number: int) -> str:
        return f"{self.id}:sample:{number}"


class Sessions:
    """All sessions of one server. Belongs to the event loop."""

    def __init__(
        self, engine: EngineInterface, futures: FutureStore, names: PolicyNames, timeout_s: float
    ) -> None:
        self._engine = engine
        self._futures = futures
        self._names = names
        self._timeout_s = timeout_s
        self._sessions: dict[str, TinkerSession] = {}

    def create(self, request: CreateSession) -> TinkerSession:
        metadata = {str(key): str(value) for key, value in (request.user_metadata or {}).items()}
        session = TinkerSession(
            new_id(), request.sdk_version, request.display_name, request.project_id, user_metadata=metadata
        )
        self._sessions[session.id] = session
        _logger.info("session %s of tinker SDK %s", session.id, request.sdk_version or "(unknown)")
        return session

    def all(self) -> list[TinkerSession]:
        """Newest first, including those that have ended."""
        return sorted(
            self._sessions.values(), key=lambda session: (session.created_s, session.id), reverse=True
        )

    def active(self) -> list[TinkerSession]:
        return [session for session in self._sessions.values() if not session.end_reason]

    def find(self, session_id: str) -> TinkerSession:
        """RequestError: it does not exist."""
        session = self._sessions.get(session_id)
        if session is None:
            raise RequestError(
                404,
                f"there is no session {session_id}: if the engine was restarted, create a new client and"
                " resume from the last checkpoint",
            )
        return session

    def find_active(self, session_id: str) -> TinkerSession:
        """The session, whose timeout starts again. RequestError: it does not exist, or has ended."""
        session = self.find(session_id)
        if session.end_reason:
            raise RequestError(400, session.end_reason)
        session.last_seen_s = time.monotonic()
        return session

    def model(self, model_id: str) -> Model:
        """RequestError: it does not exist, or its session has ended."""
        session_id, _, number = model_id.partition(":train:")
        session = self.find_active(session_id)
        model = session.models.get(_number(number))
        if model is None:
            raise RequestError(404, f"there is no model {model_id}")
        model.last_request_s = time.time()
        return model

    def sampler(self, sampler_id: str) -> SamplingSession:
        """RequestError: it does not exist, or its session has ended."""
        session_id, _, number = sampler_id.partition(":sample:")
        session = self.find_active(session_id)
        sampler = session.samplers.get(_number(number))
        if sampler is None:
            raise RequestError(404, f"there is no sampler {sampler_id}")
        return sampler

    def touch(self, request_id: str) -> None:
        """The client polled for this result: its timeout starts again."""
        session = self._sessions.get(request_id.partition(":")[0])
        if session is not None:
            session.last_seen_s = time.monotonic()

    def finish(self, session: TinkerSession, reason: str, detail: str | None) -> None:
        """Ends the session at its client's request. The first reason stays."""
        if not session.end_reason:
            status = {"type": "client_finished", "reason": {"type": reason}, "detail": detail}
            self._end(session, f"session {session.id} was finished by its client ({reason})", status)

    def expire(self) -> None:
        """Ends the sessions whose clients have timed out; cancels the samples of those silent for a while."""
        now_s = time.monotonic()
        for session in self.active():
            silent_s = now_s - session.last_seen_s
            if silent_s > self._timeout_s:
                reason = (
                    f"session {session.id} ended: its client sent nothing for {self._timeout_s:g} s"
                    " (resume from its last checkpoint)"
                )
                _logger.warning("%s", reason)
                self._end(session, reason, {"type": "cancelled", "detail": reason})
            elif silent_s > SAMPLES_TIMEOUT_S:
                self._futures.cancel_session(session.id)

    def _end(self, session: TinkerSession, reason: str, status: dict[str, Any]) -> None:
        session.end_reason, session.status = reason, status
        for number, model in session.models.items():
            model.calls.close(reason)
            self._names.drop(session.model_id(number))
            self._futures.spawn(self._drop_adapter(session, model))
        for sampler in session.samplers.values():
            self._names.drop(sampler.id)
        self._futures.release_session(session.id)

    async def _drop_adapter(self, session: TinkerSession, model: Model) -> None:
        await model.calls.wait_idle()
        if model.adapter_id is not None:
            self._engine.drop_adapter(model.adapter_id)
            model.adapter_id = None
        self._futures.release_session(session.id)


def _number(text: str) -> int:
    """The number at the end of an id; -1, which no model or sampler has, if it is none."""
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else -1
