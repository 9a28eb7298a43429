"""The public interface of the engine: adapters to train, policies to sample from, and futures for both.

Methods may be called from any thread and return at once. Calls on one adapter run in the order in which they
were made; different adapters and sampling share the device by time. A policy is a frozen copy of an adapter's
weights: training never changes it, and sampling never changes an adapter. Errors are raised by the futures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from hermes.engine.checkpoints.adapter_io import load_adapter, save_adapter
from hermes.engine.compute import Compute, closed_error, run_in_fresh_thread, single_threaded, use_all_threads
from hermes.engine.info import AdapterInfo, EngineOptions, EngineStats, PolicyInfo
from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.registry import AdapterHandle, AdapterRegistry, adapter_bytes
from hermes.engine.lora.weights import LoraWeights
from hermes.engine.memory import peak_bytes
from hermes.engine.sampling.request import parse_request
from hermes.engine.schedule import ScheduledCall, Task, failed_future
from hermes.engine.setup import build
from hermes.engine.spec import ModelSpec
from hermes.engine.training.forward_backward import forward_backward, optim_step
from hermes.engine.types import (
    AdamParams,
    Datum,
    EngineUserError,
    Floats,
    LoraConfig,
    Loss,
    SampleRequest,
    SampleResult,
    TrainOutput,
)
from hermes.errors import HermesError

T = TypeVar("T")


class PolicyShelf:
    """The policies of an engine, by their ids in memory and as files: the same for an engine and a front."""

    spec: ModelSpec
    _registry: AdapterRegistry
    _disk: ThreadPoolExecutor

    def export(self, policy_id: str, folder: Path) -> Future[int]:
        """Writes a policy as PEFT files; returns their size in bytes."""

        def write() -> int:
            assert handle.policy.weights is not None
            return save_adapter(folder, handle.policy.weights, handle.config, self.spec)

        try:
            handle = self._registry.policy(policy_id)
        except HermesError as error:
            return failed_future(error)
        return self._on_disk(write)

    def load_policy(self, folder: Path) -> Future[str]:
        """A policy with the weights of a saved adapter, in the engine's format or PEFT's."""

        def read() -> str:
            weights, config, _ = load_adapter(folder, self.spec, optimizer=False)
            return self._publish(lambda: self._registry.add_policy(weights, config, None))

        return self._on_disk(read)

    def policy(self, policy_id: str) -> PolicyInfo:
        return self._registry.policy(policy_id).info

    def policies(self) -> tuple[PolicyInfo, ...]:
        return tuple(handle.info for handle in self._registry.policies)

    def cancel(self, future: Future[SampleResult]) -> None:
        """Cancels a request; its sequences leave the batch at the next step."""
        future.cancel()

    def _on_disk(self, work: Callable[[], T]) -> Future[T]:
        try:
            return self._disk.submit(work)
        except RuntimeError:  # it was shut down
            return failed_future(closed_error())

    def _publish(self, add: Callable[[], str]) -> str:
        """Adds a policy and returns its id."""
        return add()


class Engine(PolicyShelf):
    """Loads the base model when it is created; runs from `start` to `close`."""

    def __init__(self, options: EngineOptions) -> None:
        threads = torch.get_num_threads()
        self._parts = run_in_fresh_thread(lambda: build(options))
        self._backbone = self._parts.backbone
        self.device, self.dtype = self._backbone.device, self._backbone.dtype
        self.spec = replace(self._backbone.spec, max_length=self._parts.limits.longest)
        self.tokenizer_dir = options.model
        self.limits = self._parts.limits
        self._registry = AdapterRegistry(self._backbone.device, self._backbone.dtype, options.max_adapters)
        self._compute = Compute(self._parts.sampler, lambda: use_all_threads(threads))
        self._disk = ThreadPoolExecutor(1, "hermes-engine-disk", single_threaded)
        self._trained_tokens = 0
        self._optimizer_steps = 0

    def start(self) -> None:
        self._disk.submit(lambda: None).result()  # sets its threads before the compute thread sets more
        self._compute.start()

    def close(self) -> None:
        """Fails unresolved futures with EngineClosedError; a folder that is being written is completed."""
        self._compute.close()
        self._disk.shutdown(wait=True)
        if self._parts.followers is not None:
            self._parts.followers.close()

    def create_adapter(self, config: LoraConfig) -> Future[str]:
        try:
            handle = self._registry.new_adapter(config)
        except HermesError as error:
            return failed_future(error)
        call = ScheduledCall("the adapter", lambda: self._create(handle))
        return self._compute.submit(handle.id, call)

    def drop_adapter(self, adapter_id: str) -> None:
        """Frees the adapter and fails its unfinished calls. Its policies are not affected."""
        self._registry.drop_adapter(adapter_id)
        error = EngineUserError(f"The adapter '{adapter_id}' was dropped.")
        self._compute.post(lambda: self._compute.queues.drop(adapter_id, error))

    def forward_backward(
        self, adapter_id: str, data: Sequence[Datum], loss: Loss, forward_only: bool = False
    ) -> Future[TrainOutput]:
        return self._call(
            adapter_id, "the training data", lambda handle: self._train(handle, data, loss, forward_only)
        )

    def compute_gradient(
        self,
        adapter_id: str,
        parameters: Floats | None,
        data: Sequence[Datum],
        loss: Loss,
        forward_only: bool = False,
    ) -> Future[tuple[TrainOutput, Floats | None]]:
        """The gradient of the data alone, at these flat parameters (None: those of the last call).

        For a replica: the adapter's accumulated gradient and its optimizer are kept elsewhere.
        """

        def compute(handle: AdapterHandle) -> Task[tuple[TrainOutput, Floats | None]]:
            adapter = handle.require_adapter()
            adapter.gradient.zero_()
            if parameters is not None:
                with torch.no_grad():
                    adapter.parameters.copy_(torch.from_numpy(parameters))
            output = yield from self._train(handle, data, loss, forward_only)
            return output, None if forward_only else adapter.gradient.cpu().clone().numpy()

        return self._call(adapter_id, "the training data", compute)

    def add_policy(self, weights: LoraWeights, config: LoraConfig) -> Future[str]:
        """A policy with weights that are in memory."""
        return self._on_disk(lambda: self._registry.add_policy(weights, config, None))

    def optim_step(self, adapter_id: str, params: AdamParams) -> Future[dict[str, float]]:
        def step(handle: AdapterHandle) -> Task[dict[str, float]]:
            yield from ()
            metrics = optim_step(handle.require_adapter(), params)
            self._optimizer_steps += 1
            return metrics | {"peak_bytes": float(peak_bytes(self.device))}

        return self._call(adapter_id, "the optimizer step", step)

    def snapshot(self, adapter_id: str) -> Future[str]:
        """A policy with the adapter's weights after its earlier calls. Nothing is written to disk."""

        def freeze(handle: AdapterHandle) -> Task[str]:
            yield from ()
            return self._registry.add_policy(handle.require_adapter().freeze(), handle.config, handle.id)

        return self._call(adapter_id, "the snapshot", freeze)

    def save(self, adapter_id: str, folder: Path, optimizer: bool) -> Future[int]:
        """Writes the folder atomically; returns its size in bytes."""

        def write(handle: AdapterHandle) -> Task[int]:
            adapter = handle.require_adapter()
            state = adapter.state() if optimizer else None
            writing = self._disk.submit(
                save_adapter, folder, adapter.freeze(), handle.config, self.spec, state
            )
            yield writing
            return writing.result()

        return self._call(adapter_id, "the copy to be saved", write)

    def load(self, adapter_id: str, folder: Path, optimizer: bool) -> Future[None]:
        """Loads weights from a folder, with the optimizer state or a new one; gradients are zeroed."""

        def read(handle: AdapterHandle) -> Task[None]:
            reading = self._disk.submit(load_adapter, folder, self.spec, optimizer)
            yield reading
            weights, _, state = reading.result()
            handle.require_adapter().load_state(weights, state)

        return self._call(adapter_id, "the loaded weights", read)

    def drop_policy(self, policy_id: str) -> None:
        """Rejects new requests for the policy and frees it once its running requests are finished."""
        policy = self._registry.drop_policy(policy_id)
        if policy is not None:
            self._compute.post(lambda: self._parts.sampler.drop_policy(policy))

    def adapter(self, adapter_id: str) -> AdapterInfo:
        handle = self._registry.adapter(adapter_id)
        steps = handle.adapter.steps if handle.adapter else 0
        return AdapterInfo(handle.id, handle.config, steps, self._compute.queues.length(handle.id))

    def sample(self, policy_id: str | None, request: SampleRequest) -> Future[SampleResult]:
        """Samples from a policy, or from the base model. The future can be cancelled until it is done."""
        sampler = self._parts.sampler
        try:
            policy = self._registry.sampling_policy(policy_id)
            job = parse_request(request, policy, self._parts.limits, self._parts.stops)
        except HermesError as error:
            return failed_future(error)
        if not self._compute.post(lambda: sampler.submit(job)):
            return failed_future(closed_error())

        def remove_if_cancelled(future: Future[SampleResult]) -> None:
            # Does not refer to the job: job and future would then keep each other alive.
            if future.cancelled():
                self._compute.post(lambda: sampler.end_cancelled(future))

        job.future.add_done_callback(remove_if_cancelled)
        return job.future

    def stats(self) -> EngineStats:
        sampler, counts = self._parts.sampler, self._parts.sampler.counts
        adapters, policies = self._registry.adapters, self._registry.policies
        return EngineStats(
            adapters=len(adapters),
            policies=len(policies),
            training_waiting=self._compute.queues.waiting,
            sampling_waiting=sampler.waiting,
            sampling_running=sampler.running,
            prompt_tokens=counts.prompt_tokens,
            cached_tokens=counts.cached_tokens,
            sampled_tokens=counts.sampled_tokens,
            trained_tokens=self._trained_tokens,
            optimizer_steps=self._optimizer_steps,
            kv_tokens=self._parts.limits.kv_tokens,
            kv_tokens_used=sampler.kv_tokens_used,
            base_bytes=self._parts.base_bytes,
            adapter_bytes=sum(adapter_bytes(handle.adapter) for handle in adapters),
            policy_bytes=sum(handle.bytes for handle in policies),
            sampling_s=self._compute.spent_s["sampling"],
            training_s=self._compute.spent_s["training"],
        )

    def _call(self, adapter_id: str, subject: str, start: Callable[[AdapterHandle], Task[T]]) -> Future[T]:
        """Appends a call to the adapter's queue."""
        try:
            handle = self._registry.adapter(adapter_id)
        except HermesError as error:
            return failed_future(error)
        return self._compute.submit(adapter_id, ScheduledCall(subject, lambda: start(handle)))

    def _create(self, handle: AdapterHandle) -> Task[str]:
        yield from ()
        try:
            handle.adapter = Adapter(self.spec, handle.config, self._backbone.device)
        finally:
            if handle.adapter is None:
                self._registry.drop_adapter(handle.id)
        return handle.id

    def _train(
        self, handle: AdapterHandle, data: Sequence[Datum], loss: Loss, forward_only: bool
    ) -> Task[TrainOutput]:
        longest = max((len(datum.tokens) for datum in data), default=0)
        limit = self._parts.limits.max_length
        if longest > limit:
            raise EngineUserError(f"A sequence has {longest} tokens, more than the context limit of {limit}.")
        output = yield from forward_backward(
            self._backbone,
            handle.require_adapter(),
            data,
            loss,
            forward_only=forward_only,
            budget_tokens=self._parts.train_tokens,
            pause=self._compute.pause_training,
            run=self._parts.run_pass,
        )
        self._trained_tokens += sum(len(datum.tokens) for datum in data)
        return output
