"""Which part of every layer each rank has. Pure arithmetic over a `ModelSpec`.

Attention is split by key heads, each with its query heads, and the feed-forward layer by its inner width: the
matrices into a split dimension are cut by rows, those out of it by columns, and the sum of what the ranks
compute is the layer's output. These are the column-wise and row-wise plans that transformers states for the
model's family; a family without them is refused. Parts need not be equal, so that 3 key heads can be divided
among 2 ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hermes.engine.model.llama import FAMILIES, unsupported_reason
from hermes.engine.spec import ModelSpec
from hermes.engine.types import EngineUserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_PLAN = {
    "self_attn.q_proj": "colwise",
    "self_attn.k_proj": "colwise",
    "self_attn.v_proj": "colwise",
    "self_attn.o_proj": "rowwise",
    "mlp.gate_proj": "colwise",
    "mlp.up_proj": "colwise",
    "mlp.down_proj": "rowwise",
}
"""The layers that this package computes, in the words of transformers' plans."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of every layer."""

    rank: int
    size: int
    """The number of ranks."""
    kv_heads: slice
    heads: slice
    inner: slice
    """The part of the feed-forward layer's inner width."""
    head_dim: int

    @property
    def is_leader(self) -> bool:
        """The first rank, which also has the embedding and the LM head."""
        return self.rank == 0

    @property
    def queries(self) -> slice:
        """Rows of the query projection, columns of the output projection."""
        return slice(self.heads.start * self.head_dim, self.heads.stop * self.head_dim)

    @property
    def keys(self) -> slice:
        """Rows of the key projection, and of the value projection."""
        return slice(self.kv_heads.start * self.head_dim, self.kv_heads.stop * self.head_dim)


def plan_shards(spec: ModelSpec, size: int) -> tuple[Shard, ...]:
    """The parts of all ranks, as equal as they can be; the first ranks have the smaller ones."""
    per_key = spec.heads // spec.kv_heads
    shards = []
    for rank in range(size):
        kv_heads = _part(spec.kv_heads, rank, size)
        heads = slice(kv_heads.start * per_key, kv_heads.stop * per_key)
        inner = _part(spec.intermediate, rank, size)
        shards.append(Shard(rank, size, kv_heads, heads, inner, spec.head_dim))
    return tuple(shards)


def local_spec(spec: ModelSpec, shard: Shard) -> ModelSpec:
    """The shape of the attention of one rank; everything else is the whole model's."""
    return replace(
        spec,
        heads=shard.heads.stop - shard.heads.start,
        kv_heads=shard.kv_heads.stop - shard.kv_heads.start,
    )


def largest_local_spec(spec: ModelSpec, size: int) -> ModelSpec:
    """The shape at the rank with the most heads: what fits there fits everywhere."""
    shards = plan_shards(spec, size)
    return max((local_spec(spec, shard) for shard in shards), key=lambda local: local.kv_heads)


def check_shardable(config: PretrainedConfig, name: str, size: int) -> None:
    """EngineUserError: the model cannot be divided among so many ranks."""
    reason = unsupported_reason(config) or _plan_reason(config)
    if not reason and getattr(config, "quantization_config", None):
        reason = "its files are quantised already"
    if reason:
        raise EngineUserError(
            f"--tensor-parallel-size does not support '{name}': {reason}.",
            f"Use a model of {', '.join(FAMILIES)}, or start the engine with --tensor-parallel-size 1.",
        )
    kv_heads = int(config.num_key_value_heads)
    if size > kv_heads:
        raise EngineUserError(
            f"'{name}' has {kv_heads} key heads, which cannot be divided among {size} ranks.",
            f"Use --tensor-parallel-size {kv_heads} or less.",
        )


def _plan_reason(config: Any) -> str:
    """Why transformers' own plan of the family is not the one computed here; empty if it is."""
    plan = config.base_model_tp_plan or {}
    stated = {name.removeprefix("layers.*."): style for name, style in plan.items()}
    missing = [name for name, style in _PLAN.items() if stated.get(name) != style]
    return f"transformers states no tensor-parallel plan for its {missing[0]}" if missing else ""


def _part(total: int, rank: int, size: int) -> slice:
    return slice(total * rank // size, total * (rank + 1) // size)
