"""The sampling endpoints of the Tinker API: samplers, samples, prompt logprobs.

A sampler is a frozen policy with an id. Its samples are independent of each other and run in any order.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from hermes.engine.checkpoints.store import CheckpointPath
from hermes.engine.server.responses import RequestError, as_json, read_json
from hermes.engine.server.state import EngineServerState
from hermes.engine.server.tinker import schema
from hermes.engine.server.tinker.futures import PROTOBUF, Payload, PendingFuture
from hermes.engine.server.tinker.proto import Sparsity, encode_sample, json_tensor
from hermes.engine.server.tinker.sessions import SamplingSession
from hermes.engine.types import EngineUserError, SampleRequest, SamplingParams
from hermes.serving.openapi import operation

MAX_SAMPLES = 4096
"""In one request."""


class SamplingRoutes:
    def __init__(self, state: EngineServerState) -> None:
        self._state = state
        self._engine = state.engine

    @operation("POST", "/api/v1/asample", schema.Sample)
    async def asample(self, request: Request) -> Response:
        """Samples, and scores prompts."""
        body = await read_json(request, schema.Sample)
        sampler = self._state.sessions.sampler(body.sampling_session_id)
        if not 1 <= body.num_samples <= MAX_SAMPLES:
            raise RequestError(422, f"num_samples: {body.num_samples} is not between 1 and {MAX_SAMPLES}")
        request_id, futures = f"{sampler.id}:{body.seq_id}", self._state.futures
        if futures.get(request_id) is None:
            pending = futures.add(PendingFuture(request_id, "sample"))
            futures.run(pending, self._sample(pending, sampler, body))
        sequence_ids = [f"{request_id}:{index}" for index in range(body.num_samples)]
        return as_json({"request_id": request_id, "sample_sequence_ids": sequence_ids})

    @operation("POST", "/api/v1/create_sampling_session", schema.CreateSampler)
    async def create_sampling_session(self, request: Request) -> Response:
        """Opens weights to be sampled."""
        body = await read_json(request, schema.CreateSampler)
        session = self._state.sessions.find_active(body.session_id)
        number = body.sampling_session_seq_id
        if number not in session.samplers:
            session.samplers[number] = await self._open_sampler(session.sampler_id(number), body)
        return as_json(
            {"sampling_session_id": session.samplers[number].id, "type": "create_sampling_session"}
        )

    @operation("GET", "/api/v1/samplers/{sampler}", statuses=(404,))
    async def get_sampler(self, request: Request) -> Response:
        """The base model and the weights of a sampling session."""
        sampler = self._state.sessions.sampler(request.path_params["sampler"])
        return as_json(
            {"sampler_id": sampler.id, "base_model": sampler.base_model, "model_path": sampler.model_path}
        )

    @operation("POST", "/api/v1/join_sampling_session", schema.SamplerReference, statuses=(404,))
    async def join_sampling_session(self, request: Request) -> Response:
        """Uses a sampling session of another process."""
        sampler = self._state.sessions.sampler(
            (await read_json(request, schema.SamplerReference)).sampling_session_id
        )
        sampler.clones += 1
        return as_json({"type": "join_sampling_session", "client_counter": sampler.clones})

    @operation("POST", "/api/v1/cancel_future", schema.RequestReference)
    async def cancel_future(self, request: Request) -> Response:
        """Cancels a sample; has no effect on one that has ended or does not exist."""
        pending = self._state.futures.get((await read_json(request, schema.RequestReference)).request_id)
        if pending is not None and pending.cancel is not None:
            pending.cancel()
        return as_json({})

    async def _open_sampler(self, sampler_id: str, body: schema.CreateSampler) -> SamplingSession:
        if body.model_path is None:
            if body.base_model is None:
                raise EngineUserError("a sampler needs a model_path or a base_model")
            self._state.check_base(body.base_model)
            return SamplingSession(sampler_id, body.base_model, None, None)
        path = CheckpointPath.parse(body.model_path)
        run = self._state.store.run(path.run_id)
        key = self._state.policies.checkpoint_key(path)
        assert run is not None, "a checkpoint is stored with its run"
        self._state.check_base(run.base_model)
        self._state.names.set(sampler_id, key)
        try:
            async with self._state.policies.use(key):  # fails here if the checkpoint cannot be read
                return SamplingSession(sampler_id, run.base_model, body.model_path, key)
        except BaseException:
            self._state.names.drop(sampler_id)
            raise

    async def _sample(self, pending: PendingFuture, sampler: SamplingSession, body: schema.Sample) -> Payload:
        request, layout = sample_request(body)
        policy = self._state.policies.use(sampler.key) if sampler.key is not None else nullcontext()
        async with policy as policy_id:
            future = self._engine.sample(policy_id, request)
            pending.cancel = lambda: self._engine.cancel(future)
            result = await asyncio.wrap_future(future)
        return Payload(encode_sample(result, layout), PROTOBUF)


def sample_request(body: schema.Sample) -> tuple[SampleRequest, Sparsity | None]:
    """As the engine has it, and the layout of the target logprobs. EngineUserError: it is not valid."""
    targets, layout = None, None
    if body.target_prompt_logprobs is not None:
        targets, layout = json_tensor(body.target_prompt_logprobs, -1, "target_prompt_logprobs")
    request = SampleRequest(
        prompt=_prompt(body.prompt),
        params=_params(body.sampling_params),
        num_samples=body.num_samples,
        prompt_logprobs=bool(body.prompt_logprobs),
        prompt_logprobs_last_n=body.prompt_logprobs_last_n,
        topk_prompt_logprobs=body.topk_prompt_logprobs,
        topk_sample_logprobs=body.topk_sample_logprobs,
        target_prompt_logprobs=targets,
        prompt_alt_tokens_k=body.prompt_alt_tokens_k,
    )
    return request, layout


def _prompt(prompt: schema.PromptBody) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    for chunk in prompt.chunks:
        if chunk.type != "encoded_text":
            raise EngineUserError(f"the prompt has a chunk of type '{chunk.type}': only text is supported")
    try:
        return np.array([token for chunk in prompt.chunks for token in chunk.tokens], np.int64)
    except OverflowError as error:
        raise EngineUserError("a token id of the prompt does not fit 64 bits") from error


def _params(body: schema.SamplingParamsBody) -> SamplingParams:
    texts = [body.stop] if isinstance(body.stop, str) else body.stop
    return SamplingParams(
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        seed=body.seed,
        stop=None if texts is None else tuple(texts),  # type: ignore[arg-type]
    )
