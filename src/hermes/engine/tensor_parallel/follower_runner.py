"""The sampling passes of a follower: those of the leader, up to the final hidden states."""

from __future__ import annotations

import torch

from hermes.engine.attention.kv_cache import KvPool
from hermes.engine.sampling.runner import TorchRunner
from hermes.engine.tensor_parallel.backbone import ShardedLlama


class FollowerRunner(TorchRunner):
    """Samples nothing: the leader sends the embedded tokens with every pass."""

    def __init__(self, backbone: ShardedLlama, kv_tokens: int) -> None:
        spec = backbone.local_spec
        super().__init__(backbone, KvPool(spec, kv_tokens, backbone.device, backbone.dtype), spec)

    @torch.inference_mode()
    def repeat_step(self) -> None:
        self._decode_hidden()
