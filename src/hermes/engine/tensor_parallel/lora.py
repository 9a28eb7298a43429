"""One rank's part of an adapter: rows of B where the linear is cut by rows, columns of A where by columns.

Parts are views, so that gradients flow back to the whole matrices, with zeros where another rank computes.
The sum of all ranks' gradients is therefore the gradient of the adapter.
"""

from __future__ import annotations

from dataclasses import dataclass

from hermes.engine.lora.weights import LoraDelta, LoraGroup, LoraPart, LoraSpans, LoraView, LoraWeights
from hermes.engine.spec import Site
from hermes.engine.tensor_parallel.plan import Shard


def shard_lora(lora: LoraView, shard: Shard) -> LoraView:
    """The rank's part of one adapter, or of several over spans of the tokens."""
    if isinstance(lora, LoraSpans):
        return LoraSpans(
            tuple(
                (start, end, None if weights is None else shard_lora(weights, shard))
                for start, end, weights in lora.spans
            )
        )
    assert isinstance(lora, LoraWeights)
    return ShardedLora(lora, shard)


@dataclass(frozen=True, slots=True, eq=False)
class ShardedLora(LoraView):
    weights: LoraWeights
    shard: Shard

    def at(self, group: Site) -> LoraDelta | None:
        whole = self.weights.at(group)
        return None if whole is None else _cut(whole, group[1], self.shard)


def _cut(group: LoraGroup, name: str, shard: Shard) -> LoraGroup:
    columns = {"o": shard.queries, "down": shard.inner}.get(name)
    if columns is not None:
        return LoraGroup(group.a[:, columns], group.parts)
    rows = {"qkv": (shard.queries, shard.keys, shard.keys), "gate_up": (shard.inner, shard.inner)}[name]
    return LoraGroup(
        group.a,
        tuple(
            part and LoraPart(part.b[part_rows], part.scale)
            for part, part_rows in zip(group.parts, rows, strict=True)
        ),
    )
