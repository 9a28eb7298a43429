"""A worker process: one engine with a copy of the base model, which does what its front sends.

    python -m hermes.engine.replicas.worker FD

It keeps nothing that its front does not have: policies and adapters are sent to it, gradients are sent
back. It exits at once when the front is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from hermes.engine.info import ParametersNeededError
from hermes.models.local.torch_threads import import_torch
from hermes.safety.output.logs import log_to_stderr

if TYPE_CHECKING:
    from hermes.engine.engine import Engine
    from hermes.engine.lora.weights import WeightArrays
    from hermes.engine.replicas.process import Call, Reply
    from hermes.engine.types import Datum, Floats, LoraConfig, Loss, SampleRequest


def main() -> None:
    log_to_stderr(logging.WARNING, "worker: ")
    front: Connection[Any, Any] = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, ConnectionError):
        serve_front(front)
    os._exit(0)  # the front is gone: nobody wants what is being computed


def serve_front(front: Connection[Any, Any]) -> None:
    """Loads the model that the front names, and does what it sends. EOFError: the front is gone."""
    import_torch()
    import torch

    from hermes.engine.engine import Engine
    from hermes.engine.info import encode_error
    from hermes.engine.memory import capacity_error, is_out_of_memory
    from hermes.engine.replicas.process import Reply, WorkerReady
    from hermes.errors import HermesError

    settings = front.recv()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    try:
        engine = Engine(replace(settings.engine, max_adapters=sys.maxsize))  # `_free_adapter` limits them
    except (HermesError, RuntimeError, MemoryError) as error:
        if not isinstance(error, HermesError) and not is_out_of_memory(error):
            raise
        problem = error if isinstance(error, HermesError) else capacity_error(error, "the base model")
        front.send(Reply(0, "error", encode_error(problem)))
        return
    engine.start()
    ready = WorkerReady(engine.spec, engine.limits, engine.stats().base_bytes, str(engine.device))
    front.send(Reply(0, "result", ready))
    _EngineWorker(engine, front, settings.engine.max_adapters).run()


class _EngineWorker:
    def __init__(self, engine: Engine, front: Connection[Any, Any], max_adapters: int) -> None:
        self._engine, self._front, self._max_adapters = engine, front, max_adapters
        self._replies: queue.SimpleQueue[Callable[[], Reply]] = queue.SimpleQueue()
        """Made and sent by a thread of their own: the compute thread does not pickle."""
        self._adapters: OrderedDict[str, str] = OrderedDict()
        """By the front's id, the one that was used last at the end."""
        self._policies: dict[str, str] = {}
        self._samples: dict[int, Future[Any]] = {}

    def run(self) -> None:
        threading.Thread(target=self._send, name="hermes-worker-send", daemon=True).start()
        while True:
            call: Call = self._front.recv()
            try:
                getattr(self, f"_on_{call.name}")(call.number, *call.arguments)
            except Exception as error:  # noqa: BLE001 - it becomes the call's result
                self._reply_error(call.number, error)

    def _on_gradient(
        self,
        number: int,
        adapter_id: str,
        config: LoraConfig,
        parameters: Floats | None,
        data: list[Datum],
        loss: Loss,
        forward_only: bool,
    ) -> None:
        if adapter_id not in self._adapters:
            if parameters is None:
                raise ParametersNeededError("The adapter was dropped to make room for others.")
            if len(self._adapters) >= self._max_adapters:
                self._free_adapter()
            self._adapters[adapter_id] = self._engine.create_adapter(config).result()
        self._adapters.move_to_end(adapter_id)
        own_id = self._adapters[adapter_id]
        future = self._engine.compute_gradient(own_id, parameters, data, loss, forward_only)
        self._reply_when_done(number, future)

    def _free_adapter(self) -> None:
        """Drops the idle adapter that was used longest ago; while all are being trained, none."""
        idle = (key for key, own_id in self._adapters.items() if not self._engine.adapter(own_id).waiting)
        oldest = next(idle, None)
        if oldest is not None:
            self._engine.drop_adapter(self._adapters.pop(oldest))

    def _on_drop_adapter(self, number: int, adapter_id: str) -> None:
        own_id = self._adapters.pop(adapter_id, None)
        if own_id is not None:
            self._engine.drop_adapter(own_id)
        self._reply(number, None)

    def _on_add_policy(self, number: int, policy_id: str, arrays: WeightArrays, config: LoraConfig) -> None:
        from hermes.engine.lora.weights import decode_weights

        self._policies[policy_id] = self._engine.add_policy(decode_weights(arrays), config).result()
        self._reply(number, None)

    def _on_drop_policy(self, number: int, policy_id: str) -> None:
        own_id = self._policies.pop(policy_id, None)
        if own_id is not None:
            self._engine.drop_policy(own_id)
        self._reply(number, None)

    def _on_sample(self, number: int, policy_id: str | None, request: SampleRequest, stream: bool) -> None:
        from hermes.engine.replicas.process import Reply

        if stream:

            def on_token(sample: int, token: int, logprob: float) -> None:
                self._replies.put(lambda: Reply(number, "token", (sample, token, logprob)))

            request = replace(request, on_token=on_token)
        own_id = None if policy_id is None else self._policies[policy_id]
        future = self._engine.sample(own_id, request)
        self._samples[number] = future
        future.add_done_callback(lambda _: self._samples.pop(number, None))
        self._reply_when_done(number, future)

    def _on_cancel(self, number: int, sample_number: int) -> None:
        future = self._samples.get(sample_number)
        if future is not None:
            self._engine.cancel(future)
        self._reply(number, None)

    def _reply_when_done(self, number: int, future: Future[Any]) -> None:
        from hermes.engine.types import EngineUserError

        def reply(future: Future[Any]) -> None:
            if future.cancelled():
                self._reply_error(number, EngineUserError("The request was cancelled."))
            elif (error := future.exception()) is not None:
                self._reply_error(number, error)
            else:
                self._reply(number, future.result())

        future.add_done_callback(reply)

    def _reply(self, number: int, value: Any) -> None:
        from hermes.engine.replicas.process import Reply

        self._replies.put(lambda: Reply(number, "result", value, self._engine.stats()))

    def _reply_error(self, number: int, error: BaseException) -> None:
        from hermes.engine.info import encode_error
        from hermes.engine.replicas.process import Reply

        self._replies.put(lambda: Reply(number, "error", encode_error(error), self._engine.stats()))

    def _send(self) -> None:
        with contextlib.suppress(ConnectionError):  # the front is gone, which the main thread sees too
            while True:
                self._front.send(self._replies.get()())


if __name__ == "__main__":
    main()
