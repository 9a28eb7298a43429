"""Kernels under Triton's interpreter, which must be chosen before they are imported: run as a module."""

from __future__ import annotations

import sys

import numpy as np
import torch

from hermes.engine.attention.kv_cache import KvPool
from hermes.engine.attention.kv_decode import SharedPrefix, rows_attend, runs_of
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.model.load import wrap_model
from hermes.engine.sampling.logits import Draws, choose
from tests.engine.tiny import tiny_model

LENGTHS = np.array([3, 40, 17, 0, 62])


def hidden() -> None:
    """One decode step of five sequences, read whole and in parts.

    With windows, biases, scaled rotary, head norms, and heads that are no power of two wide.
    """
    from hermes.engine.kernels import decode
    from hermes.engine.sampling.cuda_fused import fused_hidden, gather_rows

    for family in ("llama", "llama3-rope", "mistral-window", "qwen2", "qwen3"):
        backbone = wrap_model(tiny_model(family), family)
        assert isinstance(backbone, LlamaBackbone)
        pools = [KvPool(backbone.spec, 64 * 6, torch.device("cpu"), torch.float32) for _ in range(2)]
        for part in ("keys", "values"):
            getattr(pools[0], part).normal_(generator=torch.Generator().manual_seed(0))
            getattr(pools[1], part).copy_(getattr(pools[0], part))
        first = np.arange(5) * 64
        cells, lengths = torch.from_numpy(first), torch.from_numpy(LENGTHS)
        tokens = torch.arange(5) * 7 + 3
        alone = [SharedPrefix(0, 5, 0, 0)]
        runs = runs_of(first, np.full(5, 64), alone, pools[0])
        attend = rows_attend(backbone.spec, pools[0], cells + lengths, runs, LENGTHS)
        want = backbone.hidden(tokens, lengths, attend, None)
        for decode._PROGRAMS in (264, 4):
            gather = gather_rows(backbone.spec, pools[1], cells, lengths)
            found = fused_hidden(backbone, pools[1], tokens, cells, lengths, gather)
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(pools[1].keys, pools[0].keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(pools[1].values, pools[0].values, rtol=1e-4, atol=1e-4)


def draw() -> None:
    from hermes.engine.kernels.sample import draw_rows

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 5000, generator=generator) * 3
    temperature = torch.tensor([1.0, 0.7, 0.0, 1.0, 2.0, 0.0, 1.0])
    seeds = torch.randint(-(2**62), 2**62, (7,), generator=generator)
    counts = torch.arange(7)
    real = torch.tensor([1, 1, 1, 1, 1, 1, 0])
    state = torch.stack([counts * 0, counts * 0, counts * 0 + 5, seeds, counts, real])
    tokens, logprobs = torch.zeros(7, dtype=torch.int64), torch.zeros(7)
    draw_rows(logits, temperature, state, tokens, logprobs)
    draws = Draws(seeds, counts, temperature, counts, temperature, greedy=True, filtered=False)
    want_tokens, want_logprobs = choose(logits.clone(), draws)
    assert tokens.tolist() == want_tokens.tolist() == state[0].tolist()
    torch.testing.assert_close(logprobs, want_logprobs, rtol=1e-4, atol=1e-5)
    assert state[2].tolist() == [6, 6, 6, 6, 6, 6, 5]
    assert state[4].tolist() == [1, 2, 3, 4, 5, 6, 7]


def copy() -> None:
    from hermes.engine.kernels.decode import copy_cells

    keys, values = torch.randn(2, 3, 100, 2, 16, generator=torch.Generator().manual_seed(0))
    want = [part.clone() for part in (keys, values)]
    for part in want:
        for target in (40, 70):
            part[:, target : target + 7] = part[:, 10:17]
    copy_cells(keys, values, 10, torch.tensor([40, 70]), 7)
    assert torch.equal(keys, want[0]) and torch.equal(values, want[1])


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    {"hidden": hidden, "draw": draw, "copy": copy}[sys.argv[1]]()
