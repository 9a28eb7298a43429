"""An engine of several worker processes, with the interface of one.

The front owns everything that lasts: adapters with their gradients and optimizers, and policies. Workers own
copies. A training call is split into parts (`split`); each worker computes the gradient of its parts at the
parameters that the front sends, and the front sums them in the order of the parts once all have arrived. So a
worker may die at any moment: its parts are computed again, by another worker or by itself when it is back,
from the state before the call, and nothing is added twice. A policy is on every worker before the call that
made it is answered. An adapter is on every worker while all of them fit there; with more, on some of the
workers only.

With the same number of parts, one worker and N workers give the same update; on a CPU in float32 it has the
same bits if every worker has as many threads. Adapters are in this process's memory and their optimizer runs
on its CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch

from hermes.engine.checkpoints.adapter_io import load_adapter, save_adapter
from hermes.engine.compute import closed_error, single_threaded
from hermes.engine.engine import PolicyShelf
from hermes.engine.info import AdapterInfo, EngineOptions, EngineStats, ParametersNeededError
from hermes.engine.lora.adapter import Adapter, optim_step
from hermes.engine.lora.registry import AdapterHandle, AdapterRegistry, adapter_bytes
from hermes.engine.lora.weights import encode_weights
from hermes.engine.replicas.client import WorkerClient, WorkerLostError
from hermes.engine.replicas.fleet import WorkerFleet, WorkerPlacement, place
from hermes.engine.replicas.sampling import SampleRouter, join_outputs, split_by_prefix, sum_gradients
from hermes.engine.schedule import failed_future
from hermes.engine.training.validation import validate
from hermes.engine.types import (
    AdamParams,
    Datum,
    EngineCapacityError,
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

_MAX_DEATHS = 5
"""So many workers may die with one part of a training call in flight: then the call is the reason."""


@dataclass(slots=True, eq=False)
class _AdapterLane:
    """The calls of one adapter, in order, in a thread of their own."""

    handle: AdapterHandle
    thread: ThreadPoolExecutor
    unfinished: set[Future[Any]] = field(default_factory=set)
    version: int = 0
    """The version of its parameters."""
    sent: WeakKeyDictionary[WorkerClient, int] = field(default_factory=WeakKeyDictionary)
    """The version that a worker has."""


class EngineFront(PolicyShelf):
    """Loads the base model in every worker when it is created; `close` ends them."""

    def __init__(
        self,
        options: EngineOptions,
        replicas: int,
        parts: int | None = None,
        placements: list[WorkerPlacement] | None = None,
    ) -> None:
        """`parts`: of a training call; None: as many as replicas. `placements`: None: on this machine."""
        self._parts = parts or replicas
        on_host = placements is None
        placements = place(options, replicas) if placements is None else placements
        self._fleet = WorkerFleet(placements, self._welcome, self._on_lost, self._on_change, on_host=on_host)
        self._samples = SampleRouter(self._fleet, replicas)
        self._lanes: dict[str, _AdapterLane] = {}
        self._lock = threading.Lock()
        self._disk = ThreadPoolExecutor(1, "hermes-front-disk", single_threaded)
        self._max_adapters = options.max_adapters
        self._registry = AdapterRegistry(torch.device("cpu"), torch.float32, options.max_adapters * replicas)
        self._lost_stats = no_stats()
        self._trained_tokens = 0
        self._optimizer_steps = 0
        self._closed = False
        first = self._fleet.start()
        self.spec, self.tokenizer_dir = first.spec, options.model
        self._train_spec = replace(first.spec, max_length=first.limits.max_length)

    @property
    def workers(self) -> dict[str, int]:
        """Process ids of the available workers, by name."""
        return {client.name: client.pid for client in self._fleet.available().values()}

    def close(self) -> None:
        self._closed = True
        self._fleet.close()
        for adapter_id in list(self._lanes):
            self._end_lane(adapter_id, closed_error())
        self._samples.end_all(closed_error())
        self._disk.shutdown(wait=True)

    def create_adapter(self, config: LoraConfig) -> Future[str]:
        try:
            handle = self._registry.new_adapter(config)
        except HermesError as error:
            return failed_future(error)
        thread = ThreadPoolExecutor(1, f"hermes-{handle.id}", single_threaded)
        self._lanes[handle.id] = _AdapterLane(handle, thread)

        def create(lane: _AdapterLane) -> str:
            try:
                lane.handle.adapter = Adapter(self.spec, config, torch.device("cpu"))
            except BaseException:
                self._registry.drop_adapter(handle.id)
                raise
            return handle.id

        return self._call(handle.id, create)

    def drop_adapter(self, adapter_id: str) -> None:
        self._registry.drop_adapter(adapter_id)
        self._end_lane(adapter_id, EngineUserError(f"The adapter '{adapter_id}' was dropped."))
        for client in self._fleet.available().values():
            client.call("drop_adapter", adapter_id)

    def forward_backward(
        self, adapter_id: str, data: Sequence[Datum], loss: Loss, forward_only: bool = False
    ) -> Future[TrainOutput]:
        return self._call(adapter_id, lambda lane: self._train(lane, data, loss, forward_only))

    def optim_step(self, adapter_id: str, params: AdamParams) -> Future[dict[str, float]]:
        def step(lane: _AdapterLane) -> dict[str, float]:
            metrics = optim_step(lane.handle.require_adapter(), params)
            lane.version += 1
            self._optimizer_steps += 1
            return metrics

        return self._call(adapter_id, step)

    def snapshot(self, adapter_id: str) -> Future[str]:
        def freeze(lane: _AdapterLane) -> str:
            weights = lane.handle.require_adapter().freeze()
            return self._publish(
                lambda: self._registry.add_policy(weights, lane.handle.config, lane.handle.id)
            )

        return self._call(adapter_id, freeze)

    def save(self, adapter_id: str, folder: Path, optimizer: bool) -> Future[int]:
        def write(lane: _AdapterLane) -> int:
            adapter = lane.handle.require_adapter()
            state = adapter.state() if optimizer else None
            return save_adapter(folder, adapter.freeze(), lane.handle.config, self.spec, state)

        return self._call(adapter_id, write)

    def load(self, adapter_id: str, folder: Path, optimizer: bool) -> Future[None]:
        def read(lane: _AdapterLane) -> None:
            weights, _, state = load_adapter(folder, self.spec, optimizer)
            lane.handle.require_adapter().load_state(weights, state)
            lane.version += 1

        return self._call(adapter_id, read)

    def drop_policy(self, policy_id: str) -> None:
        with self._fleet.lock:
            if self._registry.drop_policy(policy_id) is None:
                return
            clients = self._fleet.available()
        for client in clients.values():
            client.call("drop_policy", policy_id)

    def adapter(self, adapter_id: str) -> AdapterInfo:
        handle = self._registry.adapter(adapter_id)
        lane = self._lanes.get(adapter_id)
        steps = handle.adapter.steps if handle.adapter else 0
        return AdapterInfo(handle.id, handle.config, steps, len(lane.unfinished) if lane else 0)

    def sample(self, policy_id: str | None, request: SampleRequest) -> Future[SampleResult]:
        """Samples on one worker, or on another if it dies. The future can be cancelled until it is done."""
        if self._closed:
            return failed_future(closed_error())
        try:
            self._registry.sampling_policy(policy_id)
        except HermesError as error:
            return failed_future(error)
        return self._samples.submit(policy_id, request)

    def stats(self) -> EngineStats:
        """As of the workers' last replies."""
        clients = self._fleet.available().values()
        total = add_stats(
            [self._lost_stats, *(client.stats for client in clients if client.stats is not None)]
        )
        adapters, policies = self._registry.adapters, self._registry.policies
        return replace(
            total,
            adapters=len(adapters),
            policies=len(policies),
            training_waiting=sum(len(lane.unfinished) for lane in list(self._lanes.values())),
            trained_tokens=self._trained_tokens,
            optimizer_steps=self._optimizer_steps,
            adapter_bytes=sum(adapter_bytes(handle.adapter) for handle in adapters),
            policy_bytes=sum(handle.bytes for handle in policies),
        )

    def _call(self, adapter_id: str, work: Callable[[_AdapterLane], T]) -> Future[T]:
        """Appends a call to the adapter's queue."""
        try:
            self._registry.adapter(adapter_id)
            lane = self._lanes[adapter_id]
        except (HermesError, KeyError) as error:
            problem = error if isinstance(error, HermesError) else closed_error()
            return failed_future(problem)
        future: Future[T] = Future()

        def run() -> None:
            try:
                result = work(lane)
            except BaseException as error:  # noqa: BLE001 - it becomes the call's result
                self._settle(lane, future, error=error)
            else:
                self._settle(lane, future, result=result)

        with self._lock:
            lane.unfinished.add(future)
        try:
            lane.thread.submit(run)
        except RuntimeError:  # it was shut down
            self._settle(lane, future, error=closed_error())
        return future

    def _settle(
        self,
        lane: _AdapterLane,
        future: Future[Any],
        result: Any = None,
        error: BaseException | None = None,
    ) -> None:
        """Resolves a call once: its end and the end of its adapter may meet."""
        with self._lock:
            if future not in lane.unfinished:
                return
            lane.unfinished.discard(future)
        if not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def _end_lane(self, adapter_id: str, error: HermesError) -> None:
        lane = self._lanes.pop(adapter_id, None)
        if lane is None:
            return
        lane.thread.shutdown(wait=False, cancel_futures=True)
        for future in list(lane.unfinished):
            self._settle(lane, future, error=error)

    def _train(
        self, lane: _AdapterLane, data: Sequence[Datum], loss: Loss, forward_only: bool
    ) -> TrainOutput:
        adapter = lane.handle.require_adapter()
        longest, limit = max((len(datum.tokens) for datum in data), default=0), self._train_spec.max_length
        if longest > limit:
            raise EngineUserError(f"A sequence has {longest} tokens, more than the context limit of {limit}.")
        validate(data, loss, self._train_spec)
        parts = split_by_prefix(data, self._parts) or [[]]
        results = self._compute_parts(
            lane, [([data[index] for index in part], loss, forward_only) for part in parts]
        )
        output = join_outputs(parts, [output for output, _ in results], len(data))
        gradients = [gradient for _, gradient in results if gradient is not None]
        if gradients:  # only now: a call that fails has no effect
            adapter.gradient.add_(torch.from_numpy(sum_gradients(gradients)))
        self._trained_tokens += sum(len(datum.tokens) for datum in data)
        return output

    def _compute_parts(
        self, lane: _AdapterLane, parts: Sequence[tuple[list[Datum], Loss, bool]]
    ) -> list[tuple[TrainOutput, Floats | None]]:
        """The results in the order of the parts. A part whose worker dies is sent to another one."""
        results: dict[int, tuple[TrainOutput, Floats | None]] = {}
        deaths = 0
        while deaths < _MAX_DEATHS:
            clients = self._homes(lane, list(self._fleet.wait_available().values()))
            missing = [number for number in range(len(parts)) if number not in results]
            targets = {number: clients[number % len(clients)] for number in missing}
            calls = {number: self._send_part(lane, targets[number], parts[number]) for number in missing}
            wait_for_futures(calls.values())
            for number, call in calls.items():
                error = call.exception()
                if error is None:
                    results[number] = call.result()
                elif isinstance(error, ParametersNeededError):
                    lane.sent.pop(targets[number], None)
                elif not isinstance(error, WorkerLostError):
                    lane.sent.clear()  # which parameters the workers have now is not known
                    raise error
            if len(results) == len(parts):
                return [results[number] for number in range(len(parts))]
            deaths += any(isinstance(call.exception(), WorkerLostError) for call in calls.values())
        raise EngineCapacityError(
            f"Workers died {_MAX_DEATHS} times while they computed this training call.",
            "Send fewer or shorter sequences at once; the adapter is as it was before the call.",
        )

    def _homes(self, lane: _AdapterLane, clients: list[WorkerClient]) -> list[WorkerClient]:
        """The workers that train this adapter: all, or as many as still fit it in, each adapter in turn."""
        lanes = list(self._lanes.values())
        copies = max(1, min(len(clients), len(clients) * self._max_adapters // max(1, len(lanes))))
        position = lanes.index(lane) if lane in lanes else 0
        return [clients[(position * copies + number) % len(clients)] for number in range(copies)]

    def _send_part(
        self, lane: _AdapterLane, client: WorkerClient, part: tuple[list[Datum], Loss, bool]
    ) -> Future[tuple[TrainOutput, Floats | None]]:
        adapter = lane.handle.require_adapter()
        is_current = lane.sent.get(client) == lane.version
        parameters = None if is_current else adapter.parameters.detach().numpy()
        lane.sent[client] = lane.version
        return client.call("gradient", lane.handle.id, lane.handle.config, parameters, *part)

    def _publish(self, add: Callable[[], str]) -> str:
        """Adds a policy here and on every worker; returns its id when all have it."""
        with self._fleet.lock:  # a worker that joins later gets it from `_welcome`
            policy_id = add()
            calls = [self._send_policy(client, policy_id) for client in self._fleet.available().values()]
        wait_for_futures(calls)
        for call in calls:
            error = call.exception()
            if error is not None and not isinstance(error, WorkerLostError):
                self.drop_policy(policy_id)
                raise error
        return policy_id

    def _send_policy(self, client: WorkerClient, policy_id: str) -> Future[None]:
        handle = self._registry.policy(policy_id)
        assert handle.policy.weights is not None
        return client.call("add_policy", policy_id, encode_weights(handle.policy.weights), handle.config)

    def _welcome(self, number: int, client: WorkerClient) -> None:
        """A worker is ready and about to get requests, which it serves after what is sent here."""
        self._samples.forget_worker(number)
        for handle in self._registry.policies:
            assert handle.policy.id is not None
            self._send_policy(client, handle.policy.id)

    def _on_lost(self, client: WorkerClient) -> None:
        if client.stats is not None:
            self._lost_stats = add_stats([self._lost_stats, only_counts(client.stats)])

    def _on_change(self) -> None:
        self._samples.retry_waiting()


_COUNTS = ("prompt_tokens", "cached_tokens", "sampled_tokens", "sampling_s", "training_s")


def no_stats() -> EngineStats:
    return EngineStats(**{field.name: 0 for field in fields(EngineStats)})


def add_stats(parts: Sequence[EngineStats]) -> EngineStats:
    return EngineStats(
        **{field.name: sum(getattr(part, field.name) for part in parts) for field in fields(EngineStats)}
    )


def only_counts(stats: EngineStats) -> EngineStats:
    """The result of a worker that is gone; whatever it had is gone too."""
    return replace(no_stats(), **{name: getattr(stats, name) for name in _COUNTS})
