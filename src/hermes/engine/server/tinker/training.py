"""The training half of the Tinker API: adapters, gradients, steps, loading.

Each call joins the lane of its model and is answered at once with an id to poll.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Awaitable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hermes.engine.checkpoints.store import WEIGHTS, CheckpointPath, TrainingRun
from hermes.engine.server.aliases import RUN_KEY, alias_of
from hermes.engine.server.responses import as_json, checked_json, read_body, read_json
from hermes.engine.server.state import EngineServerState
from hermes.engine.server.tinker import schema
from hermes.engine.server.tinker.futures import PROTOBUF, Payload, json_payload
from hermes.engine.server.tinker.numbered import accepted, adapter_of, digest_of, numbered, rendered
from hermes.engine.server.tinker.ordering import CallSequencer
from hermes.engine.server.tinker.proto import data_of, encode_train, loss_of, parse_forward_backward
from hermes.engine.server.tinker.sessions import Model, TinkerSession
from hermes.engine.types import AdamParams, EngineUserError, LoraConfig

_ADAM = "adamw"
_ADAM_BELOW = {"beta1": 1, "beta2": 1, "grad_clip_norm": math.inf}


class Training:
    def __init__(self, state: EngineServerState) -> None:
        self._state = state
        self._engine = state.engine

    async def create_model(self, request: Request) -> Response:
        body = await read_body(request)
        asked = checked_json(body, schema.CreateModel)
        session = self._state.sessions.live(asked.session_id)
        _check_optimizer(asked.optimizer_config)
        self._state.check_base(asked.base_model)
        lora = asked.lora_config or schema.Lora(rank=32)
        config = LoraConfig(
            rank=lora.rank,
            seed=lora.seed,
            train_attn=lora.train_attn,
            train_mlp=lora.train_mlp,
            train_unembed=lora.train_unembed,
        )
        model = self._open(session, asked.model_seq_id, asked.base_model, config, asked.user_metadata)

        async def start() -> Payload:
            await self._make(model)
            return json_payload({"model_id": model.run.id, "type": "create_model"})

        return accepted(model, model.lane.submit(0, "create_model", digest_of(body), start, alone=True))

    async def forward_backward(self, request: Request) -> Response:
        message = parse_forward_backward(await read_body(request))
        model = self._state.sessions.model(message.model_id)

        def start() -> Awaitable[Payload]:
            output = self._engine.forward_backward(
                adapter_of(model), data_of(message), loss_of(message), message.forward_only
            )
            return rendered(output, lambda output: Payload(encode_train(output), PROTOBUF))

        digest = digest_of(message.SerializeToString(deterministic=True))
        return accepted(model, model.lane.submit(message.seq_id, "forward_backward", digest, start))

    async def optim_step(self, request: Request) -> Response:
        asked = numbered(await read_body(request))
        model = self._state.sessions.model(asked.model_id)

        def start() -> Awaitable[Payload]:
            metrics = self._engine.optim_step(adapter_of(model), _adam(asked.parse(schema.OptimStep)))
            return rendered(metrics, lambda metrics: json_payload({"metrics": metrics}))

        return accepted(model, model.lane.submit(asked.number, "optim_step", asked.digest, start))

    async def load_weights(self, request: Request) -> Response:
        body = await read_body(request)
        if checked_json(body, schema.SessionAddress).session_id is not None:
            return self._create_from(body)
        asked = numbered(body)
        model = self._state.sessions.model(asked.model_id)

        async def start() -> Payload:
            return await self._load(model, asked.parse(schema.LoadWeights))

        call = model.lane.submit(asked.number, "load_weights", asked.digest, start, alone=True)
        return accepted(model, call)

    async def get_info(self, request: Request) -> Response:
        model = self._state.sessions.model((await read_json(request, schema.ModelReference)).model_id)
        data = {
            "arch": self._engine.spec.name,
            "model_name": model.run.base_model,
            "tokenizer_id": self._state.tokenizer_id,
        }
        return as_json(
            {
                "type": "get_info",
                "model_id": model.run.id,
                "model_name": model.run.base_model,
                "model_data": data,
                "is_lora": True,
                "lora_rank": model.run.lora.rank,
                "optimizer_config": {"type": _ADAM},
            }
        )

    def _create_from(self, body: bytes) -> Response:
        """A model whose first call loads a checkpoint, which also says how it is made."""
        asked = checked_json(body, schema.CreateFrom)
        session = self._state.sessions.live(asked.session_id)
        _check_optimizer(asked.optimizer_config)
        source = self._source(asked)
        base_model = asked.base_model or source.base_model
        self._state.check_base(base_model)
        model = self._open(session, asked.model_seq_id, base_model, source.lora, asked.user_metadata)

        async def start() -> Payload:
            await self._make(model)
            return await self._load(model, asked)

        return accepted(model, model.lane.submit(0, "load_weights", digest_of(body), start, alone=True))

    def _open(
        self,
        session: TinkerSession,
        number: int,
        base_model: str,
        lora: LoraConfig,
        user_metadata: Mapping[str, Any] | None,
    ) -> Model:
        if number not in session.models:
            metadata = {str(key): str(value) for key, value in (user_metadata or {}).items()}
            alias = alias_of(self._state.names, metadata, RUN_KEY)
            run = TrainingRun(session.model_id(number), session.id, base_model, lora, time.time(), metadata)
            session.models[number] = Model(run, CallSequencer(self._state.calls, run.id), alias=alias)
        return session.models[number]

    async def _make(self, model: Model) -> None:
        adapter_id = await asyncio.wrap_future(self._engine.create_adapter(model.run.lora))
        try:
            await asyncio.to_thread(self._state.store.add_run, model.run)
        except BaseException:
            self._engine.drop_adapter(adapter_id)
            raise
        model.adapter_id = adapter_id

    def _source(self, asked: schema.LoadWeights) -> TrainingRun:
        """The run of the checkpoint that is to be loaded."""
        path = CheckpointPath.parse(asked.path)
        self._state.store.find(path)
        run = self._state.store.run(path.run_id)
        assert run is not None, "a checkpoint is only kept with its run"
        if asked.optimizer and path.kind != WEIGHTS:
            raise EngineUserError(f"{path} has no optimizer state", "load one that save_state wrote")
        return run

    async def _load(self, model: Model, asked: schema.LoadWeights) -> Payload:
        source = self._source(asked)
        self._state.check_base(source.base_model)
        if source.lora.rank != model.run.lora.rank:
            raise EngineUserError(
                f"{asked.path} has rank {source.lora.rank}, the model rank {model.run.lora.rank}",
                "create_training_client_from_state makes a model that fits",
            )
        folder = self._state.store.folder(CheckpointPath.parse(asked.path))
        await asyncio.wrap_future(self._engine.load(adapter_of(model), folder, asked.optimizer))
        return json_payload({"path": asked.path, "model_id": model.run.id, "type": "load_weights"})


def _check_optimizer(optimizer: schema.Optimizer) -> None:
    if optimizer.type != _ADAM:
        raise EngineUserError(f"the optimizer '{optimizer.type}' is not offered", "use Adam (AdamParams)")


def _adam(asked: schema.OptimStep) -> AdamParams:
    if asked.adam_params is None:
        _check_optimizer(asked.optimizer_params or schema.Optimizer(type="none"))
        raise EngineUserError("optim_step needs adam_params")
    params = AdamParams(**asked.adam_params.model_dump())
    for name, value in dataclasses.asdict(params).items():
        below = _ADAM_BELOW.get(name, 1e12)  # more than that overflows
        if not 0 <= value < below:
            raise EngineUserError(f"{name} is {value}; it must be at least 0 and below {below}")
    return params
