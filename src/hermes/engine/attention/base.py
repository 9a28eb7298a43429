"""The attention interface of a backbone: a function that the caller of the forward pass provides."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [T, heads, D], k [T, kv_heads, D], v [T, kv_heads, D]), rotary applied, to [T, heads, D].
Scores are scaled by D ** -0.5; a layer's window is in the spec."""
