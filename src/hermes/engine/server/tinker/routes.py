"""The Tinker API: every endpoint of the public SDK, and the engine's health, metrics and adapter import."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from hermes.engine.server.state import EngineServerState
from hermes.engine.server.tinker.downloads import DownloadRoutes
from hermes.engine.server.tinker.imports import ImportRoutes
from hermes.engine.server.tinker.rest import CheckpointRoutes, SessionRoutes
from hermes.engine.server.tinker.sampling import SamplingRoutes
from hermes.engine.server.tinker.saving import SavingRoutes
from hermes.engine.server.tinker.service import ServiceRoutes
from hermes.engine.server.tinker.training import TrainingRoutes
from hermes.serving.openapi import Operation, operations_of

_HANDLERS: tuple[type[Any], ...] = (
    SamplingRoutes,
    ServiceRoutes,
    TrainingRoutes,
    SavingRoutes,
    CheckpointRoutes,
    DownloadRoutes,
    ImportRoutes,
    SessionRoutes,
)
"""Those that are called most come first: the first match counts."""
OPERATIONS = tuple(operation for holder in _HANDLERS for operation in operations_of(holder))


def tinker_routes(state: EngineServerState) -> list[Operation]:
    return [
        replace(operation, handler=partial(operation.handler, handlers))
        for holder in _HANDLERS
        for handlers in [holder(state)]
        for operation in operations_of(holder)
    ]
