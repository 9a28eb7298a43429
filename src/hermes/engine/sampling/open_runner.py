"""The runner of a device, with its pool of keys and values."""

from __future__ import annotations

from hermes.engine.attention.kv_cache import KvPool
from hermes.engine.model.backbone import Backbone
from hermes.engine.sampling.runner import TorchRunner
from hermes.engine.spec import ModelSpec


def open_runner(
    backbone: Backbone, kv_tokens: int, max_batch: int, spec: ModelSpec | None = None
) -> TorchRunner:
    """`spec`: the shape of the attention, where the backbone has some of the heads only."""
    spec = spec or backbone.spec
    if backbone.device.type != "cuda":
        return TorchRunner(backbone, KvPool(spec, kv_tokens, backbone.device, backbone.dtype), spec)
    from hermes.engine.sampling.cuda_runner import PADDING_KV_TOKENS, CudaRunner

    pool = KvPool(spec, kv_tokens + PADDING_KV_TOKENS, backbone.device, backbone.dtype)
    return CudaRunner(backbone, pool, max_batch, spec)
