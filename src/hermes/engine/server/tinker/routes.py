"""The Tinker API: every endpoint of the public SDK, and the engine's health, metrics and adapter import."""

from __future__ import annotations

from hermes.engine.server.app import SIGNED_FILES, RouteTable
from hermes.engine.server.state import EngineServerState
from hermes.engine.server.tinker.downloads import DownloadRoutes
from hermes.engine.server.tinker.imports import ImportRoutes
from hermes.engine.server.tinker.rest import CheckpointRoutes, SessionRoutes
from hermes.engine.server.tinker.sampling import SamplingRoutes
from hermes.engine.server.tinker.saving import SavingRoutes
from hermes.engine.server.tinker.service import ServiceRoutes
from hermes.engine.server.tinker.training import TrainingRoutes

_API = "/api/v1"


def tinker_routes(state: EngineServerState) -> RouteTable:
    service, training, saving = ServiceRoutes(state), TrainingRoutes(state), SavingRoutes(state)
    sampling, downloads = SamplingRoutes(state), DownloadRoutes(state)
    checkpoints, sessions = CheckpointRoutes(state), SessionRoutes(state)
    checkpoint = f"{_API}/training_runs/{{run}}/checkpoints/{{kind}}/{{name}}"
    return [
        ("POST", f"{_API}/retrieve_future", service.retrieve_future),
        ("POST", f"{_API}/asample", sampling.asample),
        ("GET", "/health", service.healthz),
        ("GET", "/metrics", service.metrics),
        ("GET", f"{_API}/healthz", service.healthz),
        ("POST", f"{_API}/client/config", service.client_config),
        ("POST", f"{_API}/client/dynamic_config", service.dynamic_config),
        ("GET", f"{_API}/get_server_capabilities", service.capabilities),
        ("POST", f"{_API}/create_session", service.create_session),
        ("POST", f"{_API}/session_heartbeat", service.heartbeat),
        ("POST", f"{_API}/telemetry", service.telemetry),
        ("POST", f"{_API}/create_custom_loss", service.not_supported),
        ("POST", f"{_API}/create_model", training.create_model),
        ("POST", f"{_API}/get_info", training.get_info),
        ("POST", f"{_API}/forward_backward", training.forward_backward),
        ("POST", f"{_API}/optim_step", training.optim_step),
        ("POST", f"{_API}/save_weights", saving.save_weights),
        ("POST", f"{_API}/save_weights_for_sampler", saving.save_weights_for_sampler),
        ("POST", f"{_API}/save_weights_external", saving.save_weights_external),
        ("POST", f"{_API}/load_weights", training.load_weights),
        ("POST", f"{_API}/create_sampling_session", sampling.create_sampling_session),
        ("POST", f"{_API}/join_sampling_session", sampling.join_sampling_session),
        ("GET", f"{_API}/samplers/{{sampler}}", sampling.get_sampler),
        ("POST", f"{_API}/cancel_future", sampling.cancel_future),
        ("POST", f"{_API}/weights_info", checkpoints.weights_info),
        ("POST", f"{_API}/copy_weights", checkpoints.copy_weights),
        ("GET", f"{_API}/checkpoints", checkpoints.list_checkpoints),
        ("GET", f"{_API}/training_runs", checkpoints.list_runs),
        ("GET", f"{_API}/training_runs/{{run}}", checkpoints.get_run),
        ("GET", f"{_API}/training_runs/{{run}}/checkpoints", checkpoints.list_run_checkpoints),
        ("DELETE", checkpoint, checkpoints.delete),
        ("PUT", f"{checkpoint}/ttl", checkpoints.set_ttl),
        ("POST", f"{checkpoint}/publish", checkpoints.publish),
        ("DELETE", f"{checkpoint}/publish", checkpoints.publish),
        ("GET", f"{checkpoint}/external_weights_urls", downloads.external_urls),
        ("GET", f"{checkpoint}/archive", downloads.archive),
        ("GET", f"{SIGNED_FILES}{{run}}/{{kind}}/{{name}}/{{file}}", downloads.file),
        ("POST", f"{_API}/import_adapter", ImportRoutes(state).import_adapter),
        ("GET", f"{_API}/sessions", sessions.list_sessions),
        ("POST", f"{_API}/sessions/search", sessions.search_sessions),
        ("GET", f"{_API}/sessions/{{session}}", sessions.get_session),
        ("POST", f"{_API}/sessions/{{session}}/finish", service.finish_session),
        ("PUT", f"{_API}/sessions/{{session}}/project", sessions.assign_project),
        ("GET", f"{_API}/sessions/{{session}}/trace_export", sessions.trace_export),
    ]
