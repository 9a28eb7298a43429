"""Saving: checkpoints to resume from, weights for samplers, weights for the outside.

A sampler gets a frozen snapshot, which later training never changes: a named one is also written, one without
a name is a pointer only. What is written is there whole or not at all; a failed save leaves nothing behind.
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
from hermes.engine.server.aliases import alias_of
from hermes.engine.server.policies import MOVING
from hermes.engine.server.responses import read_body
from hermes.engine.server.state import EngineServerState
from hermes.engine.server.tinker import schema
from hermes.engine.server.tinker.external import check_recipients, encrypt_files
from hermes.engine.server.tinker.futures import Payload, json_payload
from hermes.engine.server.tinker.numbered import accepted, adapter_of, numbered
from hermes.engine.server.tinker.sessions import Model, SamplingSession, TinkerSession
from hermes.engine.types import EngineUserError

Write: TypeAlias = Callable[[Path], Future[int]]


class Saving:
    def __init__(self, state: EngineServerState) -> None:
        self._state = state
        self._engine = state.engine

    async def save_weights(self, request: Request) -> Response:
        asked = numbered(await read_body(request))
        model = self._state.sessions.model(asked.model_id)

        async def start() -> Payload:
            wish = asked.parse(schema.SaveWeights)
            path = _checkpoint_path(model, WEIGHTS, wish)
            adapter_id = adapter_of(model)
            await self._write(path, wish, lambda draft: self._engine.save(adapter_id, draft, True))
            return json_payload({"path": str(path), "type": "save_weights"})

        call = model.lane.submit(asked.number, "save_weights", asked.digest, start, alone=True)
        return accepted(model, call)

    async def save_weights_for_sampler(self, request: Request) -> Response:
        asked = numbered(await read_body(request))
        model = self._state.sessions.model(asked.model_id)
        session = self._state.sessions.live(model.run.session_id)

        def start() -> Awaitable[Payload]:
            wish = asked.parse(schema.SaveForSampler)
            alias_of(self._state.names, wish.user_metadata)  # a wrong one is refused before anything is done
            snapshot = self._engine.snapshot(adapter_of(model))
            if wish.path is None:
                return self._hand_over(model, session, asked.number, wish, snapshot)
            return self._hand_over_named(model, asked.number, wish, snapshot)

        return accepted(model, model.lane.submit(asked.number, "save_for_sampler", asked.digest, start))

    async def save_weights_external(self, request: Request) -> Response:
        asked = numbered(await read_body(request))
        model = self._state.sessions.model(asked.model_id)

        def start() -> Awaitable[Payload]:
            wish = asked.parse(schema.SaveExternal)
            check_recipients(wish.age_encryption_recipients or ())
            return self._export(model, wish, self._engine.snapshot(adapter_of(model)))

        return accepted(model, model.lane.submit(asked.number, "save_external", asked.digest, start))

    async def _hand_over(
        self,
        model: Model,
        session: TinkerSession,
        call: int,
        asked: schema.SaveForSampler,
        snapshot: Future[str],
    ) -> Payload:
        """The snapshot becomes an ephemeral sampler."""
        policy_id = await asyncio.wrap_future(snapshot)
        number = asked.sampling_session_seq_id
        if number is None or number in session.samplers or session.ended:
            self._engine.drop_policy(policy_id)
            raise EngineUserError(session.ended or "a path or a new sampling_session_seq_id is needed")
        sampler = SamplingSession(
            session.sampler_id(number), model.run.base_model, None, session.sampler_id(number)
        )
        self._state.policies.adopt(sampler.id, policy_id)
        session.samplers[number] = sampler
        self._state.names.set(sampler.id, sampler.id)
        self._announce(model, call, asked, sampler.id)
        return json_payload(
            {"path": None, "sampling_session_id": sampler.id, "type": "save_weights_for_sampler"}
        )

    async def _hand_over_named(
        self, model: Model, call: int, asked: schema.SaveForSampler, snapshot: Future[str]
    ) -> Payload:
        """The snapshot becomes a checkpoint, and stays in memory for whoever samples it next."""
        policy_id = await asyncio.wrap_future(snapshot)
        path = _checkpoint_path(model, SAMPLER_WEIGHTS, asked)
        try:
            checkpoint = await self._write(path, asked, lambda draft: self._engine.export(policy_id, draft))
        except BaseException:
            self._engine.drop_policy(policy_id)
            raise
        self._state.policies.adopt_named(checkpoint, policy_id)
        self._announce(model, call, asked, self._state.policies.named(path))
        return json_payload({"path": str(path), "type": "save_weights_for_sampler"})

    async def _export(self, model: Model, asked: schema.SaveExternal, snapshot: Future[str]) -> Payload:
        policy_id = await asyncio.wrap_future(snapshot)
        path = _checkpoint_path(model, EXTERNAL_WEIGHTS, asked)
        recipients = asked.age_encryption_recipients
        try:
            checkpoint = await self._write(
                path,
                asked,
                lambda draft: self._engine.export(policy_id, draft),
                (lambda draft: encrypt_files(draft, recipients)) if recipients else None,
            )
        finally:
            self._engine.drop_policy(policy_id)
        size = {"size_bytes": checkpoint.size_bytes}
        return json_payload({"path": str(path), "type": "save_weights_external"} | size)

    def _announce(self, model: Model, call: int, asked: schema.SaveForSampler, key: str) -> None:
        """The names that follow the model now mean these weights, unless they mean newer ones already."""
        if call < model.announced or self._state.sessions.find(model.run.session_id).ended:
            return
        model.announced = call
        alias = alias_of(self._state.names, asked.user_metadata)
        for name in (model.run.id, model.alias, alias, MOVING):
            if name is not None:
                self._state.names.set(name, key)

    async def _write(
        self,
        path: CheckpointPath,
        asked: schema.SaveWeights,
        write: Write,
        finish: Callable[[Path], None] | None = None,
    ) -> Checkpoint:
        """A checkpoint of what `write` writes, whole or not at all."""
        store = self._state.store
        check_ttl(asked.ttl_seconds)
        draft = store.draft(path, overwrite=asked.overwrite)
        try:
            await asyncio.wrap_future(write(draft))
            if finish is not None:
                await asyncio.to_thread(finish, draft)
            for replaced in (known for known in store.checkpoints(path.run_id) if known.path == path):
                await self._state.policies.detach(replaced)
            return await asyncio.to_thread(
                store.commit,
                path,
                draft,
                user_metadata=asked.user_metadata,
                ttl_s=asked.ttl_seconds,
                overwrite=asked.overwrite,
            )
        except BaseException:
            store.discard(draft)
            raise


def _checkpoint_path(model: Model, kind: str, asked: schema.SaveWeights) -> CheckpointPath:
    if asked.path is None:
        raise EngineUserError("a checkpoint needs a name")
    return CheckpointPath(model.run.id, kind, asked.path)
