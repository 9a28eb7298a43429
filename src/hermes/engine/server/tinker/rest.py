"""Training runs, checkpoints and sessions as REST resources: list, show, publish, expire, copy, delete."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from hermes.core import JSONObject
from hermes.core.ids import new_id
from hermes.engine.checkpoints.store import (
    EXTERNAL_WEIGHTS,
    SAMPLER_WEIGHTS,
    WEIGHTS,
    Checkpoint,
    CheckpointPath,
    TrainingRun,
    check_name,
    check_ttl,
)
from hermes.engine.server.responses import RequestError, as_json, read_json
from hermes.engine.server.state import EngineServerState
from hermes.engine.server.tinker import schema
from hermes.engine.server.tinker.downloads import find_checkpoint, requested_checkpoint
from hermes.engine.server.tinker.sessions import TinkerSession
from hermes.serving.openapi import operation

T = TypeVar("T")

_CHECKPOINT = "/api/v1/training_runs/{run}/checkpoints/{kind}/{name}"
_WHOLE = {"type": "integer", "minimum": 0}
_PAGE = (("offset", _WHOLE, "entries to leave out (0)"), ("limit", _WHOLE, "entries at most (20)"))
_CHECKPOINT_TYPES = {WEIGHTS: "training", SAMPLER_WEIGHTS: "sampler", EXTERNAL_WEIGHTS: "external"}
_OWNER = "local"
_MAX_DIGITS = 15
_MAX_COPIES = 1000
"""Idempotency keys that are remembered."""


class CheckpointRoutes:
    """Training runs and their checkpoints."""

    def __init__(self, state: EngineServerState) -> None:
        self._state = state
        self._store = state.store
        self._copies: dict[str, str] = {}
        """Idempotency key → path of the copy."""

    @operation("GET", "/api/v1/training_runs", query=_PAGE)
    async def list_runs(self, request: Request) -> Response:
        """All training runs."""
        page, cursor = _page(request, self._store.runs())
        return as_json({"training_runs": [self._run_json(run) for run in page], "cursor": cursor})

    @operation("GET", "/api/v1/training_runs/{run}", statuses=(404,))
    async def get_run(self, request: Request) -> Response:
        """One training run."""
        return as_json(self._run_json(self._requested_run(request)))

    @operation("GET", "/api/v1/training_runs/{run}/checkpoints", statuses=(404,))
    async def list_run_checkpoints(self, request: Request) -> Response:
        """Its checkpoints."""
        checkpoints = self._store.checkpoints(self._requested_run(request).id)
        return as_json({"checkpoints": [_checkpoint_json(checkpoint) for checkpoint in checkpoints]})

    @operation("GET", "/api/v1/checkpoints", query=_PAGE)
    async def list_checkpoints(self, request: Request) -> Response:
        """All checkpoints."""
        page, cursor = _page(request, self._store.checkpoints())
        return as_json(
            {"checkpoints": [_checkpoint_json(checkpoint) for checkpoint in page], "cursor": cursor}
        )

    @operation("POST", "/api/v1/weights_info", schema.PathReference, statuses=(404,))
    async def weights_info(self, request: Request) -> Response:
        """Base model and rank of a checkpoint."""
        body = await read_json(request, schema.PathReference)
        run = self._run_of(CheckpointPath.parse(body.tinker_path))
        return as_json(
            {
                "base_model": run.base_model,
                "is_lora": True,
                "lora_rank": run.lora.rank,
                "train_unembed": run.lora.train_unembed,
                "train_mlp": run.lora.train_mlp,
                "train_attn": run.lora.train_attn,
                "optimizer_config": {"type": "adamw"},
            }
        )

    @operation("DELETE", _CHECKPOINT, statuses=(404,))
    async def delete(self, request: Request) -> Response:
        """Deletes a checkpoint."""
        checkpoint = requested_checkpoint(self._store, request)
        async with self._state.policies.replacement(checkpoint.path):
            await self._state.policies.copy_on_replace(checkpoint)
            await asyncio.to_thread(self._store.delete, checkpoint)
        return Response(status_code=204)

    @operation("POST", f"{_CHECKPOINT}/publish", statuses=(404,))
    @operation(
        "DELETE",
        f"{_CHECKPOINT}/publish",
        statuses=(404,),
        summary="Removes the mark.",
    )
    async def publish(self, request: Request) -> Response:
        """Marks it as public."""
        path = requested_checkpoint(self._store, request).path
        await asyncio.to_thread(self._store.set_public, path, request.method == "POST")
        return Response(status_code=204)

    @operation("PUT", f"{_CHECKPOINT}/ttl", schema.Ttl, statuses=(404,))
    async def set_ttl(self, request: Request) -> Response:
        """Sets when it is deleted by itself."""
        body = await read_json(request, schema.Ttl)
        check_ttl(body.ttl_seconds)
        path = requested_checkpoint(self._store, request).path
        await asyncio.to_thread(self._store.set_ttl, path, body.ttl_seconds)
        return Response(status_code=204)

    @operation("POST", "/api/v1/copy_weights", schema.CopyWeights, statuses=(404,))
    async def copy_weights(self, request: Request) -> Response:
        """Copies a checkpoint into a new run of this session, once for each idempotency key."""
        body = await read_json(request, schema.CopyWeights)
        check_ttl(body.ttl_seconds)
        key = request.headers.get("x-idempotency-key", "")
        path = self._copies.get(key)
        if path is None:
            path = await self._copy(body)
            if key:
                self._copies[key] = path
            while len(self._copies) > _MAX_COPIES:
                del self._copies[next(iter(self._copies))]
        return as_json({"tinker_path": path})

    async def _copy(self, body: schema.CopyWeights) -> str:
        path = CheckpointPath.parse(body.source_path)
        source = self._run_of(path)
        session_id = body.session_id or new_id()
        check_name(session_id)
        run_id = f"{session_id}:train:{body.model_seq_id or 0}"
        if self._store.run(run_id) is not None:
            raise RequestError(400, f"run {run_id} exists already")
        run = TrainingRun(
            run_id, session_id, source.base_model, source.lora, time.time(), source.user_metadata
        )
        copy = await asyncio.to_thread(self._store.copy, path, run, body.ttl_seconds)
        return str(copy.path)

    def _requested_run(self, request: Request) -> TrainingRun:
        run_id = request.path_params["run"]
        run = self._store.run(run_id)
        if run is None:
            raise RequestError(404, f"there is no training run {run_id}")
        return run

    def _run_of(self, path: CheckpointPath) -> TrainingRun:
        """RequestError: the checkpoint does not exist."""
        find_checkpoint(self._store, path)
        run = self._store.run(path.run_id)
        assert run is not None, "a checkpoint is stored with its run"
        return run

    def _run_json(self, run: TrainingRun) -> JSONObject:
        checkpoints = self._store.checkpoints(run.id)
        requests_s = [
            model.last_request_s
            for session in self._state.sessions.all()
            for model in session.models.values()
            if model.run.id == run.id
        ]
        last_request_s = max(
            [run.created_s, *requests_s, *(checkpoint.created_s for checkpoint in checkpoints)]
        )
        return {
            "training_run_id": run.id,
            "base_model": run.base_model,
            "model_owner": _OWNER,
            "is_lora": True,
            "corrupted": False,
            "lora_rank": run.lora.rank,
            "last_request_time": _iso_time(last_request_s),
            "last_checkpoint": _newest_json(checkpoints, WEIGHTS),
            "last_sampler_checkpoint": _newest_json(checkpoints, SAMPLER_WEIGHTS),
            "user_metadata": dict(run.user_metadata),
        }


class SessionRoutes:
    def __init__(self, state: EngineServerState) -> None:
        self._sessions = state.sessions
        self._store = state.store

    @operation("GET", "/api/v1/sessions", query=_PAGE)
    async def list_sessions(self, request: Request) -> Response:
        """All sessions."""
        page, _ = _page(request, self._session_ids())
        return as_json({"sessions": page})

    @operation("GET", "/api/v1/sessions/{session}", statuses=(404,))
    async def get_session(self, request: Request) -> Response:
        """A session of this process, or an earlier one that has runs on disk."""
        session_id = request.path_params["session"]
        if session_id not in self._session_ids():
            raise RequestError(404, f"there is no session {session_id}")
        session = next((session for session in self._sessions.all() if session.id == session_id), None)
        run_ids = [model.run.id for model in session.models.values()] if session else []
        run_ids += [run.id for run in self._store.runs() if run.session_id == session_id]
        return as_json(
            {
                "training_run_ids": list(dict.fromkeys(run_ids)),
                "sampler_ids": [sampler.id for sampler in session.samplers.values()] if session else [],
                "user_metadata": dict(session.user_metadata) if session else None,
                "display_name": session.display_name if session else None,
            }
        )

    @operation("POST", "/api/v1/sessions/search", schema.SearchSessions)
    async def search_sessions(self, request: Request) -> Response:
        """Sessions by metadata, name and state."""
        query = await read_json(request, schema.SearchSessions)
        sessions = [session for session in self._sessions.all() if _matches(session, query)]
        if query.cursor is not None:
            ids = [session.id for session in sessions]
            last_id = query.cursor.last_session_id
            sessions = sessions[ids.index(last_id) + 1 :] if last_id in ids else []
        page, cursor = sessions[: query.limit], None
        if len(sessions) > query.limit:
            cursor = {"last_created_at": _iso_time(page[-1].created_s), "last_session_id": page[-1].id}
        return as_json({"sessions": [self._summary(session) for session in page], "next_cursor": cursor})

    @operation("PUT", "/api/v1/sessions/{session}/project", schema.ProjectReference, statuses=(404,))
    async def assign_project(self, request: Request) -> Response:
        """Assigns a session to a project."""
        body = await read_json(request, schema.ProjectReference)
        self._sessions.find(request.path_params["session"]).project_id = body.project_id
        return Response(status_code=204)

    @operation("GET", "/api/v1/sessions/{session}/trace_export", statuses=(404,))
    async def trace_export(self, request: Request) -> Response:
        """The calls of a session."""
        return as_json({"status": "failed", "error": "this engine records no traces"})

    def _session_ids(self) -> list[str]:
        """Newest first; sessions of earlier processes only if they have a run."""
        session_ids = [session.id for session in self._sessions.all()]
        return list(dict.fromkeys([*session_ids, *(run.session_id for run in self._store.runs())]))

    def _summary(self, session: TinkerSession) -> JSONObject:
        run_ids = {model.run.id for model in session.models.values()}
        sizes_bytes = [
            checkpoint.size_bytes
            for checkpoint in self._store.checkpoints()
            if checkpoint.path.run_id in run_ids
        ]
        return {
            "session_id": session.id,
            "created_at": _iso_time(session.created_s),
            "owner": _OWNER,
            "project_id": session.project_id or "",
            "status": session.status,
            "checkpoints_count": len(sizes_bytes),
            "display_name": session.display_name,
            "user_metadata": dict(session.user_metadata),
            "checkpoint_storage_bytes": sum(sizes_bytes),
        }


def _newest_json(checkpoints: Sequence[Checkpoint], kind: str) -> JSONObject | None:
    """`checkpoints`: newest first."""
    newest = next((checkpoint for checkpoint in checkpoints if checkpoint.path.kind == kind), None)
    return None if newest is None else _checkpoint_json(newest)


def _checkpoint_json(checkpoint: Checkpoint) -> JSONObject:
    path, metadata = checkpoint.path, checkpoint.user_metadata
    return {
        "checkpoint_id": f"{path.kind}/{path.name}",
        "checkpoint_type": _CHECKPOINT_TYPES[path.kind],
        "time": _iso_time(checkpoint.created_s),
        "tinker_path": str(path),
        "size_bytes": checkpoint.size_bytes,
        "public": checkpoint.public,
        "user_metadata": None if metadata is None else dict(metadata),
        "expires_at": None if checkpoint.expires_s is None else _iso_time(checkpoint.expires_s),
    }


def _matches(session: TinkerSession, query: schema.SearchSessions) -> bool:
    return (
        _matches_id_or_name(session, query)
        and (query.project_ids is None or session.project_id in query.project_ids)
        and query.user_metadata.items() <= session.user_metadata.items()
        and (query.statuses is None or any(_has_status(session, status) for status in query.statuses))
    )


def _matches_id_or_name(session: TinkerSession, query: schema.SearchSessions) -> bool:
    """A query with both an id and a name matches either; the words of a name match in any order."""
    if query.session_id is None and query.display_name is None:
        return True
    words = (query.display_name or "").lower().split()
    name = (session.display_name or "").lower()
    return session.id == query.session_id or (bool(words) and all(word in name for word in words))


def _has_status(session: TinkerSession, query: schema.StatusQuery) -> bool:
    if session.status["type"] != query.type:
        return False
    return query.reasons is None or session.status.get("reason", {}).get("type") in query.reasons


def _page(request: Request, rows: list[T]) -> tuple[list[T], dict[str, int]]:
    """The rows that the query parameters `offset` and `limit` select, and the cursor."""
    offset, limit = _int_param(request, "offset", 0), _int_param(request, "limit", 20)
    cursor = {"offset": offset, "limit": limit, "total_count": len(rows)}
    return rows[offset : offset + limit], cursor


def _int_param(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise RequestError(422, f"{name}: must be a whole number from 0, not '{text[:80]}'")
    return int(text)


def _iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
