"""POST /api/v1/import_adapter?name=NAME: imports a PEFT adapter, sent as a tar.

It becomes two checkpoints of a run called NAME, which has no training client: `weights` to continue training
from, and `sampler_weights`. NAME is also its model name in the OpenAI API. The import is complete or absent:
one that was interrupted by the end of the process can be sent again.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hermes.engine.checkpoints.store import (
    SAMPLER_WEIGHTS,
    WEIGHTS,
    Checkpoint,
    CheckpointPath,
    TrainingRun,
    check_name,
)
from hermes.engine.lora.adapter_tar import ADAPTER_FILES, unpack
from hermes.engine.server.policies import IMPORT_SESSION, LATEST_POLICY, RUN_ALIAS_KEY, check_alias
from hermes.engine.server.responses import RequestError, as_json
from hermes.engine.server.state import EngineServerState
from hermes.engine.types import EngineUserError
from hermes.serving.openapi import operation

_CHECKPOINT = "imported"
_NAME = (("name", {"type": "string"}, "by which it can be sampled and trained on"),)
_MAX_UPLOAD_BYTES = 16 << 30
_RESERVED_BYTES = 1 << 30
"""Disk space that is left for the checkpoints of running trainings."""


class ImportRoutes:
    def __init__(self, state: EngineServerState) -> None:
        self._state = state
        self._engine = state.engine
        self._store = state.store
        self._in_progress: set[str] = set()

    @operation("POST", "/api/v1/import_adapter", query=_NAME, body_content_type="application/x-tar")
    async def import_adapter(self, request: Request) -> Response:
        """Imports a PEFT adapter, sent as a tar."""
        name = request.query_params.get("name", "")
        try:
            self._check_name(name)
        except EngineUserError:
            async for _ in request.stream():  # a client reads the response only after it has sent the body
                pass
            raise
        self._in_progress.add(name)
        try:
            policy_id, made_for = await self._load_policy(request, name)
            sampler = await self._store_checkpoints(name, policy_id)
        finally:
            self._in_progress.remove(name)
        imported: dict[str, Any] = {
            "name": name,
            "rank": self._engine.policy(policy_id).config.rank,
            "base_model": self._state.names.base_names[0],
            "made_for": made_for,
            "weights": str(CheckpointPath(name, WEIGHTS, _CHECKPOINT)),
            "sampler_weights": str(sampler.path),
        }
        return as_json(imported)

    def _check_name(self, name: str) -> None:
        check_name(name)
        check_alias(self._state.names, name)
        run = self._store.run(name)
        kinds = [checkpoint.path.kind for checkpoint in self._store.checkpoints(name)]
        exists = run is not None and (run.session_id != IMPORT_SESSION or SAMPLER_WEIGHTS in kinds)
        if exists or name in (LATEST_POLICY, *self._in_progress, *self._state.names.names()):
            raise EngineUserError(f"the name '{name}' is taken", "choose another (--name)")

    async def _load_policy(self, request: Request, name: str) -> tuple[str, str]:
        """The id of the adapter's policy, and the base model that its config names."""
        folder = self._state.scratch_dir / os.urandom(8).hex()
        try:
            folder.mkdir(parents=True)
            await _receive(request, folder / "sent.tar")
            await asyncio.to_thread(unpack, folder / "sent.tar", folder, ADAPTER_FILES)
            policy_id = await asyncio.wrap_future(self._engine.load_policy(folder))
            config = json.loads((folder / ADAPTER_FILES[0]).read_text(encoding="utf-8"))
            return policy_id, str(config.get("base_model_name_or_path") or "")[:500]
        except EngineUserError as error:
            raise EngineUserError(error.message.replace(str(folder), f"'{name}'"), error.hint) from error
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _store_checkpoints(self, name: str, policy_id: str) -> Checkpoint:
        config = self._engine.policy(policy_id).config
        run = TrainingRun(
            name, IMPORT_SESSION, self._state.names.base_names[0], config, time.time(), {RUN_ALIAS_KEY: name}
        )
        try:
            await asyncio.to_thread(self._store.add_run, run)
            await self._save(CheckpointPath(name, WEIGHTS, _CHECKPOINT), policy_id)
            sampler = await self._save(CheckpointPath(name, SAMPLER_WEIGHTS, _CHECKPOINT), policy_id)
        except BaseException:
            self._engine.drop_policy(policy_id)
            await asyncio.to_thread(self._store.drop_run, name)
            raise
        self._state.policies.add_checkpoint(sampler, policy_id)
        self._state.names.set(name, self._state.policies.checkpoint_key(sampler.path))
        return sampler

    async def _save(self, path: CheckpointPath, policy_id: str) -> Checkpoint:
        draft = self._store.draft(path, overwrite=True)
        await asyncio.wrap_future(self._engine.export(policy_id, draft))
        return await asyncio.to_thread(self._store.commit, path, draft, overwrite=True)


async def _receive(request: Request, path: Path) -> None:
    """Writes the body to a file while it arrives: it may be larger than memory, not than the disk."""
    room_bytes = min(_MAX_UPLOAD_BYTES, shutil.disk_usage(path.parent).free - _RESERVED_BYTES)
    received_bytes = 0
    with path.open("wb") as file:
        try:
            async for part in request.stream():
                received_bytes += len(part)
                if received_bytes > room_bytes:
                    raise RequestError(
                        413, f"the adapter is larger than the {max(0, room_bytes)} bytes left for it"
                    )
                await asyncio.to_thread(file.write, part)
        except ClientDisconnect as error:
            raise RequestError(400, "the client disconnected before the body was complete") from error
