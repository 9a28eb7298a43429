"""A follower process: one rank's part of the model, with which it repeats what the leader does.

    python -m hermes.engine.tensor_parallel.follower FD

It exits at once when the leader is gone, also in the middle of a computation, and after any error: the leader
then ends too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import socket
import sys
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.models.local.torch_threads import import_torch
from hermes.safety.output.logs import log_to_stderr

if TYPE_CHECKING:
    from torch import Tensor

    from hermes.engine.attention.kv_cache import KvSlot
    from hermes.engine.attention.packing import Pack
    from hermes.engine.lora.weights import Policy
    from hermes.engine.sampling.runner import DecodeBatch, PrefillChunk, TorchRunner
    from hermes.engine.tensor_parallel.backbone import ShardedLlama
    from hermes.engine.tensor_parallel.messages import FollowerSettings, PolicyArrays
    from hermes.engine.types import Floats, LoraConfig


_DEATH_S = 2.0
"""After an error, for the end of the leader to be noticed: then that is the reason."""


def main() -> None:
    leader: Connection[Any, Any] = Connection(int(sys.argv[1]))
    settings: FollowerSettings = leader.recv()
    peer = socket.socket(fileno=recv_handle(leader))
    log_to_stderr(logging.WARNING, f"rank {settings.rank}: ")
    commands: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    folder = settings.meeting.parent
    threading.Thread(
        target=_read, args=(leader, commands, folder), name="hermes-rank-read", daemon=True
    ).start()
    backbone = _load(settings, leader)
    if backbone is not None:
        _FollowerRank(settings, backbone, commands, peer).run()


def _read(leader: Connection[Any, Any], commands: queue.SimpleQueue[bytes], folder: Path) -> None:
    """A thread of its own: a rank that waits in a collective would not notice the leader's end.

    `folder`: of the file by which the ranks met. A leader that was killed has left it.
    """
    with contextlib.suppress(EOFError, OSError):
        while True:
            commands.put(leader.recv_bytes())
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _load(settings: FollowerSettings, leader: Connection[Any, Any]) -> ShardedLlama | None:
    """Tells the leader when this rank's part is loaded, or why it is not."""
    import_torch()
    import torch

    from hermes.engine.info import encode_error
    from hermes.engine.memory import capacity_error, is_out_of_memory
    from hermes.engine.model.config import read_config
    from hermes.engine.tensor_parallel.backbone import load_shard
    from hermes.errors import HermesError

    if settings.threads:
        torch.set_num_threads(settings.threads)
    try:
        config = read_config(settings.model)
        device, dtype = torch.device(settings.device), getattr(torch, settings.dtype)
        backbone = load_shard(settings.model, config, settings.rank, settings.size, device, dtype)
    except (HermesError, RuntimeError, MemoryError) as error:
        if not isinstance(error, HermesError) and not is_out_of_memory(error):
            raise
        problem = error if isinstance(error, HermesError) else capacity_error(error, "the base model")
        leader.send(encode_error(problem))
        return None
    leader.send(None)
    return backbone


class _FollowerRank:
    def __init__(
        self,
        settings: FollowerSettings,
        backbone: ShardedLlama,
        commands: queue.SimpleQueue[bytes],
        peer: socket.socket,
    ) -> None:
        from hermes.engine.lora.weights import Policy

        self._settings, self._backbone = settings, backbone
        self._commands, self._peer = commands, peer
        self._policies: dict[str | None, Policy] = {None: Policy(None, None, None)}
        self._runner: TorchRunner
        """Set when the leader says how large it is."""
        self._parameters: Tensor | None = None
        """Those of the adapter that was trained last."""
        self._states: Tensor | None = None
        """Those of the forward pass whose backward pass may follow."""

    def run(self) -> None:
        from hermes.engine.tensor_parallel.messages import decode_command

        while True:
            name, arguments = decode_command(self._commands.get(), self._policies.__getitem__)
            try:
                getattr(self, f"_on_{name}")(*arguments)
            except Exception:
                time.sleep(_DEATH_S)  # if the leader is gone, `_read` ends the process meanwhile
                raise

    def _on_join(self) -> None:
        from hermes.engine.tensor_parallel.collectives import join_by_nccl, join_by_sockets

        settings = self._settings
        if settings.own_gpus:
            join_by_nccl(settings.rank, settings.size, settings.meeting)
        else:
            join_by_sockets(settings.rank, [self._peer])

    def _on_open_runner(self, kv_tokens: int, max_batch: int) -> None:
        from hermes.engine.sampling.open_runner import open_runner

        self._runner = open_runner(self._backbone, kv_tokens, max_batch, self._backbone.local_spec)

    def _on_add_policy(self, sent: PolicyArrays) -> None:
        from hermes.engine.lora.weights import Policy, decode_weights

        weights = decode_weights(sent.arrays).to(self._backbone.device)
        self._policies[sent.id] = Policy(sent.id, weights, weights.cast(self._backbone.dtype))

    def _on_forget(self, policy_id: str) -> None:
        self._runner.unmerge(self._policies.pop(policy_id))

    def _on_prefill(self, chunks: list[PrefillChunk]) -> None:
        self._runner.prefill(chunks)

    def _on_copy(self, source: int, targets: list[int], tokens: int) -> None:
        self._runner.copy(source, targets, tokens)

    def _on_zero(self, slot: KvSlot) -> None:
        self._runner.zero(slot)

    def _on_load(self, batch: DecodeBatch) -> None:
        self._runner.load(batch)

    def _on_step(self) -> None:
        self._runner.decode_hidden()

    def _on_forward(
        self, batch: Pack, config: LoraConfig, parameters: Floats | None, train: bool, checkpoint: bool
    ) -> None:
        import torch

        from hermes.engine.attention.packed import packed_attend
        from hermes.engine.lora.adapter import assemble, plan_slices
        from hermes.engine.transfer import to_device

        backbone, device = self._backbone, self._backbone.device
        self._states = None
        if parameters is not None:
            self._parameters = torch.from_numpy(parameters).to(device).requires_grad_()
        assert self._parameters is not None, "the first pass has the parameters"
        tokens, positions = to_device((batch.tokens, batch.positions), device)
        with torch.set_grad_enabled(train):
            flat = self._parameters.to(backbone.dtype)
            lora = assemble(backbone.spec, config, plan_slices(backbone.spec, config), flat)
            attend = packed_attend(batch, backbone.spec, device)
            hidden = backbone.hidden(tokens, positions, attend, lora, checkpoint=checkpoint)
        if train:
            self._states = hidden

    def _on_backward(self) -> None:
        import torch

        from hermes.engine.tensor_parallel.collectives import broadcast, sum_in_place

        assert self._states is not None and self._parameters is not None
        states, self._states = self._states, None
        upstream = broadcast(torch.empty_like(states))
        if states.requires_grad:
            (partial,) = torch.autograd.grad(states, self._parameters, upstream)
        else:  # the adapter trains the LM head alone
            partial = torch.zeros_like(self._parameters)
        sum_in_place(partial)


if __name__ == "__main__":
    main()
