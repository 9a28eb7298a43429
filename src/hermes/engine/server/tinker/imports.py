"""POST /api/v1/import_adapter?name=NAME: a PEFT adapter from outside, as a tar, becomes named checkpoints.

Two of them, `weights` to train on from and `sampler_weights`, in a run called NAME that nobody trains; NAME
is also what the OpenAI face calls it. It is there whole or not at all: what a killed process had begun is
begun anew when it is asked for again.
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
from hermes.engine.server.aliases import IMPORTED, RUN_KEY, check_alias
from hermes.engine.server.policies import MOVING
from hermes.engine.server.responses import RequestError, as_json
from hermes.engine.server.state import EngineServerState
from hermes.engine.types import EngineUserError

_CHECKPOINT = "imported"


class Imports:
    def __init__(self, state: EngineServerState) -> None:
        self._state = state
        self._engine = state.engine
        self._store = state.store
        self._under_way: set[str] = set()

    async def import_adapter(self, request: Request) -> Response:
        name = request.query_params.get("name", "")
        try:
            self._check(name)
        except EngineUserError:
            async for _ in request.stream():  # who is still sending does not hear the answer
                pass
            raise
        self._under_way.add(name)
        try:
            policy_id, made_for = await self._read(request, name)
            sampler = await self._keep(name, policy_id)
        finally:
            self._under_way.remove(name)
        answer: dict[str, Any] = {
            "name": name,
            "rank": self._engine.policy(policy_id).config.rank,
            "base_model": self._state.names.base_names[0],
            "made_for": made_for,
            "weights": str(CheckpointPath(name, WEIGHTS, _CHECKPOINT)),
            "sampler_weights": str(sampler.path),
        }
        return as_json(answer)

    def _check(self, name: str) -> None:
        check_name(name)
        check_alias(self._state.names, name)
        run = self._store.run(name)
        begun = run is not None and (
            run.session_id != IMPORTED
            or any(one.path.kind == SAMPLER_WEIGHTS for one in self._store.checkpoints(name))
        )
        if begun or name in (MOVING, *self._under_way, *self._state.names.names()):
            raise EngineUserError(f"the name '{name}' is taken", "choose another (--name)")

    async def _read(self, request: Request, name: str) -> tuple[str, str]:
        """The adapter as a policy, and the model that it says it was made for."""
        folder = self._state.scratch / os.urandom(8).hex()
        try:
            folder.mkdir(parents=True)
            await _receive(request, folder / "sent.tar")
            await asyncio.to_thread(unpack, folder / "sent.tar", folder, ADAPTER_FILES)
            policy_id = await asyncio.wrap_future(self._engine.load_policy(folder))
            settings = json.loads((folder / ADAPTER_FILES[0]).read_text(encoding="utf-8"))
            return policy_id, str(settings.get("base_model_name_or_path") or "")
        except EngineUserError as error:
            raise EngineUserError(error.message.replace(str(folder), f"'{name}'"), error.hint) from error
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _keep(self, name: str, policy_id: str) -> Checkpoint:
        config = self._engine.policy(policy_id).config
        run = TrainingRun(
            name, IMPORTED, self._state.names.base_names[0], config, time.time(), {RUN_KEY: name}
        )
        try:
            await asyncio.to_thread(self._store.add_run, run)
            await self._save(CheckpointPath(name, WEIGHTS, _CHECKPOINT), policy_id)
            sampler = await self._save(CheckpointPath(name, SAMPLER_WEIGHTS, _CHECKPOINT), policy_id)
        except BaseException:
            self._engine.drop_policy(policy_id)
            await asyncio.to_thread(self._store.drop_run, name)
            raise
        self._state.policies.adopt_named(sampler, policy_id)
        self._state.names.set(name, self._state.policies.named(sampler.path))
        return sampler

    async def _save(self, path: CheckpointPath, policy_id: str) -> Checkpoint:
        draft = self._store.draft(path, overwrite=True)
        await asyncio.wrap_future(self._engine.export(policy_id, draft))
        return await asyncio.to_thread(self._store.commit, path, draft, overwrite=True)


async def _receive(request: Request, place: Path) -> None:
    """The body, into a file as it comes: it may be larger than memory."""
    with place.open("wb") as file:
        try:
            async for part in request.stream():
                await asyncio.to_thread(file.write, part)
        except ClientDisconnect as error:
            raise RequestError(400, "the connection broke") from error
