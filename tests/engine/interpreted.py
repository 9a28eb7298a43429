"""Kernels under Triton's interpreter, which must be chosen before they are imported: run as a module."""

from __future__ import annotations

import secrets
import sys

import numpy as np
import torch

from hermes.engine.attention.kv_cache import KvPool
from hermes.engine.attention.kv_decode import SharedPrefix, decode_attend, slot_runs
from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.adapter_table import AdapterRows, AdapterTable
from hermes.engine.lora.weights import LoraGroup, LoraPart, LoraSpans, LoraWeights
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.model.load import wrap_model
from hermes.engine.sampling.device_rows import DeviceRows
from hermes.engine.sampling.logits import SamplingTensors, sample_tokens
from hermes.engine.types import LoraConfig
from tests.engine.attention_parts import check_blocks
from tests.engine.naive import shake
from tests.engine.tiny import tiny_model

LENGTHS = np.array([3, 40, 17, 0, 62])


def hidden() -> None:
    """One decode step of five sequences, read whole and in parts.

    With windows, biases, scaled rotary, head norms, and heads that are no power of two wide.
    """
    from hermes.engine.kernels import attention as kernels
    from hermes.engine.sampling.cuda_fused import decode_attention, fused_hidden

    for family in ("llama", "llama3-rope", "mistral-window", "qwen2", "qwen3"):
        backbone = wrap_model(tiny_model(family), family)
        assert isinstance(backbone, LlamaBackbone)
        pools = [KvPool(backbone.spec, 64 * 6, torch.device("cpu"), torch.float32) for _ in range(2)]
        for part in ("keys", "values"):
            getattr(pools[0], part).normal_(generator=torch.Generator().manual_seed(0))
            getattr(pools[1], part).copy_(getattr(pools[0], part))
        first = np.arange(5) * 64
        slot_starts, lengths = torch.from_numpy(first), torch.from_numpy(LENGTHS)
        tokens = torch.arange(5) * 7 + 3
        cos, sin = (part[:, 0].contiguous() for part in backbone.rotary(torch.arange(64)))
        rope = cos, sin
        alone = [SharedPrefix(0, 5, 0, 0)]
        runs = slot_runs(first, np.full(5, 64), alone, pools[0])
        attend = decode_attend(backbone.spec, pools[0], slot_starts + lengths, runs, LENGTHS)
        table, spans = adapters(backbone)
        rows = AdapterRows.for_spans(table, [(2, 2), (0, 1), (1, 2)])
        want = backbone.hidden(tokens, lengths, attend, spans)
        for kernels._PROGRAMS, kernels._TILE, kernels._CHUNK in ((264, 16, 32), (4, 16, 16), (264, 64, 256)):
            attention = decode_attention(backbone.spec, pools[1], slot_starts, lengths, 64)
            states = fused_hidden(backbone, pools[1], tokens, slot_starts, lengths, rope, attention, rows)
            torch.testing.assert_close(states, want, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(pools[1].keys, pools[0].keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(pools[1].values, pools[0].values, rtol=1e-4, atol=1e-4)


def adapters(backbone: LlamaBackbone) -> tuple[AdapterTable, LoraSpans]:
    """Two adapters of different ranks: rows 0 and 1 have the second one, row 2 has none."""
    table = AdapterTable(backbone.spec.groups, torch.device("cpu"), 3)
    weights = []
    for slot, config in enumerate((LoraConfig(rank=4, seed=0), LoraConfig(rank=20, seed=1, train_mlp=False))):
        adapter = Adapter(backbone.spec, config, torch.device("cpu"))
        shake(adapter)
        weights.append(adapter.freeze())
        table.write(slot + 1, weights[-1].aligned())
    return table, LoraSpans(((0, 2, weights[1]), (2, 3, None), (3, 5, weights[0])))


def lora() -> None:
    """Random spans, ranks, widths and dtypes: the plain formula, and the same bits beside other rows."""
    from hermes.engine.kernels import lora as kernel

    seed = secrets.randbelow(1 << 30)
    print("seed", seed)
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    for kernel._CHUNK in (128, 1024):
        for dtype, tolerance in ((torch.float32, 1e-4), (torch.float16, 2e-2)):
            outputs = tuple(int(width) for width in rng.integers(1, 300, rng.integers(1, 4)))
            inputs = int(rng.integers(1, 40)) * 8
            groups = [random_group(rng, generator, inputs, outputs, dtype) for _ in range(4)]
            spans = [(int(slot), int(rng.integers(1, 70))) for slot in rng.permutation(5)]
            check_groups(groups, spans, outputs, dtype, tolerance, generator)


def check_groups(
    groups: list[LoraGroup],
    spans: list[tuple[int, int]],
    outputs: tuple[int, ...],
    dtype: torch.dtype,
    tolerance: float,
    generator: torch.Generator,
) -> None:
    """Slot 0 is the base model; the others are the groups, in their order."""
    from hermes.engine.kernels import lora as kernel

    site = (0, "qkv")
    table = AdapterTable((site,), torch.device("cpu"), len(groups) + 1)
    for slot, group in enumerate(groups):
        table.write(slot + 1, LoraWeights({site: group}).aligned())
    count, inputs = sum(rows for _, rows in spans), groups[0].a.shape[1]
    x = torch.randn(count, inputs, generator=generator).to(dtype)
    base = torch.randn(count, sum(outputs), generator=generator)
    bias = torch.randn(sum(outputs), generator=generator).to(dtype)

    def computed(spans: list[tuple[int, int]], rows: slice) -> torch.Tensor:
        lora = AdapterRows.for_spans(table, spans)
        where = table.entries[:, 0], lora.tiles, lora.tile_rows
        down = kernel.shrink(x[rows], *where, len(outputs) * table.rank)
        out = torch.full_like(base[rows], torch.nan, dtype=dtype)
        return kernel.expand(base[rows], down, bias, *where, outputs, out=out, dtype=dtype)

    together, start = computed(spans, slice(0, count)), 0
    for slot, number in spans:
        rows = slice(start, start + number)
        want = (base[rows] + bias.float()).to(dtype)
        if slot:
            want = torch.cat(groups[slot - 1].add(x[rows], torch.split(want, list(outputs), dim=1)), dim=1)
        torch.testing.assert_close(together[rows], want, rtol=tolerance, atol=10 * tolerance)
        assert torch.equal(computed([(slot, number)], rows), together[rows])
        lora = AdapterRows.for_spans(table, [(slot, number)])
        where = table.entries[:, 0], lora.tiles, lora.tile_rows
        down = kernel.shrink(x[rows], *where, len(outputs) * table.rank)
        logits = base[rows].clone()
        kernel.expand(logits, down, None, *where, outputs, out=logits, dtype=dtype)
        torch.testing.assert_close(
            logits, together[rows].float() - bias.float(), rtol=tolerance, atol=10 * tolerance
        )
        start += number


def random_group(
    rng: np.random.Generator,
    generator: torch.Generator,
    inputs: int,
    outputs: tuple[int, ...],
    dtype: torch.dtype,
) -> LoraGroup:
    """Some linears have no delta."""
    ranks = [int(rng.integers(1, 50)) if rng.random() < 0.8 else 0 for _ in outputs]
    a = torch.randn(sum(ranks), inputs, generator=generator) * inputs**-0.5
    parts = tuple(
        LoraPart(torch.randn(width, rank, generator=generator).to(dtype), float(rng.uniform(0.1, 3)))
        if rank
        else None
        for width, rank in zip(outputs, ranks, strict=True)
    )
    return LoraGroup(a.to(dtype), parts)


def blocks() -> None:
    """In fp16: the interpreter does not multiply bf16."""
    from hermes.engine.kernels import attention as kernels

    for kernels._CHUNK in (64, 256):
        check_blocks(torch.device("cpu"), torch.float16)


def draw() -> None:
    from hermes.engine.sampling.cuda_runner import sample_into

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 5000, generator=generator) * 3
    temperature = torch.tensor([1.0, 0.7, 0.0, 1.0, 2.0, 0.0, 1.0])
    seeds = torch.randint(-(2**62), 2**62, (7,), generator=generator)
    counts = torch.arange(7)
    real = torch.tensor([1, 1, 1, 1, 1, 1, 0])
    rows = DeviceRows.empty(7, torch.device("cpu"))
    rows.temperature.copy_(temperature)
    rows.packed.copy_(torch.stack([counts * 0, counts * 0, counts * 0 + 5, seeds, counts, real]))
    sample_into(rows, logits)
    sampling = SamplingTensors(seeds, counts, temperature, counts, temperature, greedy=True, filtered=False)
    want_tokens, want_logprobs = sample_tokens(logits.clone(), sampling)
    assert rows.sampled_tokens.tolist() == want_tokens.tolist() == rows.tokens.tolist()
    torch.testing.assert_close(rows.sampled_logprobs, want_logprobs, rtol=1e-4, atol=1e-5)
    assert rows.lengths.tolist() == [6, 6, 6, 6, 6, 6, 5]
    assert rows.counts.tolist() == [1, 2, 3, 4, 5, 6, 7]


def invariant() -> None:
    """The batch-invariant product, and logprobs of chosen tokens, which have the bits of sampled ones."""
    from hermes.engine.kernels.invariant import linear
    from hermes.engine.kernels.sample import column_logprobs
    from hermes.engine.sampling.cuda_runner import sample_into

    generator = torch.Generator().manual_seed(0)
    x, bias = torch.randn(70, 100, generator=generator), torch.randn(130, generator=generator)
    weight = torch.randn(130, 110, generator=generator)[:, :100]
    torch.testing.assert_close(linear(x, weight, bias), x @ weight.t() + bias, rtol=1e-4, atol=1e-4)
    # In fp16: the interpreter does not multiply bf16.
    wide = linear(x.half(), weight.half(), dtype=torch.float32)
    torch.testing.assert_close(wide, x.half().float() @ weight.half().float().t(), rtol=1e-2, atol=1e-2)

    rows = DeviceRows.empty(9, torch.device("cpu"))
    rows.seeds.copy_(torch.randint(-(2**62), 2**62, (9,), generator=generator))
    logits = torch.randn(9, 5000, generator=generator) * 3
    sample_into(rows, logits)
    columns = torch.stack((rows.sampled_tokens, torch.arange(9)), 1)
    logprobs = column_logprobs(logits, columns)
    assert torch.equal(logprobs[:, 0], rows.sampled_logprobs)
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).gather(1, columns), rtol=1e-4, atol=1e-4)


def copy() -> None:
    from hermes.engine.kernels.decode import copy_slots

    keys, values = torch.randn(2, 3, 100, 2, 16, generator=torch.Generator().manual_seed(0))
    want = [part.clone() for part in (keys, values)]
    copies = ((10, 40, 7), (10, 70, 3), (2, 90, 1))
    for part in want:
        for source, target, tokens in copies:
            part[:, target : target + tokens] = part[:, source : source + tokens]
    copy_slots(keys, values, torch.tensor(copies), 7)
    assert torch.equal(keys, want[0]) and torch.equal(values, want[1])


def dequantize() -> None:
    """Whole and partial blocks, and more than one program."""
    from hermes.engine.kernels.dequantize import dequantize_nf4
    from hermes.engine.model.quantized import Nf4Matrix, nf4_levels, quantize

    for shape in ((8, 128), (3, 50), (1, 1), (33, 200)):
        matrix = quantize(torch.randn(shape, generator=torch.Generator().manual_seed(0)), "nf4")
        assert isinstance(matrix, Nf4Matrix)
        levels = nf4_levels(torch.device("cpu"))
        computed = dequantize_nf4(matrix.codes, matrix.scales, levels, shape, torch.float32)
        assert torch.equal(computed, matrix.dequantize(torch.float32))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    checks = {
        "hidden": hidden,
        "blocks": blocks,
        "draw": draw,
        "invariant": invariant,
        "copy": copy,
        "lora": lora,
        "dequantize": dequantize,
    }
    checks[sys.argv[1]]()
