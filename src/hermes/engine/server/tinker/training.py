"""The training endpoints of the Tinker API: create an adapter, gradients, optimizer steps, loading.

Each call is queued in the order of its model's calls; the response has the id to poll.
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
from hermes.engine.server.policies import RUN_ALIAS_KEY, alias_in
from hermes.engine.server.responses import as_json, read_body, read_json, validate_json
from hermes.engine.server.state import EngineServerState
from hermes.engine.server.tinker import schema
from hermes.engine.server.tinker.calls import CallSequencer, digest_of, encode_result, read_call
from hermes.engine.server.tinker.futures import PROTOBUF, Payload, json_payload
from hermes.engine.server.tinker.proto import encode_train, parse_forward_backward, read_data, read_loss
from hermes.engine.server.tinker.sessions import Model, TinkerSession
from hermes.engine.types import AdamParams, EngineUserError, LoraConfig
from hermes.serving.openapi import operation

_ADAM = "adamw"
_ALPHA_KEY = "lora_alpha"
"""In the metadata of a new model: the Tinker API has no field for it."""
_ADAM_LIMITS = {"beta1": 1, "beta2": 1, "grad_clip_norm": math.inf}


class TrainingRoutes:
    def __init__(self, state: EngineServerState) -> None:
        self._state = state
        self._engine = state.engine

    @operation("POST", "/api/v1/create_model", schema.CreateModel)
    async def create_model(self, request: Request) -> Response:
        """Creates a LoRA adapter to train."""
        content = await read_body(request)
        body = validate_json(content, schema.CreateModel)
        session = self._state.sessions.find_active(body.session_id)
        _check_optimizer(body.optimizer_config)
        self._state.check_base(body.base_model)
        lora = body.lora_config or schema.Lora(rank=32)
        config = LoraConfig(
            rank=lora.rank,
            alpha=_alpha_in(body.user_metadata),
            seed=lora.seed,
            train_attn=lora.train_attn,
            train_mlp=lora.train_mlp,
            train_unembed=lora.train_unembed,
        )
        model = self._add_model(session, body.model_seq_id, body.base_model, config, body.user_metadata)

        async def start() -> Payload:
            await self._create_adapter(model)
            return json_payload({"model_id": model.run.id, "type": "create_model"})

        return model.calls.accept(0, "create_model", digest_of(content), start, exclusive=True)

    @operation("POST", "/api/v1/forward_backward", body_content_type=PROTOBUF)
    async def forward_backward(self, request: Request) -> Response:
        """Adds the gradients of a batch, or only computes its loss."""
        message = parse_forward_backward(await read_body(request))
        model = self._state.sessions.model(message.model_id)

        def start() -> Awaitable[Payload]:
            output = self._engine.forward_backward(
                model.require_adapter(), read_data(message), read_loss(message), message.forward_only
            )
            return encode_result(output, lambda output: Payload(encode_train(output), PROTOBUF))

        digest = digest_of(message.SerializeToString(deterministic=True))
        return model.calls.accept(message.seq_id, "forward_backward", digest, start)

    @operation("POST", "/api/v1/optim_step", schema.OptimStep, envelope=schema.NumberedBody)
    async def optim_step(self, request: Request) -> Response:
        """Changes the weights by the gradients."""
        call = read_call(await read_body(request))
        model = self._state.sessions.model(call.model_id)

        def start() -> Awaitable[Payload]:
            params = _adam_params(call.parse(schema.OptimStep))
            metrics = self._engine.optim_step(model.require_adapter(), params)
            return encode_result(metrics, lambda metrics: json_payload({"metrics": metrics}))

        return model.calls.accept(call.number, "optim_step", call.digest, start)

    @operation("POST", "/api/v1/load_weights", schema.LoadWeights, envelope=schema.NumberedBody)
    async def load_weights(self, request: Request) -> Response:
        """Loads a checkpoint into an adapter, or creates one from it (CreateFrom)."""
        content = await read_body(request)
        if validate_json(content, schema.SessionAddress).session_id is not None:
            return self._create_from_checkpoint(content)
        call = read_call(content)
        model = self._state.sessions.model(call.model_id)

        async def start() -> Payload:
            return await self._load(model, call.parse(schema.LoadWeights))

        return model.calls.accept(call.number, "load_weights", call.digest, start, exclusive=True)

    @operation("POST", "/api/v1/get_info", schema.ModelReference, statuses=(404,))
    async def get_info(self, request: Request) -> Response:
        """Base model and rank of an adapter."""
        model = self._state.sessions.model((await read_json(request, schema.ModelReference)).model_id)
        model_data = {
            "arch": self._engine.spec.name,
            "model_name": model.run.base_model,
            "tokenizer_id": self._state.tokenizer_id,
        }
        return as_json(
            {
                "type": "get_info",
                "model_id": model.run.id,
                "model_name": model.run.base_model,
                "model_data": model_data,
                "is_lora": True,
                "lora_rank": model.run.lora.rank,
                "optimizer_config": {"type": _ADAM},
            }
        )

    def _create_from_checkpoint(self, content: bytes) -> Response:
        """A model whose first call loads a checkpoint; its LoRA config is that of the checkpoint."""
        body = validate_json(content, schema.CreateFrom)
        session = self._state.sessions.find_active(body.session_id)
        _check_optimizer(body.optimizer_config)
        source = self._source_run(body)
        base_model = body.base_model or source.base_model
        self._state.check_base(base_model)
        model = self._add_model(session, body.model_seq_id, base_model, source.lora, body.user_metadata)

        async def start() -> Payload:
            await self._create_adapter(model)
            return await self._load(model, body)

        return model.calls.accept(0, "load_weights", digest_of(content), start, exclusive=True)

    def _add_model(
        self,
        session: TinkerSession,
        number: int,
        base_model: str,
        lora: LoraConfig,
        user_metadata: Mapping[str, Any] | None,
    ) -> Model:
        if number not in session.models:
            metadata = {str(key): str(value) for key, value in (user_metadata or {}).items()}
            alias = alias_in(self._state.names, metadata, RUN_ALIAS_KEY)
            run = TrainingRun(session.model_id(number), session.id, base_model, lora, time.time(), metadata)
            session.models[number] = Model(run, CallSequencer(self._state.futures, run.id), alias=alias)
        return session.models[number]

    async def _create_adapter(self, model: Model) -> None:
        adapter_id = await asyncio.wrap_future(self._engine.create_adapter(model.run.lora))
        try:
            await asyncio.to_thread(self._state.store.add_run, model.run)
        except BaseException:
            self._engine.drop_adapter(adapter_id)
            raise
        model.adapter_id = adapter_id

    def _source_run(self, body: schema.LoadWeights) -> TrainingRun:
        """The run of the checkpoint to load."""
        path = CheckpointPath.parse(body.path)
        self._state.store.find(path)
        run = self._state.store.run(path.run_id)
        assert run is not None, "a checkpoint is stored with its run"
        if body.optimizer and path.kind != WEIGHTS:
            raise EngineUserError(f"{path} has no optimizer state", "load a checkpoint that save_state wrote")
        return run

    async def _load(self, model: Model, body: schema.LoadWeights) -> Payload:
        source = self._source_run(body)
        self._state.check_base(source.base_model)
        if source.lora.rank != model.run.lora.rank:
            raise EngineUserError(
                f"{body.path} has rank {source.lora.rank}, the model rank {model.run.lora.rank}",
                "create_training_client_from_state creates a model with the right rank",
            )
        folder = self._state.store.folder(CheckpointPath.parse(body.path))
        await asyncio.wrap_future(self._engine.load(model.require_adapter(), folder, body.optimizer))
        return json_payload({"path": body.path, "model_id": model.run.id, "type": "load_weights"})


def _alpha_in(metadata: Mapping[str, Any] | None) -> float:
    """The alpha that the metadata sets, else that of every Tinker adapter. EngineUserError: no number."""
    alpha = (metadata or {}).get(_ALPHA_KEY)
    if alpha is None:
        return LoraConfig().alpha
    try:
        return float(alpha)
    except (TypeError, ValueError) as error:
        raise EngineUserError(f"{_ALPHA_KEY} must be a number, not {alpha!r}.") from error


def _check_optimizer(optimizer: schema.Optimizer) -> None:
    if optimizer.type != _ADAM:
        raise EngineUserError(f"the optimizer '{optimizer.type}' is not supported", "use Adam (AdamParams)")


def _adam_params(body: schema.OptimStep) -> AdamParams:
    if body.adam_params is None:
        _check_optimizer(body.optimizer_params or schema.Optimizer(type="none"))
        raise EngineUserError("optim_step needs adam_params")
    params = AdamParams(**body.adam_params.model_dump())
    for name, value in dataclasses.asdict(params).items():
        limit = _ADAM_LIMITS.get(name, 1e12)  # larger values overflow
        if not 0 <= value < limit:
            raise EngineUserError(f"{name} is {value}; it must be at least 0 and below {limit}")
    return params
