"""The Tinker API: every endpoint of the public SDK, and the engine's health, metrics and adapter import."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from hermes.engine.server.app import SIGNED_FILES
from hermes.engine.server.state import EngineServerState
from hermes.engine.server.tinker import schema
from hermes.engine.server.tinker.downloads import DownloadRoutes
from hermes.engine.server.tinker.futures import PROTOBUF
from hermes.engine.server.tinker.imports import ImportRoutes
from hermes.engine.server.tinker.rest import CheckpointRoutes, SessionRoutes
from hermes.engine.server.tinker.sampling import SamplingRoutes
from hermes.engine.server.tinker.saving import SavingRoutes
from hermes.engine.server.tinker.service import ServiceRoutes
from hermes.engine.server.tinker.training import TrainingRoutes
from hermes.serving.openapi import Operation

_API = "/api/v1"
_CHECKPOINT = f"{_API}/training_runs/{{run}}/checkpoints/{{kind}}/{{name}}"
_WHOLE = {"type": "integer", "minimum": 0}
_PAGE = (("offset", _WHOLE, "entries to leave out (0)"), ("limit", _WHOLE, "entries at most (20)"))
_TEXT = {"type": "string"}
_SIGNATURE = (("expires", _TEXT, "seconds since 1970"), ("token", _TEXT, "signature of path and time"))
_ADAPTER_NAME = (("name", _TEXT, "by which it can be sampled and trained on"),)


_OPERATIONS: dict[type[Any], tuple[Operation, ...]] = {
    SamplingRoutes: (
        Operation(
            "POST", f"{_API}/asample", "Samples, and scores prompts.", SamplingRoutes.asample, schema.Sample
        ),
        Operation(
            "POST",
            f"{_API}/cancel_future",
            "Ends a call whose result nobody waits for.",
            SamplingRoutes.cancel_future,
            schema.RequestReference,
        ),
        Operation(
            "POST",
            f"{_API}/create_sampling_session",
            "Opens weights to be sampled.",
            SamplingRoutes.create_sampling_session,
            schema.CreateSampler,
        ),
        Operation(
            "POST",
            f"{_API}/join_sampling_session",
            "Uses a sampling session of another process.",
            SamplingRoutes.join_sampling_session,
            schema.SamplerReference,
            statuses=(404,),
        ),
        Operation(
            "GET",
            f"{_API}/samplers/{{sampler}}",
            "The base model and the weights of a sampling session.",
            SamplingRoutes.get_sampler,
            statuses=(404,),
        ),
    ),
    ServiceRoutes: (
        Operation(
            "POST",
            f"{_API}/retrieve_future",
            "The result of a call, once there is one.",
            ServiceRoutes.retrieve_future,
            schema.RetrieveFuture,
            statuses=(404, 408),
        ),
        Operation("GET", "/health", "Whether the server answers.", ServiceRoutes.healthz),
        Operation("GET", "/metrics", "For Prometheus.", ServiceRoutes.metrics, content_type="text/plain"),
        Operation("GET", f"{_API}/healthz", "Whether the server answers.", ServiceRoutes.healthz),
        Operation(
            "POST",
            f"{_API}/client/config",
            "Settings of the SDK; refuses versions that would be answered wrongly.",
            ServiceRoutes.client_config,
            schema.ConfigRequest,
        ),
        Operation(
            "POST",
            f"{_API}/client/dynamic_config",
            "Settings that the SDK asks for again from time to time.",
            ServiceRoutes.dynamic_config,
        ),
        Operation(
            "GET",
            f"{_API}/get_server_capabilities",
            "The base model and its longest sequence.",
            ServiceRoutes.capabilities,
        ),
        Operation(
            "POST",
            f"{_API}/create_session",
            "Begins a session: what a client creates belongs to it.",
            ServiceRoutes.create_session,
            schema.CreateSession,
        ),
        Operation(
            "POST",
            f"{_API}/session_heartbeat",
            "Keeps a session open.",
            ServiceRoutes.heartbeat,
            schema.SessionReference,
            statuses=(404,),
        ),
        Operation(
            "POST", f"{_API}/telemetry", "Accepted and not stored.", ServiceRoutes.telemetry, schema.Telemetry
        ),
        Operation(
            "POST",
            f"{_API}/create_custom_loss",
            "Not supported: no code of a client runs in the engine.",
            ServiceRoutes.not_supported,
        ),
        Operation(
            "POST",
            f"{_API}/sessions/{{session}}/finish",
            "Ends a session.",
            ServiceRoutes.finish_session,
            schema.FinishSession,
            statuses=(404,),
        ),
    ),
    TrainingRoutes: (
        Operation(
            "POST",
            f"{_API}/create_model",
            "Creates a LoRA adapter to train.",
            TrainingRoutes.create_model,
            schema.CreateModel,
        ),
        Operation(
            "POST",
            f"{_API}/get_info",
            "Base model and rank of an adapter.",
            TrainingRoutes.get_info,
            schema.ModelReference,
            statuses=(404,),
        ),
        Operation(
            "POST",
            f"{_API}/forward_backward",
            "Adds the gradients of a batch, or only computes its loss.",
            TrainingRoutes.forward_backward,
            body_content_type=PROTOBUF,
        ),
        Operation(
            "POST",
            f"{_API}/optim_step",
            "Changes the weights by the gradients.",
            TrainingRoutes.optim_step,
            schema.OptimStep,
            envelope=schema.NumberedBody,
        ),
        Operation(
            "POST",
            f"{_API}/load_weights",
            "Loads a checkpoint into an adapter, or creates one from it (CreateFrom).",
            TrainingRoutes.load_weights,
            schema.LoadWeights,
            envelope=schema.NumberedBody,
        ),
    ),
    SavingRoutes: (
        Operation(
            "POST",
            f"{_API}/save_weights",
            "Saves weights and optimizer.",
            SavingRoutes.save_weights,
            schema.SaveWeights,
            envelope=schema.NumberedBody,
        ),
        Operation(
            "POST",
            f"{_API}/save_weights_for_sampler",
            "Saves weights, or keeps them in memory, to be sampled.",
            SavingRoutes.save_weights_for_sampler,
            schema.SaveForSampler,
            envelope=schema.NumberedBody,
        ),
        Operation(
            "POST",
            f"{_API}/save_weights_external",
            "Saves weights as files to be downloaded.",
            SavingRoutes.save_weights_external,
            schema.SaveExternal,
            envelope=schema.NumberedBody,
        ),
    ),
    CheckpointRoutes: (
        Operation(
            "POST",
            f"{_API}/weights_info",
            "Base model and rank of a checkpoint.",
            CheckpointRoutes.weights_info,
            schema.PathReference,
            statuses=(404,),
        ),
        Operation(
            "POST",
            f"{_API}/copy_weights",
            "Copies a checkpoint into a run of this session.",
            CheckpointRoutes.copy_weights,
            schema.CopyWeights,
            statuses=(404,),
        ),
        Operation(
            "GET", f"{_API}/checkpoints", "All checkpoints.", CheckpointRoutes.list_checkpoints, query=_PAGE
        ),
        Operation(
            "GET", f"{_API}/training_runs", "All training runs.", CheckpointRoutes.list_runs, query=_PAGE
        ),
        Operation(
            "GET",
            f"{_API}/training_runs/{{run}}",
            "One training run.",
            CheckpointRoutes.get_run,
            statuses=(404,),
        ),
        Operation(
            "GET",
            f"{_API}/training_runs/{{run}}/checkpoints",
            "Its checkpoints.",
            CheckpointRoutes.list_run_checkpoints,
            statuses=(404,),
        ),
        Operation("DELETE", _CHECKPOINT, "Deletes a checkpoint.", CheckpointRoutes.delete, statuses=(404,)),
        Operation(
            "PUT",
            f"{_CHECKPOINT}/ttl",
            "Sets when it is deleted by itself.",
            CheckpointRoutes.set_ttl,
            schema.Ttl,
            statuses=(404,),
        ),
        Operation(
            "POST", f"{_CHECKPOINT}/publish", "Marks it as public.", CheckpointRoutes.publish, statuses=(404,)
        ),
        Operation(
            "DELETE", f"{_CHECKPOINT}/publish", "Removes the mark.", CheckpointRoutes.publish, statuses=(404,)
        ),
    ),
    DownloadRoutes: (
        Operation(
            "GET",
            f"{_CHECKPOINT}/external_weights_urls",
            "Signed addresses of its files.",
            DownloadRoutes.external_urls,
            statuses=(404,),
        ),
        Operation(
            "GET",
            f"{_CHECKPOINT}/archive",
            "The signed address of a tar of its files, for SDKs before 0.36.",
            DownloadRoutes.archive,
            statuses=(302, 404),
        ),
        Operation(
            "GET",
            f"{SIGNED_FILES}{{run}}/{{kind}}/{{name}}/{{file}}",
            "A file, by its signed address.",
            DownloadRoutes.file,
            query=_SIGNATURE,
            statuses=(404,),
            content_type="application/octet-stream",
        ),
    ),
    ImportRoutes: (
        Operation(
            "POST",
            f"{_API}/import_adapter",
            "Imports a PEFT adapter, sent as a tar.",
            ImportRoutes.import_adapter,
            query=_ADAPTER_NAME,
            body_content_type="application/x-tar",
        ),
    ),
    SessionRoutes: (
        Operation("GET", f"{_API}/sessions", "All sessions.", SessionRoutes.list_sessions, query=_PAGE),
        Operation(
            "POST",
            f"{_API}/sessions/search",
            "Sessions by metadata, name and state.",
            SessionRoutes.search_sessions,
            schema.SearchSessions,
        ),
        Operation(
            "GET", f"{_API}/sessions/{{session}}", "One session.", SessionRoutes.get_session, statuses=(404,)
        ),
        Operation(
            "PUT",
            f"{_API}/sessions/{{session}}/project",
            "Assigns a session to a project.",
            SessionRoutes.assign_project,
            schema.ProjectReference,
            statuses=(404,),
        ),
        Operation(
            "GET",
            f"{_API}/sessions/{{session}}/trace_export",
            "The calls of a session.",
            SessionRoutes.trace_export,
            statuses=(404,),
        ),
    ),
}
"""By the class that holds the handlers. Those that are called most come first: the first match counts."""
OPERATIONS = tuple(operation for operations in _OPERATIONS.values() for operation in operations)


def tinker_routes(state: EngineServerState) -> list[Operation]:
    return [
        replace(operation, handler=partial(operation.handler, handlers))
        for holder, operations in _OPERATIONS.items()
        for handlers in [holder(state)]
        for operation in operations
    ]
