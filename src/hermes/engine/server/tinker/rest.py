"""Runs, checkpoints and sessions as resources: list, look at, publish, expire, copy, delete."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hermes.core.ids import new_id
from hermes.engine.checkpoints.store import (
    EXTERNAL_WEIGHTS,
    SAMPLER_WEIGHTS,
    WEIGHTS,
    Checkpoint,
    CheckpointPath,
    TrainingRun,
    check_ttl,
)
from hermes.engine.server.responses import RequestError, as_json, read_json
from hermes.engine.server.state import EngineServerState
from hermes.engine.server.tinker import schema
from hermes.engine.server.tinker.downloads import found, path_of
from hermes.engine.server.tinker.sessions import TinkerSession

_TYPES = {WEIGHTS: "training", SAMPLER_WEIGHTS: "sampler", EXTERNAL_WEIGHTS: "external"}
_OWNER = "local"


class Rest:
    def __init__(self, state: EngineServerState) -> None:
        self._state = state
        self._store = state.store
        self._copies: dict[str, str] = {}
        """Idempotency key → the copy it made."""

    async def runs(self, request: Request) -> Response:
        page, cursor = _page(request, self._store.runs())
        return as_json({"training_runs": [self._run_json(run) for run in page], "cursor": cursor})

    async def run(self, request: Request) -> Response:
        return as_json(self._run_json(self._run(request)))

    async def run_checkpoints(self, request: Request) -> Response:
        run = self._run(request)
        return as_json(
            {"checkpoints": [_checkpoint_json(found) for found in self._store.checkpoints(run.id)]}
        )

    async def checkpoints(self, request: Request) -> Response:
        page, cursor = _page(request, self._store.checkpoints())
        return as_json({"checkpoints": [_checkpoint_json(found) for found in page], "cursor": cursor})

    async def weights_info(self, request: Request) -> Response:
        path = CheckpointPath.parse((await read_json(request, schema.PathReference)).tinker_path)
        found(self._store, path)
        run = self._store.run(path.run_id)
        assert run is not None, "a checkpoint is only kept with its run"
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

    async def delete(self, request: Request) -> Response:
        checkpoint = found(self._store, path_of(self._store, request))
        await self._state.policies.detach(checkpoint)
        await asyncio.to_thread(self._store.delete, checkpoint)
        return Response(status_code=204)

    async def publish(self, request: Request) -> Response:
        await asyncio.to_thread(
            self._store.set_public, path_of(self._store, request), request.method == "POST"
        )
        return Response(status_code=204)

    async def set_ttl(self, request: Request) -> Response:
        asked = await read_json(request, schema.Ttl)
        check_ttl(asked.ttl_seconds)
        await asyncio.to_thread(self._store.set_ttl, path_of(self._store, request), asked.ttl_seconds)
        return Response(status_code=204)

    async def copy(self, request: Request) -> Response:
        """A copy in a run of its own, which nobody trains. Asked for twice under one key, it is made once."""
        asked = await read_json(request, schema.CopyWeights)
        check_ttl(asked.ttl_seconds)
        key = request.headers.get("x-idempotency-key", "")
        if key not in self._copies:
            path = CheckpointPath.parse(asked.source_path)
            found(self._store, path)
            source = self._store.run(path.run_id)
            assert source is not None, "a checkpoint is only kept with its run"
            session_id = asked.session_id or new_id()
            run_id = f"{session_id}:train:{asked.model_seq_id or 0}"
            if self._store.run(run_id) is not None:
                raise RequestError(400, f"run {run_id} exists already")
            run = TrainingRun(
                run_id, session_id, source.base_model, source.lora, time.time(), source.user_metadata
            )
            copy = await asyncio.to_thread(self._store.copy, path, run, asked.ttl_seconds)
            if not key:
                return as_json({"tinker_path": str(copy.path)})
            self._copies[key] = str(copy.path)
        return as_json({"tinker_path": self._copies[key]})

    async def sessions(self, request: Request) -> Response:
        page, _ = _page(request, self._session_ids())
        return as_json({"sessions": page})

    async def session(self, request: Request) -> Response:
        session_id = request.path_params["session"]
        if session_id not in self._session_ids():
            raise RequestError(404, f"there is no session {session_id}")
        known = next((found for found in self._state.sessions.all() if found.id == session_id), None)
        made = [model.run.id for model in known.models.values()] if known else []
        kept = [run.id for run in self._store.runs() if run.session_id == session_id]
        return as_json(
            {
                "training_run_ids": list(dict.fromkeys([*made, *kept])),
                "sampler_ids": [sampler.id for sampler in known.samplers.values()] if known else [],
                "user_metadata": dict(known.user_metadata) if known else None,
                "display_name": known.display_name if known else None,
            }
        )

    async def search_sessions(self, request: Request) -> Response:
        asked = await read_json(request, schema.SearchSessions)
        found = [session for session in self._state.sessions.all() if _matches(session, asked)]
        if asked.cursor is not None:
            ids = [session.id for session in found]
            last = asked.cursor.last_session_id
            found = found[ids.index(last) + 1 :] if last in ids else []
        page, more = found[: asked.limit], len(found) > asked.limit
        cursor = (
            {"last_created_at": _moment(page[-1].created_s), "last_session_id": page[-1].id} if more else None
        )
        return as_json({"sessions": [self._summary(session) for session in page], "next_cursor": cursor})

    async def assign_project(self, request: Request) -> Response:
        asked = await read_json(request, schema.ProjectReference)
        self._state.sessions.find(request.path_params["session"]).project_id = asked.project_id
        return Response(status_code=204)

    async def trace(self, request: Request) -> Response:
        return as_json({"status": "failed", "error": "this engine records no traces"})

    def _session_ids(self) -> list[str]:
        """Newest first; of sessions from before the engine started, those that left a run."""
        known = [session.id for session in self._state.sessions.all()]
        return list(dict.fromkeys([*known, *(run.session_id for run in self._store.runs())]))

    def _summary(self, session: TinkerSession) -> dict[str, Any]:
        runs = {model.run.id for model in session.models.values()}
        kept = [found for found in self._store.checkpoints() if found.path.run_id in runs]
        return {
            "session_id": session.id,
            "created_at": _moment(session.created_s),
            "owner": _OWNER,
            "project_id": session.project_id or "",
            "status": session.status,
            "checkpoints_count": len(kept),
            "display_name": session.display_name,
            "user_metadata": dict(session.user_metadata),
            "checkpoint_storage_bytes": sum(found.size_bytes for found in kept),
        }

    def _run(self, request: Request) -> TrainingRun:
        run = self._store.run(request.path_params["run"])
        if run is None:
            raise RequestError(404, f"there is no training run {request.path_params['run']}")
        return run

    def _run_json(self, run: TrainingRun) -> dict[str, Any]:
        kept = self._store.checkpoints(run.id)
        last = {
            kind: next((_checkpoint_json(found) for found in kept if found.path.kind == kind), None)
            for kind in (WEIGHTS, SAMPLER_WEIGHTS)
        }
        heard_s = max([run.created_s, *(found.created_s for found in kept)])
        for session in self._state.sessions.all():
            heard_s = max(
                [heard_s, *(m.last_request_s for m in session.models.values() if m.run.id == run.id)]
            )
        return {
            "training_run_id": run.id,
            "base_model": run.base_model,
            "model_owner": _OWNER,
            "is_lora": True,
            "corrupted": False,
            "lora_rank": run.lora.rank,
            "last_request_time": _moment(heard_s),
            "last_checkpoint": last[WEIGHTS],
            "last_sampler_checkpoint": last[SAMPLER_WEIGHTS],
            "user_metadata": dict(run.user_metadata),
        }


def _checkpoint_json(checkpoint: Checkpoint) -> dict[str, Any]:
    path, metadata = checkpoint.path, checkpoint.user_metadata
    return {
        "checkpoint_id": f"{path.kind}/{path.name}",
        "checkpoint_type": _TYPES[path.kind],
        "time": _moment(checkpoint.created_s),
        "tinker_path": str(path),
        "size_bytes": checkpoint.size_bytes,
        "public": checkpoint.public,
        "user_metadata": None if metadata is None else dict(metadata),
        "expires_at": None if checkpoint.expires_s is None else _moment(checkpoint.expires_s),
    }


def _matches(session: TinkerSession, asked: schema.SearchSessions) -> bool:
    name = (session.display_name or "").lower()
    if asked.session_id is not None or asked.display_name is not None:
        words = (asked.display_name or "").lower().split()
        named = bool(words) and all(word in name for word in words)
        if session.id != asked.session_id and not named:
            return False
    if asked.project_ids is not None and session.project_id not in asked.project_ids:
        return False
    if any(session.user_metadata.get(key) != value for key, value in asked.user_metadata.items()):
        return False
    return asked.statuses is None or any(_has_status(session, query) for query in asked.statuses)


def _has_status(session: TinkerSession, query: schema.StatusQuery) -> bool:
    if session.status["type"] != query.type:
        return False
    return query.reasons is None or session.status.get("reason", {}).get("type") in query.reasons


def _page(request: Request, items: list[Any]) -> tuple[list[Any], dict[str, int]]:
    offset, limit = _number(request, "offset", 0), _number(request, "limit", 20)
    cursor = {"offset": offset, "limit": limit, "total_count": len(items)}
    return items[offset : offset + limit], cursor


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isdecimal():
        raise RequestError(422, f"{name}: a whole number from 0, not '{text[:80]}'")
    return int(text)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
