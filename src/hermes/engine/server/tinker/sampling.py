"""The sampling half of the Tinker API: samplers, samples, prompt scoring.

A sampler is a frozen policy under an id; samples of one sampler are independent and run in any order.
"""

from __future__ import annotations

import asyncio

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

MOST_SAMPLES = 4096
"""Of one request."""


class SamplingRoutes:
    def __init__(self, state: EngineServerState) -> None:
        self._state = state
        self._engine = state.engine

    async def create_sampling_session(self, request: Request) -> Response:
        asked = await read_json(request, schema.CreateSampler)
        session = self._state.sessions.live(asked.session_id)
        number = asked.sampling_session_seq_id
        if number not in session.samplers:
            session.samplers[number] = await self._open(session.sampler_id(number), asked)
        return as_json(
            {"sampling_session_id": session.samplers[number].id, "type": "create_sampling_session"}
        )

    async def get_sampler(self, request: Request) -> Response:
        sampler = self._state.sessions.sampler(request.path_params["sampler"])
        return as_json(
            {"sampler_id": sampler.id, "base_model": sampler.base_model, "model_path": sampler.model_path}
        )

    async def join_sampling_session(self, request: Request) -> Response:
        sampler = self._state.sessions.sampler(
            (await read_json(request, schema.SamplerReference)).sampling_session_id
        )
        sampler.clones += 1
        return as_json({"type": "join_sampling_session", "client_counter": sampler.clones})

    async def asample(self, request: Request) -> Response:
        asked = await read_json(request, schema.Sample)
        sampler = self._state.sessions.sampler(asked.sampling_session_id)
        if not 1 <= asked.num_samples <= MOST_SAMPLES:
            raise RequestError(422, f"num_samples: from 1 to {MOST_SAMPLES}, not {asked.num_samples}")
        call_id = f"{sampler.id}:{asked.seq_id}"
        if self._state.calls.get(call_id) is None:
            call = self._state.calls.open(PendingFuture(call_id, "sample"))
            self._state.calls.run(call, self._sample(call, sampler, asked))
        sequence_ids = [f"{call_id}:{index}" for index in range(asked.num_samples)]
        return as_json({"request_id": call_id, "sample_sequence_ids": sequence_ids})

    async def cancel_future(self, request: Request) -> Response:
        """The client no longer wants a sample; one that has ended, or is unknown, is none to stop."""
        call = self._state.calls.get((await read_json(request, schema.RequestReference)).request_id)
        if call is not None and call.cancel is not None:
            call.cancel()
        return as_json({})

    async def _open(self, sampler_id: str, asked: schema.CreateSampler) -> SamplingSession:
        if asked.model_path is None:
            if asked.base_model is None:
                raise EngineUserError("a sampler needs a model_path or a base_model")
            self._state.check_base(asked.base_model)
            return SamplingSession(sampler_id, asked.base_model, None, None)
        path = CheckpointPath.parse(asked.model_path)
        run = self._state.store.run(path.run_id)
        key = self._state.policies.named(path)
        assert run is not None, "a checkpoint is only kept with its run"
        self._state.check_base(run.base_model)
        self._state.names.set(sampler_id, key)
        try:
            async with self._state.policies.use(key):  # a checkpoint that cannot be read is refused here
                return SamplingSession(sampler_id, run.base_model, asked.model_path, key)
        except BaseException:
            self._state.names.drop(sampler_id)
            raise

    async def _sample(self, call: PendingFuture, sampler: SamplingSession, asked: schema.Sample) -> Payload:
        request, cells = sample_request(asked)
        if sampler.key is None:
            return await self._result(call, None, request, cells)
        async with self._state.policies.use(sampler.key) as policy_id:
            return await self._result(call, policy_id, request, cells)

    async def _result(
        self, call: PendingFuture, policy_id: str | None, request: SampleRequest, cells: Sparsity | None
    ) -> Payload:
        future = self._engine.sample(policy_id, request)
        call.cancel = lambda: self._engine.cancel(future)
        return Payload(encode_sample(await asyncio.wrap_future(future), cells), PROTOBUF)


def sample_request(asked: schema.Sample) -> tuple[SampleRequest, Sparsity | None]:
    """In the engine's words, and the layout in which target logprobs are wanted. EngineUserError."""
    targets, cells = None, None
    if asked.target_prompt_logprobs is not None:
        targets, cells = json_tensor(asked.target_prompt_logprobs, -1, "target_prompt_logprobs")
    request = SampleRequest(
        prompt=_prompt(asked.prompt),
        params=_params(asked.sampling_params),
        num_samples=asked.num_samples,
        prompt_logprobs=bool(asked.prompt_logprobs),
        prompt_logprobs_last_n=asked.prompt_logprobs_last_n,
        topk_prompt_logprobs=asked.topk_prompt_logprobs,
        topk_sample_logprobs=asked.topk_sample_logprobs,
        target_prompt_logprobs=targets,
        prompt_alt_tokens_k=asked.prompt_alt_tokens_k,
    )
    return request, cells


def _prompt(prompt: schema.PromptBody) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    for chunk in prompt.chunks:
        if chunk.type != "encoded_text":
            raise EngineUserError(f"a prompt is text here: a chunk of type '{chunk.type}' is not understood")
    try:
        return np.array([token for chunk in prompt.chunks for token in chunk.tokens], np.int64)
    except OverflowError as error:
        raise EngineUserError("a token id of the prompt does not fit 64 bits") from error


def _params(asked: schema.SamplingParamsBody) -> SamplingParams:
    texts = [asked.stop] if isinstance(asked.stop, str) else asked.stop
    return SamplingParams(
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        seed=asked.seed,
        stop=None if texts is None else tuple(texts),  # type: ignore[arg-type]
    )
