"""An adapter's weights as numpy arrays, for messages between processes."""

from __future__ import annotations

import torch

from hermes.engine.lora.weights import LoraGroup, LoraPart, LoraWeights
from hermes.engine.spec import Site
from hermes.engine.types import Floats

WeightArrays = dict[Site, tuple[Floats, tuple[tuple[Floats, float] | None, ...]]]
"""`LoraWeights` as numpy arrays."""


def encode_weights(weights: LoraWeights) -> WeightArrays:
    return {
        site: (
            group.a.cpu().numpy(),
            tuple(None if part is None else (part.b.cpu().numpy(), part.scale) for part in group.parts),
        )
        for site, group in weights.groups.items()
    }


def decode_weights(arrays: WeightArrays) -> LoraWeights:
    return LoraWeights(
        {
            site: LoraGroup(
                torch.from_numpy(a),
                tuple(
                    None if part is None else LoraPart(torch.from_numpy(part[0]), part[1]) for part in parts
                ),
            )
            for site, (a, parts) in arrays.items()
        }
    )
