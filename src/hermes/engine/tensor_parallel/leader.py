"""Sampling and training on the leader: every pass over the model is repeated by the followers.

The leader schedules, samples tokens, computes losses and owns adapters, as an engine without followers does.
Within a micro-batch training does not pause for samples: the ranks would have to agree on it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hermes.engine.attention.kv_cache import KvSlot
from hermes.engine.attention.packing import Pack
from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.weights import LoraWeights, Policy
from hermes.engine.model.backbone import Backbone
from hermes.engine.sampling.open_runner import open_runner
from hermes.engine.sampling.runner import DecodeBatch, PrefillChunk, SampleFuture
from hermes.engine.tensor_parallel.backbone import ShardedLlama
from hermes.engine.tensor_parallel.collectives import broadcast, sum_in_place
from hermes.engine.tensor_parallel.followers import Followers
from hermes.engine.training.passes import TrainingPass, run_pass
from hermes.engine.types import Floats


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
