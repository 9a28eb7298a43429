"""The saving endpoints of the Tinker API: checkpoints to resume from, to sample, and to download.

A sampler gets a frozen snapshot, which later training does not change. With a name it is also written as a
checkpoint; without one it is a reference in memory. A checkpoint is complete or absent: a failed save leaves
nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from hermes.engine.checkpoints.store import (
    EXTERNAL_WEIGHTS,
    SAMPLER_WEIGHTS,
    WEIGHTS,
    Checkpoint,
    CheckpointPath,
    check_ttl,
)
from hermes.engine.server.policies import LATEST_POLICY, alias_in, policy_key
from hermes.engine.server.responses import read_body
from hermes.engine.server.state import EngineServerState
from hermes.engine.server.tinker import schema
from hermes.engine.server.tinker.calls import read_call
from hermes.engine.server.tinker.futures import Payload, json_payload
from hermes.engine.server.tinker.sessions import Model, SamplingSession, TinkerSession
from hermes.engine.types import EngineUserError
from hermes.serving.openapi import operation

Write: TypeAlias = Callable[[Path], Future[int]]


class SavingRoutes:
    def __init__(self, state: EngineServerState) -> None:
        self._state = state
        self._engine = state.engine

    @operation("POST", "/api/v1/save_weights", schema.SaveWeights, envelope=schema.NumberedBody)
    async def save_weights(self, request: Request) -> Response:
        """Saves weights and optimizer."""
        call = read_call(await read_body(request))
        model = self._state.sessions.model(call.model_id)

        async def start() -> Payload:
            body = call.parse(schema.SaveWeights)
            path = _checkpoint_path(model, WEIGHTS, body)
            adapter_id = model.require_adapter()
            await self._write(path, body, lambda draft: self._engine.save(adapter_id, draft, True))
            return json_payload({"path": str(path), "type": "save_weights"})

        return model.calls.accept(call.number, "save_weights", call.digest, start, exclusive=True)

    @operation(
        "POST", "/api/v1/save_weights_for_sampler", schema.SaveForSampler, envelope=schema.NumberedBody
    )
    async def save_weights_for_sampler(self, request: Request) -> Response:
        """Saves weights, or keeps them in memory, to be sampled."""
        call = read_call(await read_body(request))
        model = self._state.sessions.model(call.model_id)
        session = self._state.sessions.find_active(model.run.session_id)

        def start() -> Awaitable[Payload]:
            body = call.parse(schema.SaveForSampler)
            alias_in(self._state.names, body.user_metadata)  # an invalid alias fails before the snapshot
            snapshot = self._engine.snapshot(model.require_adapter())
            if body.path is None:
                return self._publish_sampler(model, session, call.number, body, snapshot)
            return self._publish_checkpoint(model, call.number, body, snapshot)

        return model.calls.accept(call.number, "save_for_sampler", call.digest, start)

    @operation("POST", "/api/v1/save_weights_external", schema.SaveExternal, envelope=schema.NumberedBody)
    async def save_weights_external(self, request: Request) -> Response:
        """Saves weights as files to be downloaded."""
        call = read_call(await read_body(request))
        model = self._state.sessions.model(call.model_id)

        def start() -> Awaitable[Payload]:
            body = call.parse(schema.SaveExternal)
            if body.age_encryption_recipients:
                raise EngineUserError(
                    "this engine does not encrypt weights to age recipients",
                    "save without age_encryption_recipients, and encrypt what was downloaded",
                )
            return self._export(model, body, self._engine.snapshot(model.require_adapter()))

        return model.calls.accept(call.number, "save_external", call.digest, start)

    async def _publish_sampler(
        self,
        model: Model,
        session: TinkerSession,
        number: int,
        body: schema.SaveForSampler,
        snapshot: Future[str],
    ) -> Payload:
        """The snapshot becomes an ephemeral sampler."""
        policy_id = await asyncio.wrap_future(snapshot)
        sampler_number = body.sampling_session_seq_id
        if sampler_number is None or sampler_number in session.samplers or session.end_reason:
            self._engine.drop_policy(policy_id)
            raise EngineUserError(session.end_reason or "a path or a new sampling_session_seq_id is required")
        sampler_id = session.sampler_id(sampler_number)
        self._state.policies.add_snapshot(sampler_id, policy_id)
        session.samplers[sampler_number] = SamplingSession(sampler_id, model.run.base_model, None, sampler_id)
        self._state.names.set(sampler_id, sampler_id)
        self._publish(model, number, body, sampler_id)
        return json_payload(
            {"path": None, "sampling_session_id": sampler_id, "type": "save_weights_for_sampler"}
        )

    async def _publish_checkpoint(
        self, model: Model, number: int, body: schema.SaveForSampler, snapshot: Future[str]
    ) -> Payload:
        """The snapshot becomes a checkpoint, and stays in memory for the requests that sample it next."""
        policy_id = await asyncio.wrap_future(snapshot)
        path = _checkpoint_path(model, SAMPLER_WEIGHTS, body)
        try:
            checkpoint = await self._write(path, body, lambda draft: self._engine.export(policy_id, draft))
        except BaseException:
            self._engine.drop_policy(policy_id)
            raise
        self._state.policies.add_checkpoint(checkpoint, policy_id)
        self._publish(model, number, body, policy_key(checkpoint))
        return json_payload({"path": str(path), "type": "save_weights_for_sampler"})

    async def _export(self, model: Model, body: schema.SaveExternal, snapshot: Future[str]) -> Payload:
        policy_id = await asyncio.wrap_future(snapshot)
        path = _checkpoint_path(model, EXTERNAL_WEIGHTS, body)
        try:
            checkpoint = await self._write(path, body, lambda draft: self._engine.export(policy_id, draft))
        finally:
            self._engine.drop_policy(policy_id)
        return json_payload(
            {"path": str(path), "type": "save_weights_external", "size_bytes": checkpoint.size_bytes}
        )

    def _publish(self, model: Model, number: int, body: schema.SaveForSampler, key: str) -> None:
        """Moves the model's names to these weights, unless they refer to those of a later call already."""
        if number < model.published_call or self._state.sessions.find(model.run.session_id).end_reason:
            return
        model.published_call = number
        alias = alias_in(self._state.names, body.user_metadata)
        for name in (model.run.id, model.alias, alias, LATEST_POLICY):
            if name is not None:
                self._state.names.set(name, key)

    async def _write(self, path: CheckpointPath, body: schema.SaveWeights, write: Write) -> Checkpoint:
        """Commits what `write` writes as a checkpoint, completely or not at all."""
        store = self._state.store
        check_ttl(body.ttl_seconds)
        draft = store.draft(path, overwrite=body.overwrite)
        try:
            await asyncio.wrap_future(write(draft))
            async with self._state.policies.replacement(path):
                for checkpoint in store.checkpoints(path.run_id):
                    if checkpoint.path == path:
                        await self._state.policies.copy_on_replace(checkpoint)
                return await asyncio.to_thread(
                    store.commit,
                    path,
                    draft,
                    user_metadata=body.user_metadata,
                    ttl_s=body.ttl_seconds,
                    overwrite=body.overwrite,
                )
        except BaseException:
            store.discard(draft)
            raise


def _checkpoint_path(model: Model, kind: str, body: schema.SaveWeights) -> CheckpointPath:
    if body.path is None:
        raise EngineUserError("a checkpoint needs a name")
    return CheckpointPath(model.run.id, kind, body.path)
