"""The rest of what a client needs to work: flags, sessions, results, telemetry, what the engine can do."""

from __future__ import annotations

import dataclasses
import logging

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from hermes.engine.server.responses import RequestError, as_json, read_json
from hermes.engine.server.state import EngineServerState
from hermes.engine.server.tinker import schema
from hermes.engine.server.tinker.futures import Failed

HOLD_S = 25.0
"""How long a poll is held; the SDK gives up on one after 45 s."""
SAY_SIZE_FROM_BYTES = 1 << 20
"""Larger results are announced with their size before they are sent, so that the client can make room."""

_COUNTERS = {
    "prompt_tokens": "prompt_tokens_total",
    "cached_tokens": "cached_tokens_total",
    "sampled_tokens": "sampled_tokens_total",
    "trained_tokens": "trained_tokens_total",
    "optimizer_steps": "optimizer_steps_total",
    "sampling_s": "sampling_seconds_total",
    "training_s": "training_seconds_total",
}
"""What only grows, under the names that Prometheus expects of such."""
_DYNAMIC = {"refresh_interval_sec": 300, "sample_cancel_enabled": True, "sample_cancel_max_batch_size": 64}
_logger = logging.getLogger(__name__)


class ServiceRoutes:
    def __init__(self, state: EngineServerState) -> None:
        self._state = state

    async def client_config(self, request: Request) -> Response:
        """The SDK's own defaults suit us: every flag is left out."""
        asked = await read_json(request, schema.ConfigRequest)
        _logger.info("a client with tinker SDK %s", asked.sdk_version or "(unknown)")
        return as_json({})

    async def dynamic_config(self, request: Request) -> Response:
        return as_json(_DYNAMIC)

    async def capabilities(self, request: Request) -> Response:
        spec = self._state.engine.spec
        facts = {"max_context_length": spec.max_length, "trainable": True, "sampleable": True}
        return as_json(
            {"supported_models": [{"model_name": name, **facts} for name in self._state.names.base_names]}
        )

    async def healthz(self, request: Request) -> Response:
        return as_json({"status": "ok"})

    async def create_session(self, request: Request) -> Response:
        session = self._state.sessions.open(await read_json(request, schema.CreateSession))
        return as_json({"type": "create_session", "session_id": session.id})

    async def heartbeat(self, request: Request) -> Response:
        session_id = (await read_json(request, schema.SessionReference)).session_id
        try:
            self._state.sessions.live(session_id)
        except RequestError as refused:
            raise RequestError(
                410, refused.detail
            ) from refused  # the one status that ends the client's beating
        return as_json({"type": "session_heartbeat"})

    async def finish_session(self, request: Request) -> Response:
        asked = await read_json(request, schema.FinishSession)
        session = self._state.sessions.find(request.path_params["session"])
        self._state.sessions.finish(session, asked.reason.type, asked.detail)
        return as_json({})

    async def telemetry(self, request: Request) -> Response:
        """Taken and thrown away: nothing leaves, and nothing is kept."""
        await read_json(request, schema.Telemetry)
        return as_json({"status": "accepted"})

    async def retrieve_future(self, request: Request) -> Response:
        asked = await read_json(request, schema.RetrieveFuture)
        calls = self._state.calls
        call = calls.get(asked.request_id)
        if call is None:
            raise RequestError(410, f"the result of {asked.request_id} is not here (any more)")
        self._state.sessions.heard(call.id)
        outcome = await calls.wait(call, HOLD_S)
        if outcome is None:
            queue = "paused_capacity" if call.waits_for else "active"
            return JSONResponse({"queue_state": queue, "queue_state_reason": call.waits_for or None}, 408)
        if isinstance(outcome, Failed):
            calls.fetched(call)
            return as_json({"error": outcome.error, "category": outcome.category})
        if asked.allow_metadata_only and len(outcome.body) >= SAY_SIZE_FROM_BYTES:
            return as_json({"status": "complete_metadata", "response_payload_size": len(outcome.body)})
        calls.fetched(call)
        return Response(outcome.body, media_type=outcome.content_type)

    async def not_offered(self, request: Request) -> Response:
        """Custom losses run in the client: the flag that would send them here is never set."""
        raise RequestError(400, "custom losses are not run by this engine; the SDK runs them in the client")

    async def metrics(self, request: Request) -> Response:
        """As Prometheus reads them: what the engine counts, and what this face holds."""
        stats = dataclasses.asdict(self._state.engine.stats())
        values = {_COUNTERS.get(name, name): value for name, value in stats.items()}
        sessions = [session for session in self._state.sessions.all() if not session.ended]
        values |= {
            "sessions": len(sessions),
            "models": sum(len(session.models) for session in sessions),
            "samplers": sum(len(session.samplers) for session in sessions),
            "calls_pending": len(self._state.calls),
            "polls_held": self._state.calls.polls_held,
            "checkpoints": len(self._state.store.checkpoints()),
        }
        lines = [
            f"# TYPE hermes_engine_{name} {'counter' if name.endswith('_total') else 'gauge'}\n"
            f"hermes_engine_{name} {float(value):.10g}"
            for name, value in sorted(values.items())
        ]
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")
