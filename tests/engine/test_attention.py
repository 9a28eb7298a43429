"""Attention over a pack against one dense product with the mask written out, values and gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hermes.engine.attention.packed import packed_attend
from hermes.engine.attention.packing import Pack, pack
from hermes.engine.model.load import wrap_model
from hermes.engine.types import Ints

from .processor import needs_bf16
from .tiny import tiny_model

HEADS, KV_HEADS, WIDTH = 4, 2, 16
SPEC = wrap_model(tiny_model(), "tiny").spec


def dense(batch: Pack, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    mask = torch.zeros(len(batch.tokens), len(batch.tokens), dtype=torch.bool)
    for rows in batch.rows:
        for position, row in enumerate(rows):
            first = 0 if window is None else max(0, position + 1 - window)
            mask[row, torch.as_tensor(rows[first : position + 1])] = True
    heads = (one.transpose(0, 1) for one in (q, k, v))
    out = functional.scaled_dot_product_attention(*heads, attn_mask=mask, enable_gqa=True)
    return out.transpose(0, 1)


def sequences(prompt: int, ends: tuple[int, ...]) -> list[Ints]:
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 512, prompt)
    return [np.concatenate([shared, rng.integers(0, 512, end)]) for end in ends] + [rng.integers(0, 512, 37)]


@pytest.mark.parametrize(
    ("prompt", "ends", "window"),
    [
        (40, (7, 30, 1, 28), None),
        (1300, (650, 900), None),
        (60, (9, 80), 11),
        # Long enough that queries are worked off in several strips.
        (1300, (900,), 300),
    ],
)
def test_values_and_gradients_equal_the_dense_product(
    prompt: int, ends: tuple[int, ...], window: int | None
) -> None:
    (batch,) = pack(sequences(prompt, ends), 10_000, share=window is None)
    generator = torch.Generator().manual_seed(0)
    shapes = [(len(batch.tokens), heads, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    *inputs, upstream = (2 * torch.randn(shape, generator=generator) for shape in shapes)
    for one in inputs:
        one.requires_grad_()
    spec = replace(SPEC, windows=(window,) * SPEC.layers)
    ours = packed_attend(batch, spec, torch.device("cpu"))(0, *inputs)
    theirs = dense(batch, *inputs, window)  # type: ignore[call-arg, arg-type]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    pairs = (torch.autograd.grad(out, inputs, upstream) for out in (ours, theirs))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 * float(other.abs().max()), rtol=1e-4)


@pytest.mark.parametrize(
    ("prompt", "ends"),
    [
        (200, (50, 60, 44)),
        # Long enough that queries are worked off in several strips, in the prompt and below it.
        pytest.param(1300, (650, 900), marks=needs_bf16),
    ],
)
def test_half_precision_loses_no_more_than_its_rounding(prompt: int, ends: tuple[int, ...]) -> None:
    (batch,) = pack(sequences(prompt, ends), 10_000)
    generator = torch.Generator().manual_seed(0)
    shapes = [(len(batch.tokens), heads, 64) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    *wide, upstream = (torch.randn(shape, generator=generator) for shape in shapes)
    narrow = [one.bfloat16() for one in wide]
    for one in (*wide, *narrow):
        one.requires_grad_()
    attend = packed_attend(batch, SPEC, torch.device("cpu"))
    exact = torch.autograd.grad(attend(0, *wide), wide, upstream)
    rounded = torch.autograd.grad(attend(0, *narrow), narrow, upstream.bfloat16())
    for one, other in zip(rounded, exact, strict=True):
        assert float((one.float() - other).norm() / other.norm()) < 0.02
