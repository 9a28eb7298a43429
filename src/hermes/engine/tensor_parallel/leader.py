"""Sampling and training on the leader: every pass over the model is repeated by the followers.

The leader schedules, samples tokens, computes losses and owns adapters, as an engine without followers does.
Within a micro-batch training does not pause for samples: the ranks would have to agree on it.

`Followers` is the leader's view of the other ranks: it starts them, sends them what to repeat, and ends with
them. The ranks of a model live and die together. A rank that is gone, or an error while the ranks compute
together (for which the others would wait), ends this process; whoever started it starts it again. So a leader
belongs in a worker process behind a front, which keeps everything that lasts.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hermes.engine.attention.kv_cache import KvSlot
from hermes.engine.attention.packing import Pack
from hermes.engine.info import EngineOptions, decode_error
from hermes.engine.local_process import LocalProcess
from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.weights import LoraWeights, Policy, encode_weights
from hermes.engine.model.backbone import Backbone
from hermes.engine.sampling.open_runner import open_runner
from hermes.engine.sampling.runner import DecodeBatch, PrefillChunk, SampleFuture
from hermes.engine.tensor_parallel.backbone import ShardedLlama, load_shard
from hermes.engine.tensor_parallel.collectives import broadcast, join_by_nccl, join_by_sockets, sum_in_place
from hermes.engine.tensor_parallel.messages import FollowerSettings, PolicyArrays, encode_command
from hermes.engine.tensor_parallel.plan import check_shardable
from hermes.engine.training.passes import TrainingPass, run_pass
from hermes.engine.types import EngineUserError, Floats
from hermes.errors import HostError

_logger = logging.getLogger(__name__)
_MODULE = "hermes.engine.tensor_parallel.follower"
_FAILED = 1
_DEATH_S = 2.0
"""After an error, for the end of another rank to be reported: then that is the reason."""


class Followers:
    """Used by one thread at a time, once `join` has returned."""

    def __init__(self, model: str, size: int, device: torch.device, dtype: torch.dtype) -> None:
        """Starts the processes, which load their parts while the leader loads its own."""
        self._folder = Path(tempfile.mkdtemp(prefix="hermes-ranks-"))
        self.size = size
        self._own_gpus = device.type == "cuda" and torch.cuda.device_count() >= size
        self._processes: list[LocalProcess] = []
        self._connections: list[Connection[Any, Any]] = []
        self._peers: list[socket.socket] = []
        """For what the ranks compute together."""
        self._policies: set[str] = set()
        """Ids of those that the followers have."""
        self._closed = False
        threads = torch.get_num_threads() if device.type == "cpu" else 0
        for rank in range(1, size):
            process = LocalProcess(_MODULE, _environ(device, rank))
            connection = process.connect()
            name = str(dtype).removeprefix("torch.")
            meeting = self._folder / "meeting"
            connection.send(
                FollowerSettings(model, rank, size, device.type, name, threads, meeting, self._own_gpus)
            )
            peer, theirs = socket.socketpair()
            with theirs:
                send_handle(connection, theirs.fileno(), process.pid)
            self._peers.append(peer)
            self._processes.append(process)
            self._connections.append(connection)

    def join(self) -> None:
        """Waits until all have loaded their parts, and connects the ranks.

        HermesError: why one could not. HostError: one ended before it was ready.
        """
        ranks = zip(self._processes, self._connections, strict=True)
        for rank, (process, connection) in enumerate(ranks, 1):
            try:
                problem = connection.recv()
            except (EOFError, OSError) as error:
                raise HostError(
                    f"rank {rank} of the model {process.describe_end()} while it loaded its part",
                    "see the lines before this one; without any, the system may have been short of memory",
                ) from error
            if problem is not None:
                raise decode_error(problem)
        for process in self._processes:
            threading.Thread(
                target=self._watch, args=(process,), name="hermes-rank-watch", daemon=True
            ).start()
        self.send("join")
        if self._own_gpus:
            join_by_nccl(0, self.size, self._folder / "meeting")
        else:
            join_by_sockets(0, self._peers)

    def send(self, name: str, *arguments: Any) -> None:
        """Sends a call to all followers, after the policies that it needs."""
        data, policies = encode_command((name, arguments))
        for policy in policies:
            self._send_policy(policy)
        self._send(data)

    @contextmanager
    def repeating(self, name: str, *arguments: Any) -> Iterator[None]:
        """The followers repeat what the leader does in this block. An error in it ends the process."""
        try:
            self.send(name, *arguments)
            yield
        except Exception:
            time.sleep(_DEATH_S)
            _logger.exception("the ranks of the model cannot go on after an error in '%s'", name)
            self._end_process()

    def forget(self, policy: Policy) -> None:
        """Frees a policy's weights in the followers; they are sent again if it is used again."""
        if policy.id in self._policies:
            self._policies.discard(policy.id)
            self.send("forget", policy.id)

    def close(self) -> None:
        self._closed = True
        for connection in self._connections:
            connection.close()
        for peer in self._peers:
            peer.close()
        for process in self._processes:
            process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send_policy(self, policy: Policy) -> None:
        if policy.id is None or policy.id in self._policies:
            return
        assert policy.weights is not None
        self._policies.add(policy.id)
        self.send("add_policy", PolicyArrays(policy.id, encode_weights(policy.weights)))

    def _send(self, data: bytes) -> None:
        for connection in self._connections:
            connection.send_bytes(data)

    def _watch(self, process: LocalProcess) -> None:
        process.wait()
        if not self._closed:
            _logger.error("a rank of the model, pid %d, %s", process.pid, process.describe_end())
            self._end_process()

    def _end_process(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(_FAILED)


def _environ(device: torch.device, rank: int) -> dict[str, str]:
    """With GPUs, the rank's own one; with fewer GPUs than ranks they take turns."""
    if device.type != "cuda":
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": names[rank % len(names)]}


def start_ranks(
    options: EngineOptions, device: torch.device, dtype: torch.dtype
) -> tuple[ShardedLlama, Followers]:
    """The leader's part of the model, and the other ranks.

    EngineUserError: the model cannot be divided, or an option does not go with it. HostError: a rank died.
    """
    from transformers import AutoConfig

    size = options.tensor_parallel_size
    _check_options(options)
    try:
        config = AutoConfig.from_pretrained(options.model)
    except (OSError, ValueError) as error:
        raise EngineUserError(
            f"The base model '{options.model}' could not be loaded: {str(error).splitlines()[0]}",
            "Use a folder with config.json and safetensors, or a hub name that can be reached.",
        ) from error
    check_shardable(config, options.model, size)
    followers = Followers(options.model, size, device, dtype)
    try:
        backbone = load_shard(options.model, config, 0, size, device, dtype)
        followers.join()
    except BaseException:
        followers.close()
        raise
    return backbone, followers


def _check_options(options: EngineOptions) -> None:
    excluded = {
        "--quantize": options.quantize is not None,
        "--exact": options.exact,
        "kind='transformers'": options.kind == "transformers",
    }
    for name, is_set in excluded.items():
        if is_set:
            raise EngineUserError(
                f"{name} and --tensor-parallel-size cannot be combined.", "Leave one of them out."
            )


class LeaderRunner:
    """The runner of the leader's device. Passes are repeated by the followers, tokens are sampled here alone.

    Adapters are applied beside the weights: a merged copy would need the memory that a rank lacks.
    """

    def __init__(self, backbone: ShardedLlama, kv_tokens: int, max_batch: int, followers: Followers) -> None:
        self._runner = open_runner(backbone, kv_tokens, max_batch, backbone.local_spec)
        self._followers = followers
        self.depth = self._runner.depth
        self.logits, self.sample = self._runner.logits, self._runner.sample
        followers.send("open_runner", kv_tokens, max_batch)

    def merge(self, policy: Policy) -> None:
        return

    def unmerge(self, policy: Policy) -> None:
        self._runner.unmerge(policy)
        self._followers.forget(policy)

    def prefill(self, chunks: Sequence[PrefillChunk]) -> list[Tensor]:
        with self._followers.repeating("prefill", list(chunks)):
            return self._runner.prefill(chunks)

    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        with self._followers.repeating("copy", source, targets, tokens):
            self._runner.copy(source, targets, tokens)

    def zero(self, slot: KvSlot) -> None:
        with self._followers.repeating("zero", slot):
            self._runner.zero(slot)

    def load(self, batch: DecodeBatch) -> None:
        with self._followers.repeating("load", batch):
            self._runner.load(batch)

    def step(self) -> SampleFuture:
        with self._followers.repeating("step"):
            return self._runner.step()


class LeaderPasses:
    """Training passes that the followers repeat."""

    def __init__(self, followers: Followers) -> None:
        self._followers = followers
        self._sent: tuple[weakref.ref[Adapter], int] | None = None
        """The adapter whose parameters the followers have, and their version."""

    def run_pass(
        self,
        backbone: Backbone,
        adapter: Adapter,
        batch: Pack,
        *,
        train: bool,
        checkpoint: bool = False,
        pause: Callable[[], None] | None = None,
    ) -> TrainingPass:
        """As `passes.run_pass`, without pauses."""
        parameters = self._changed_parameters(adapter)
        with self._followers.repeating("forward", batch, adapter.config, parameters, train, checkpoint):
            leader = run_pass(backbone, adapter, batch, train=train, checkpoint=checkpoint)
            return _LeaderPass(leader, self._followers)

    def _changed_parameters(self, adapter: Adapter) -> Floats | None:
        """None if the followers have them."""
        if self._sent is not None and self._sent[0]() is adapter and self._sent[1] == adapter.version:
            return None
        self._sent = weakref.ref(adapter), adapter.version
        return adapter.parameters.detach().cpu().numpy()


@dataclass(frozen=True, slots=True, eq=False)
class _LeaderPass:
    leader: TrainingPass
    followers: Followers

    @property
    def states(self) -> Tensor:
        return self.leader.states

    @property
    def lora(self) -> LoraWeights:
        return self.leader.lora

    def backward(self, upstream: Tensor, gradient: Tensor) -> None:
        with self.followers.repeating("backward"):
            broadcast(upstream)
            partial = torch.zeros_like(gradient)
            self.leader.backward(upstream, partial)
            sum_in_place(partial)
            gradient.add_(partial)
