"""The other endpoints of the Tinker API: configuration, sessions, polling for results, health and metrics."""

from __future__ import annotations

import dataclasses
import logging

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from hermes.engine.server.responses import RequestError, as_json, read_json
from hermes.engine.server.state import EngineServerState
from hermes.engine.server.tinker import schema
from hermes.engine.server.tinker.futures import Failed
from hermes.serving.openapi import operation

POLL_S = 25.0
"""How long a poll waits for a result; the SDK times out after 45 s."""
METADATA_FIRST_BYTES = 1 << 20
"""A larger result is announced with its size first, if the request has `allow_metadata_only`."""

_COUNTERS = {
    "prompt_tokens": "prompt_tokens_total",
    "cached_tokens": "cached_tokens_total",
    "sampled_tokens": "sampled_tokens_total",
    "trained_tokens": "trained_tokens_total",
    "optimizer_steps": "optimizer_steps_total",
    "sampling_s": "sampling_seconds_total",
    "training_s": "training_seconds_total",
}
"""Statistics that only grow, by the names that Prometheus prescribes for counters."""
_DYNAMIC_CONFIG = {
    "refresh_interval_sec": 300,
    "sample_cancel_enabled": True,
    "sample_cancel_max_batch_size": 64,
}
_logger = logging.getLogger(__name__)


class ServiceRoutes:
    def __init__(self, state: EngineServerState) -> None:
        self._state = state

    @operation("POST", "/api/v1/retrieve_future", schema.RetrieveFuture, statuses=(404, 408))
    async def retrieve_future(self, request: Request) -> Response:
        """The result of a call, once there is one."""
        body = await read_json(request, schema.RetrieveFuture)
        futures = self._state.futures
        pending = futures.get(body.request_id)
        if pending is None:
            raise RequestError(410, f"there is no result of {body.request_id}, or it has expired")
        self._state.sessions.touch(pending.id)
        result = await futures.wait(pending, POLL_S)
        if result is None:
            queue = "paused_capacity" if pending.waits_for else "active"
            return JSONResponse({"queue_state": queue, "queue_state_reason": pending.waits_for or None}, 408)
        if isinstance(result, Failed):
            futures.mark_fetched(pending)
            return as_json({"error": result.error, "category": result.category})
        if body.allow_metadata_only and len(result.body) >= METADATA_FIRST_BYTES:
            return as_json({"status": "complete_metadata", "response_payload_size": len(result.body)})
        futures.mark_fetched(pending)
        return Response(result.body, media_type=result.content_type)

    @operation("POST", "/api/v1/client/config", schema.ConfigRequest)
    async def client_config(self, request: Request) -> Response:
        """Settings of the SDK; refuses versions that would be answered wrongly.

        No flags: the defaults of the SDK apply.

        The SDK requests this over a connection that it neither uses again nor closes, one for each of its
        clients: it is closed here, otherwise both sides would hold it for the time of an idle one.
        """
        body = await read_json(request, schema.ConfigRequest)
        _logger.info("client with tinker SDK %s", body.sdk_version or "(unknown)")
        response = as_json({})
        response.headers["Connection"] = "close"
        return response

    @operation("POST", "/api/v1/client/dynamic_config")
    async def dynamic_config(self, request: Request) -> Response:
        """Settings that the SDK asks for again from time to time."""
        return as_json(_DYNAMIC_CONFIG)

    @operation("GET", "/api/v1/get_server_capabilities")
    async def capabilities(self, request: Request) -> Response:
        """The base model and its longest sequence."""
        spec = self._state.engine.spec
        properties = {"max_context_length": spec.max_length, "trainable": True, "sampleable": True}
        return as_json(
            {
                "supported_models": [
                    {"model_name": name, **properties} for name in self._state.names.base_names
                ]
            }
        )

    @operation("GET", "/health")
    @operation("GET", "/api/v1/healthz")
    async def healthz(self, request: Request) -> Response:
        """Whether the server answers."""
        return as_json({"status": "ok"})

    @operation("POST", "/api/v1/create_session", schema.CreateSession)
    async def create_session(self, request: Request) -> Response:
        """Begins a session: what a client creates belongs to it."""
        session = self._state.sessions.create(await read_json(request, schema.CreateSession))
        return as_json({"type": "create_session", "session_id": session.id})

    @operation("POST", "/api/v1/session_heartbeat", schema.SessionReference, statuses=(404,))
    async def heartbeat(self, request: Request) -> Response:
        """Keeps a session open."""
        session_id = (await read_json(request, schema.SessionReference)).session_id
        try:
            self._state.sessions.find_active(session_id)
        except RequestError as error:  # 410 is the only status that stops the client's heartbeats
            raise RequestError(410, error.detail) from error
        return as_json({"type": "session_heartbeat"})

    @operation("POST", "/api/v1/sessions/{session}/finish", schema.FinishSession, statuses=(404,))
    async def finish_session(self, request: Request) -> Response:
        """Ends a session."""
        body = await read_json(request, schema.FinishSession)
        session = self._state.sessions.find(request.path_params["session"])
        self._state.sessions.finish(session, body.reason.type, body.detail)
        return as_json({})

    @operation("POST", "/api/v1/telemetry", schema.Telemetry)
    async def telemetry(self, request: Request) -> Response:
        """Accepts telemetry and discards it: nothing is stored or sent on."""
        await read_json(request, schema.Telemetry)
        return as_json({"status": "accepted"})

    @operation("POST", "/api/v1/create_custom_loss")
    async def not_supported(self, request: Request) -> Response:
        """Not supported: no code of a client runs in the engine.

        The SDK runs custom losses in the client unless a flag is set, which `client_config` does not.
        """
        raise RequestError(400, "this engine does not run custom losses; the SDK runs them in the client")

    @operation("GET", "/metrics", content_type="text/plain")
    async def metrics(self, request: Request) -> Response:
        """Statistics of the engine and of this server in the Prometheus text format."""
        stats = dataclasses.asdict(self._state.engine.stats())
        values = {_COUNTERS.get(name, name): value for name, value in stats.items()}
        sessions = self._state.sessions.active()
        values |= {
            "sessions": len(sessions),
            "models": sum(len(session.models) for session in sessions),
            "samplers": sum(len(session.samplers) for session in sessions),
            "calls_pending": len(self._state.futures),
            "polls_held": self._state.futures.open_polls,
            "checkpoints": len(self._state.store.checkpoints()),
        }
        lines = [
            f"# HELP {PREFIX}{name} {HELP.get(name, '')}\n"
            f"# TYPE {PREFIX}{name} {'counter' if name.endswith('_total') else 'gauge'}\n"
            f"{PREFIX}{name} {float(value):.10g}"
            for name, value in sorted(values.items())
        ]
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


PREFIX = "hermes_engine_"
HELP = {
    "adapters": "LoRA adapters in memory that can be trained.",
    "policies": "Frozen copies of adapters in memory that can be sampled.",
    "training_waiting": "Training calls that are not finished.",
    "sampling_waiting": "Samples that wait for a slot in the KV cache.",
    "sampling_running": "Samples that are being generated.",
    "prompt_tokens_total": "Prompt tokens received; a prompt counts once for all samples of its request.",
    "cached_tokens_total": "Prompt tokens that were read from the prefix cache.",
    "sampled_tokens_total": "Tokens that were sampled.",
    "trained_tokens_total": "Tokens that went through a forward and backward pass.",
    "optimizer_steps_total": "Optimizer steps over all adapters.",
    "kv_tokens": "Size of the KV cache, in tokens.",
    "kv_tokens_used": "Tokens of the KV cache that running sequences and cached prefixes take.",
    "base_bytes": "Memory of the base model's weights.",
    "adapter_bytes": "Memory of the adapters and their optimizer state.",
    "policy_bytes": "Memory of the frozen policies.",
    "sampling_seconds_total": "Time that the compute thread spent on sampling.",
    "training_seconds_total": "Time that the compute thread spent on training.",
    "sessions": "Open sessions of Tinker clients.",
    "models": "Adapters that the open sessions own.",
    "samplers": "Samplers that the open sessions own.",
    "calls_pending": "Tinker calls whose result was not fetched yet.",
    "polls_held": "Requests that wait for such a result.",
    "checkpoints": "Checkpoints on disk.",
}
