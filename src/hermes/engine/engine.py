"""The engine as its callers see it: adapters to train, policies to sample, and futures for both.

Methods may be called from any thread and return at once. Calls on one adapter run in the order they were
made; different adapters and sampling share the device by time. A policy is a frozen copy of an adapter's
weights: training never changes it, and sampling never changes an adapter. Errors come through the futures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from hermes.engine import cpu_threads
from hermes.engine.checkpoints.adapter_io import load_adapter, save_adapter
from hermes.engine.compute import Compute, closed
from hermes.engine.info import AdapterInfo, EngineOptions, EngineStats, PolicyInfo
from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.registry import AdapterHandle, AdapterRegistry, adapter_bytes
from hermes.engine.sampling.request import read_request
from hermes.engine.schedule import ScheduledCall, Task
from hermes.engine.setup import build
from hermes.engine.training.forward_backward import forward_backward, optim_step
from hermes.engine.types import (
    AdamParams,
    Datum,
    EngineUserError,
    LoraConfig,
    Loss,
    SampleRequest,
    SampleResult,
    TrainOutput,
)
from hermes.errors import HermesError

T = TypeVar("T")


class Engine:
    """Loads the base model; works from `start` to `close`."""

    def __init__(self, options: EngineOptions) -> None:
        threads = torch.get_num_threads()
        self._parts = cpu_threads.apart(lambda: build(options))
        self._backbone = self._parts.backbone
        self.device, self.dtype = self._backbone.device, self._backbone.dtype
        self.spec = replace(self._backbone.spec, max_length=self._parts.limits.longest)
        self.tokenizer_dir = options.model
        self._book = AdapterRegistry(self._backbone.device, self._backbone.dtype, options.max_adapters)
        self._compute = Compute(self._parts.sampler, lambda: cpu_threads.lead(threads))
        self._disk = ThreadPoolExecutor(1, "hermes-engine-disk", cpu_threads.alone)
        self._trained_tokens = 0
        self._optimizer_steps = 0

    def start(self) -> None:
        self._disk.submit(lambda: None).result()  # torch gives new threads what was last set: not the disk's
        self._compute.start()

    def close(self) -> None:
        """Every future that is still open ends with EngineClosedError; a folder being written is finished."""
        self._compute.close()
        self._disk.shutdown(wait=True)

    def create_adapter(self, config: LoraConfig) -> Future[str]:
        try:
            held = self._book.new_adapter(config)
        except HermesError as error:
            return _failed(error)
        call = ScheduledCall("the adapter", lambda: self._create(held))
        return self._compute.submit(held.id, call)

    def drop_adapter(self, adapter_id: str) -> None:
        """Frees it; calls on it that are not done fail. Its policies live on."""
        self._book.drop_adapter(adapter_id)
        error = EngineUserError(f"The adapter '{adapter_id}' was dropped.")
        self._compute.post(lambda: self._compute.lines.drop(adapter_id, error))

    def forward_backward(
        self, adapter_id: str, data: Sequence[Datum], loss: Loss, forward_only: bool = False
    ) -> Future[TrainOutput]:
        return self._call(
            adapter_id, "the training data", lambda held: self._train(held, data, loss, forward_only)
        )

    def optim_step(self, adapter_id: str, params: AdamParams) -> Future[dict[str, float]]:
        def step(held: AdapterHandle) -> Task[dict[str, float]]:
            yield from ()
            metrics = optim_step(held.adapter, params)
            self._optimizer_steps += 1
            return metrics

        return self._call(adapter_id, "the optimizer step", step)

    def snapshot(self, adapter_id: str) -> Future[str]:
        """The adapter's weights as they are when its turn comes, as a policy. Nothing is written."""

        def freeze(held: AdapterHandle) -> Task[str]:
            yield from ()
            return self._book.add_policy(held.adapter.freeze(), held.config, held.id)

        return self._call(adapter_id, "the snapshot", freeze)

    def save(self, adapter_id: str, folder: Path, optimizer: bool) -> Future[int]:
        """Writes the folder whole, or leaves what was there; its size in bytes."""

        def write(held: AdapterHandle) -> Task[int]:
            adapter = held.adapter
            state = adapter.state() if optimizer else None
            writing = self._disk.submit(save_adapter, folder, adapter.freeze(), held.config, self.spec, state)
            yield writing
            return writing.result()

        return self._call(adapter_id, "the copy to be saved", write)

    def load(self, adapter_id: str, folder: Path, optimizer: bool) -> Future[None]:
        """Weights from a folder, with the optimizer's state or a fresh one; gradients are dropped."""

        def read(held: AdapterHandle) -> Task[None]:
            reading = self._disk.submit(load_adapter, folder, self.spec, optimizer)
            yield reading
            weights, _, state = reading.result()
            held.adapter.load_state(weights, state)

        return self._call(adapter_id, "the loaded weights", read)

    def export(self, policy_id: str, folder: Path) -> Future[int]:
        """A policy as PEFT files; their size in bytes."""

        def write() -> int:
            assert held.policy.weights is not None
            return save_adapter(folder, held.policy.weights, held.config, self.spec)

        try:
            held = self._book.policy(policy_id)
        except HermesError as error:
            return _failed(error)
        return self._on_disk(write)

    def load_policy(self, folder: Path) -> Future[str]:
        """A saved adapter, ours or PEFT's, as a policy."""

        def read() -> str:
            weights, config, _ = load_adapter(folder, self.spec, optimizer=False)
            return self._book.add_policy(weights, config, None)

        return self._on_disk(read)

    def drop_policy(self, policy_id: str) -> None:
        """Nobody can ask for it any more; requests that are under way with it are finished."""
        policy = self._book.drop_policy(policy_id)
        if policy is not None:
            self._compute.post(lambda: self._parts.sampler.forget_policy(policy))

    def adapter(self, adapter_id: str) -> AdapterInfo:
        held = self._book.adapter(adapter_id)
        steps = held.made.steps if held.made else 0
        return AdapterInfo(held.id, held.config, steps, self._compute.lines.length(held.id))

    def policy(self, policy_id: str) -> PolicyInfo:
        return self._book.policy(policy_id).info

    def policies(self) -> tuple[PolicyInfo, ...]:
        return tuple(held.info for held in self._book.policies)

    def sample(self, policy_id: str | None, request: SampleRequest) -> Future[SampleResult]:
        """Samples from a policy, or from the base model. The future can be cancelled until it is done."""
        sampler = self._parts.sampler
        try:
            policy = self._book.to_sample(policy_id)
            job = read_request(request, policy, self._parts.limits, self._parts.stops)
        except HermesError as error:
            return _failed(error)
        if not self._compute.post(lambda: sampler.submit(job)):
            return _failed(closed())

        def forget(
            future: Future[SampleResult],
        ) -> None:  # knows no job: job and future would keep each other
            if future.cancelled():
                self._compute.post(lambda: sampler.end_cancelled(future))

        job.future.add_done_callback(forget)
        return job.future

    def cancel(self, future: Future[SampleResult]) -> None:
        """Its sequences leave the batch at the next step."""
        future.cancel()

    def stats(self) -> EngineStats:
        sampler, counts, book = self._parts.sampler, self._parts.sampler.counts, self._book
        adapters, policies = book.adapters, book.policies
        return EngineStats(
            adapters=len(adapters),
            policies=len(policies),
            training_waiting=self._compute.lines.waiting,
            sampling_waiting=sampler.waiting,
            sampling_running=sampler.running,
            prompt_tokens=counts.prompt_tokens,
            cached_tokens=counts.cached_tokens,
            sampled_tokens=counts.sampled_tokens,
            trained_tokens=self._trained_tokens,
            optimizer_steps=self._optimizer_steps,
            kv_tokens=self._parts.limits.cells,
            kv_tokens_used=sampler.cells_used,
            base_bytes=self._parts.base_bytes,
            adapter_bytes=sum(adapter_bytes(held.made) for held in adapters),
            policy_bytes=sum(held.bytes for held in policies),
            sampling_s=self._compute.spent_s["sampling"],
            training_s=self._compute.spent_s["training"],
        )

    def _call(self, adapter_id: str, what: str, steps: Callable[[AdapterHandle], Task[T]]) -> Future[T]:
        """A call at the end of the adapter's line."""
        try:
            held = self._book.adapter(adapter_id)
        except HermesError as error:
            return _failed(error)
        return self._compute.submit(adapter_id, ScheduledCall(what, lambda: steps(held)))

    def _on_disk(self, work: Callable[[], T]) -> Future[T]:
        try:
            return self._disk.submit(work)
        except RuntimeError:  # it was shut down
            return _failed(closed())

    def _create(self, held: AdapterHandle) -> Task[str]:
        yield from ()
        try:
            held.made = Adapter(self.spec, held.config, self._backbone.device)
        finally:
            if held.made is None:
                self._book.drop_adapter(held.id)
        return held.id

    def _train(
        self, held: AdapterHandle, data: Sequence[Datum], loss: Loss, forward_only: bool
    ) -> Task[TrainOutput]:
        longest = max((len(datum.tokens) for datum in data), default=0)
        most = self._parts.limits.max_length
        if longest > most:
            raise EngineUserError(f"A sequence has {longest} tokens, more than the context limit of {most}.")
        output = yield from forward_backward(
            self._backbone,
            held.adapter,
            data,
            loss,
            forward_only=forward_only,
            budget_tokens=self._parts.train_tokens,
        )
        self._trained_tokens += sum(len(datum.tokens) for datum in data)
        return output


def _failed(error: BaseException) -> Future[T]:
    future: Future[T] = Future()
    future.set_exception(error)
    return future
