"""The runner for a CUDA device: a decode step is one graph, and the host is a step ahead of it.

Between two `load`s everything a step reads and writes stays on the device: tokens, lengths, seeds. The step
for a number of rows is captured once and replayed; rows are padded to the next captured number, and padding
works on cells of its own. A batch of one adapter runs on weights with that merged in, in buffers that keep
their place, so that graphs outlive the adapters. Batches of several adapters, and draws with top-k, top-p or
alternatives, are launched without a graph. What was drawn comes back by an asynchronous copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from hermes.engine.backbone import Attend, Backbone
from hermes.engine.compact import CompactBackbone, merge_head, merge_layer
from hermes.engine.decode import fits, fused_hidden, gather_rows
from hermes.engine.draw_kernels import draw_rows
from hermes.engine.kernels import attend_rows, copy_cells
from hermes.engine.kv import KvPool
from hermes.engine.prompts_varlen import Prompts
from hermes.engine.runner import Batch, Choice, Drawn, DrawnNow, Fetched, Piece, Policy, TorchRunner, join

_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 896, 1024)
"""Numbers of rows a step is captured for; larger batches go up in steps of 256."""

PADDING_CELLS = 1
"""Cells at the end of the pool that only padding uses."""


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """The running batch on the device, at addresses that never change; [rows] each."""

    ints: Tensor
    """[6, rows]: tokens, cells, lengths, seeds, counts, and 1 where the row is real (0: padding)."""
    temperature: Tensor
    tokens: Tensor
    """What the last step drew, and under which logprob."""
    logprobs: Tensor

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> _State:
        return cls(
            torch.zeros(6, rows, dtype=torch.int64, device=device),
            torch.ones(rows, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
            torch.zeros(rows, device=device),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _DrawnLater:
    """Drawn tokens on their way to the host."""

    tokens: Tensor
    logprobs: Tensor
    arrived: torch.cuda.Event

    def fetch(self) -> Fetched:
        self.arrived.synchronize()
        return Fetched(self.tokens.numpy().copy(), self.logprobs.numpy().copy(), None, None)


class CudaRunner(TorchRunner):
    depth = 1

    def __init__(self, backbone: Backbone, pool: KvPool, max_batch: int) -> None:
        super().__init__(backbone, pool)
        self._most = _size(max_batch)
        self._state = _State.empty(self._most, backbone.device)
        self._padding_cell = pool.keys.shape[1] - PADDING_CELLS
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        """By the number of rows, and whether they run on merged weights."""
        self._memory = torch.cuda.graph_pool_handle()
        self._buffers: CompactBackbone | None = None
        self._rows = 0
        self._host = [_pinned(self._most) for _ in range(self.depth + 2)]
        self._turn = 0

    def merge(self, policy: Policy) -> None:
        if not isinstance(self._base, CompactBackbone):
            return
        if policy.weights is None or (self._merged is not None and self._merged[0] is policy):
            return
        if self._buffers is None:
            self._buffers = _clone(self._base)
        _merge_into(self._buffers, self._base, policy)
        self._merged = (policy, self._buffers)

    def _prompts_hidden(self, pieces: Sequence[Piece]) -> Tensor:
        policies = join((piece.policy, len(piece.tokens)) for piece in pieces)
        if len(policies) == 1:
            self.merge(policies[0][0])
        backbone, lora = self._weights(policies)
        if lora is not None or not fits(backbone) or self._pool.keys.dtype == torch.float32:
            return super()._prompts_hidden(pieces)
        tokens = np.concatenate([piece.tokens for piece in pieces])
        positions = np.concatenate([np.arange(len(one.tokens)) + one.offset for one in pieces])
        cells = np.repeat([piece.cell for piece in pieces], [len(piece.tokens) for piece in pieces])
        prompts = Prompts(backbone.spec, self._pool, pieces)
        tokens_t, cells_t, positions_t = (self._tensor(one) for one in (tokens, cells, positions))
        return fused_hidden(backbone, self._pool, tokens_t, cells_t, positions_t, prompts.gather)

    @torch.inference_mode()
    def load(self, batch: Batch) -> None:
        self._batch = batch
        policies = batch.choice.policies
        if len(policies) == 1:
            self.merge(policies[0][0])
        self._rows = rows = len(batch.cells)
        size = _size(rows)
        ints = np.zeros((6, size), np.int64)
        ints[1] = self._padding_cell
        choice = batch.choice
        real = np.ones(rows, np.int64)
        columns = (batch.tokens, batch.cells, batch.lengths, choice.seeds, choice.counts, real)
        for into, values in zip(ints, columns, strict=True):
            into[:rows] = values
        self._state.ints[:, :size].copy_(torch.from_numpy(ints))
        self._state.temperature[:rows].copy_(torch.from_numpy(choice.temperature))
        self._choice = self._draws(choice)

    @torch.inference_mode()
    def step(self) -> Drawn:
        assert self._batch is not None
        choice = self._batch.choice
        if len(choice.policies) > 1 or not fits(self._base):
            return self._eager_step(choice)
        backbone, lora = self._weights(choice.policies)
        if (
            choice.topk
            or self._choice.filtered
            or lora is not None
            or not isinstance(backbone, CompactBackbone)
        ):
            return self._eager_step(choice)
        key = (_size(self._rows), backbone is self._buffers)
        if key not in self._graphs:
            self._graphs[key] = self._capture(backbone, key[0])
        self._graphs[key].replay()
        return self._send()

    def _capture(self, backbone: CompactBackbone, size: int) -> torch.cuda.CUDAGraph:
        kept = (self._state.ints.clone(), self._state.tokens.clone(), self._state.logprobs.clone())
        self._advance(backbone, size)  # compiles what is not compiled yet
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Another thread may copy weights to the host meanwhile, for a checkpoint: that is not to fail.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            self._advance(backbone, size)
        for into, values in zip(
            (self._state.ints, self._state.tokens, self._state.logprobs), kept, strict=True
        ):
            into.copy_(values)
        return graph

    def _advance(self, backbone: CompactBackbone, size: int) -> None:
        """One step of the first `size` rows, on the device's own state."""
        state = self._state
        tokens, cells, lengths = state.ints[:3, :size]
        gather = gather_rows(backbone.spec, self._pool, cells, lengths)
        hidden = fused_hidden(backbone, self._pool, tokens, cells, lengths, gather)
        logits = linear(hidden, backbone.head_weight)
        draw_rows(
            logits, state.temperature[:size], state.ints[:, :size], state.tokens[:size], state.logprobs[:size]
        )

    def _eager_step(self, choice: Choice) -> DrawnNow:
        state, rows = self._state, self._rows
        tokens, cells, lengths, _, counts, _ = state.ints[:, :rows]
        backbone, lora = self._weights(choice.policies)
        attend = self._rows_attend(cells, lengths)
        hidden = backbone.hidden(tokens, lengths, attend, lora)
        drawn = self._draw(hidden, choice, replace(self._choice, counts=counts))
        tokens.copy_(drawn.tokens)
        lengths.add_(1)
        counts.add_(1)
        return drawn

    @torch.inference_mode()
    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        if targets and tokens:
            into = (
                torch.tensor(targets, dtype=torch.int64).pin_memory().to(self._base.device, non_blocking=True)
            )
            copy_cells(self._pool.keys, self._pool.values, source, into, tokens)

    def _rows_attend(self, cells: Tensor, lengths: Tensor) -> Attend:
        pool, spec = self._pool, self._base.spec

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            pool.write(layer, cells + lengths, k, v)
            keys, values = pool.keys[layer], pool.values[layer]
            return attend_rows(q.contiguous(), keys, values, cells, lengths, spec.windows[layer])

        return attend

    def _send(self) -> _DrawnLater:
        tokens, logprobs = self._host[self._turn]
        self._turn = (self._turn + 1) % len(self._host)
        tokens[: self._rows].copy_(self._state.tokens[: self._rows], non_blocking=True)
        logprobs[: self._rows].copy_(self._state.logprobs[: self._rows], non_blocking=True)
        arrived = torch.cuda.current_stream().record_event()
        return _DrawnLater(tokens[: self._rows], logprobs[: self._rows], arrived)

    def _prompts_attend(self, cells: Tensor, pieces: Sequence[Piece]) -> Attend:
        if self._pool.keys.dtype == torch.float32:  # torch's variable-length kernel takes half precision only
            return super()._prompts_attend(cells, pieces)
        return Prompts(self._base.spec, self._pool, pieces).attend(cells)


def _size(rows: int) -> int:
    return next((size for size in _SIZES if size >= rows), -(-rows // 256) * 256)


def _pinned(rows: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(rows, dtype=torch.int64).pin_memory(), torch.zeros(rows).pin_memory()


def _clone(base: CompactBackbone) -> CompactBackbone:
    """A backbone whose matrices are its own; embedding and norms are shared."""
    layers = tuple(
        replace(
            layer,
            qkv=layer.qkv.clone(),
            o=layer.o.clone(),
            gate_up=layer.gate_up.clone(),
            down=layer.down.clone(),
        )
        for layer in base.layers
    )
    return replace(base, layers=layers, head_weight=base.head_weight.clone())


def _merge_into(buffers: CompactBackbone, base: CompactBackbone, policy: Policy) -> None:
    """The policy's weights into buffers that keep their place, layer by layer."""
    assert policy.weights is not None
    for index, into in enumerate(buffers.layers):
        layer = merge_layer(base, index, policy.weights)
        into.qkv.copy_(layer.qkv)
        into.o.copy_(layer.o)
        into.gate_up.copy_(layer.gate_up)
        into.down.copy_(layer.down)
    buffers.head_weight.copy_(merge_head(base, policy.weights))
