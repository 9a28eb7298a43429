"""The running sequences as columns: what a step does to all of them is a few array operations.

A lane is one sample of one job with its slot. Lanes are opened when their prompt is computed, and closed when
the sequence ends. Per step the host only does per-sequence work where it cannot be helped: texts that may
just have been completed, and listeners.
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hermes.engine.attention.kv_cache import KvSlot
from hermes.engine.attention.kv_decode import STEM_ROWS, STEM_TOKENS
from hermes.engine.sampling.prefix_cache import CachedSlot
from hermes.engine.sampling.request import SampleJob
from hermes.engine.sampling.runner import DecodeBatch, SampledTokens, SamplingMetadata, join
from hermes.engine.sampling.stops import Stops
from hermes.engine.types import Floats, Ints, SampledSequence, StopReason, TopK

N = TypeVar("N", bound=np.generic)

_FIRST_WIDTH = 256
_NO_TOKEN = -1


@dataclass(frozen=True, slots=True, eq=False)
class RunningSequence:
    """What a sequence is, apart from how far it has come."""

    job: SampleJob
    sample: int
    slot: KvSlot
    entry: CachedSlot | None
    """Its slot's entry in the index, if its prompt is findable already."""


class RowSnapshot(NamedTuple):
    """Lanes at one moment; `ages` tells whether somebody else has moved in since."""

    rows: Ints
    ages: Ints


class RunningBatch:
    def __init__(self, count: int) -> None:
        self._lanes: list[RunningSequence | None] = [None] * count
        self._free = list(range(count - 1, -1, -1))
        ints = {name: np.zeros(count, np.int64) for name in ("cell", "size", "length", "last", "count")}
        self.cell, self.size, self.length, self.last, self.count = ints.values()
        self._limit, self._seed, self._top_k = (np.zeros(count, np.int64) for _ in range(3))
        self._policy, self._stem, self._age = (np.zeros(count, np.int64) for _ in range(3))
        self._temperature, self._top_p = np.zeros(count, np.float32), np.ones(count, np.float32)
        self._has_listener = np.zeros(count, np.bool_)
        self._texts = np.zeros(count, np.int64)
        """Which of `_stops` a lane has; 0: none."""
        self._stops: dict[int, Stops] = {}
        """Of open lanes: each has a table as large as the vocabulary."""
        self._topk = np.zeros(count, np.int64)
        self._stop_ids = np.full((count, 1), _NO_TOKEN, np.int64)
        self._tokens: Ints = np.zeros((count, _FIRST_WIDTH), np.int64)
        self._logprobs: Floats = np.zeros((count, _FIRST_WIDTH), np.float32)
        self._alternatives: dict[int, list[tuple[Ints, Floats]]] = {}
        self._opened = 0

    @property
    def free(self) -> int:
        return len(self._free)

    def __getitem__(self, index: int) -> RunningSequence:
        lane = self._lanes[index]
        assert lane is not None
        return lane

    def open(self, lane: RunningSequence, policy_order: int) -> int:
        """A lane for a sequence whose prompt is in its slot, or all but the last token of it."""
        index, job, params = self._free.pop(), lane.job, lane.job.request.params
        self._lanes[index] = lane
        self._opened += 1
        self._age[index] = self._opened
        self.cell[index], self.size[index] = lane.slot.start, lane.slot.size
        self.length[index] = len(job.prompt) - 1  # the first draw makes it the prompt's length
        self.last[index] = job.prompt[-1]
        self.count[index], self._limit[index] = 0, job.limit
        self._seed[index], self._policy[index] = job.sample_seed(lane.sample), policy_order
        self._stem[index] = zlib.crc32(job.prompt[:STEM_TOKENS].tobytes())
        self._temperature[index], self._top_p[index] = params.temperature, params.top_p
        self._top_k[index] = params.top_k
        if job.stops.texts:
            self._texts[index] = id(job.stops)
            self._stops[id(job.stops)] = job.stops
        self._has_listener[index] = job.request.on_token is not None
        self._topk[index] = job.request.topk_sample_logprobs
        if self._topk[index]:
            self._alternatives[index] = []
        self._set_stop_ids(index, job.stops.ids)
        return index

    def close(self, index: int) -> RunningSequence:
        lane = self[index]
        self._lanes[index] = None
        self._age[index] = 0
        self._free.append(index)
        self._alternatives.pop(index, None)
        texts, self._texts[index] = int(self._texts[index]), 0
        if texts and not (self._texts == texts).any():
            del self._stops[texts]
        return lane

    def of_job(self, job: SampleJob) -> list[int]:
        return [index for index, lane in enumerate(self._lanes) if lane is not None and lane.job is job]

    def is_open(self, index: int) -> bool:
        return self._lanes[index] is not None

    def tenants(self, rows: Ints) -> RowSnapshot:
        return RowSnapshot(rows, self._age[rows])

    def still(self, tenants: RowSnapshot, drawn: SampledTokens) -> tuple[Ints, SampledTokens]:
        """The lanes that are still those they were, and what was drawn for them."""
        same = self._age[tenants.rows] == tenants.ages
        if same.all():
            return tenants.rows, drawn
        ids, logprobs = drawn.topk_ids, drawn.topk_logprobs
        return tenants.rows[same], SampledTokens(
            drawn.tokens[same],
            drawn.logprobs[same],
            None if ids is None else ids[same],
            None if logprobs is None else logprobs[same],
        )

    def youngest(self, rows: Ints) -> int:
        """The lane of `rows` that was opened last."""
        return int(rows[self._age[rows].argmax()])

    def order(self) -> Ints:
        """All open lanes, policy by policy, those that begin alike together, and slot by slot."""
        rows = np.flatnonzero(self._age)
        _, which, alike = np.unique(self._stem[rows], return_inverse=True, return_counts=True)
        stem = np.where(alike[which] < STEM_ROWS, -1, self._stem[rows])  # the others lie by their slots alone
        return rows[np.lexsort((self.cell[rows], self.size[rows], stem, self._policy[rows]))]

    def choice(self, rows: Ints) -> SamplingMetadata:
        """How the next tokens of these lanes are chosen; rows of one policy lie together."""
        starts = [0, *(np.flatnonzero(np.diff(self._policy[rows])) + 1).tolist(), len(rows)]
        return SamplingMetadata(
            policies=join(
                (self[int(rows[start])].job.policy, end - start) for start, end in itertools.pairwise(starts)
            ),
            seeds=self._seed[rows],
            counts=self.count[rows],
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            topk=int(self._topk[rows].max()),
        )

    def batch(self, rows: Ints) -> DecodeBatch:
        prompts = [self[index].job.prompt[: self.length[index]] for index in rows.tolist()]
        columns = (self.cell[rows], self.size[rows], self.length[rows], self.last[rows])
        return DecodeBatch(*columns, prompts, self.choice(rows))

    def accept(self, rows: Ints, drawn: SampledTokens) -> list[tuple[int, StopReason]]:
        """Appends one token to each of `rows`; which of them have ended, and why."""
        at = self.count[rows]
        if int(at.max()) >= self._tokens.shape[1]:
            self._tokens, self._logprobs = _widened(self._tokens), _widened(self._logprobs)
        self._tokens[rows, at] = drawn.tokens
        self._logprobs[rows, at] = drawn.logprobs
        self.count[rows] += 1
        self.length[rows] += 1
        self.last[rows] = drawn.tokens
        if drawn.topk_ids is not None and drawn.topk_logprobs is not None:
            self._keep_alternatives(rows, drawn.topk_ids, drawn.topk_logprobs)
        stopped = (drawn.tokens[:, None] == self._stop_ids[rows]).any(axis=1)
        for row in self._may_complete(rows, drawn.tokens):
            stopped[row] |= self._completed(int(rows[row]))
        ended = stopped | (self.count[rows] >= self._limit[rows])
        return [
            (int(rows[row]), "stop" if stopped[row] else "length") for row in np.flatnonzero(ended).tolist()
        ]

    def listeners(self, rows: Ints) -> list[int]:
        """Which of `rows` have somebody waiting for every token."""
        return [int(index) for index in rows[self._has_listener[rows]]]

    def last_token(self, index: int) -> tuple[int, float]:
        at = self.count[index] - 1
        return int(self._tokens[index, at]), float(self._logprobs[index, at])

    def sequence(self, index: int, reason: StopReason) -> SampledSequence:
        count = int(self.count[index])
        topk: TopK | None = None
        if index in self._alternatives:
            ids, logprobs = zip(*self._alternatives[index], strict=True)
            topk = TopK(np.stack(ids), np.stack(logprobs))
        return SampledSequence(
            self._tokens[index, :count].copy(), self._logprobs[index, :count].copy(), reason, topk
        )

    def cached(self, index: int) -> Ints:
        """The tokens whose keys and values are in the lane's slot: all but the last one drawn."""
        drawn = self._tokens[index, : max(0, int(self.count[index]) - 1)]
        return np.concatenate([self[index].job.prompt, drawn])

    def _may_complete(self, rows: Ints, tokens: Ints) -> list[int]:
        """The rows whose new token can be the end of one of their stop texts."""
        found = np.zeros(len(rows), np.bool_)
        texts = self._texts[rows]
        for key in np.unique(texts[texts != 0]).tolist():
            table = self._stops[key].may_complete
            assert table is not None
            found |= (texts == key) & table[tokens]
        return np.flatnonzero(found).tolist()

    def _completed(self, index: int) -> bool:
        return self[index].job.stops.completed(self._tokens[index, : self.count[index]])

    def _keep_alternatives(self, rows: Ints, ids: Ints, logprobs: Floats) -> None:
        for row, index in enumerate(rows.tolist()):
            kept = self._alternatives.get(index)
            if kept is not None:
                width = int(self._topk[index])
                kept.append((ids[row, :width].copy(), logprobs[row, :width].copy()))

    def _set_stop_ids(self, index: int, ids: tuple[int, ...]) -> None:
        missing = len(ids) - self._stop_ids.shape[1]
        if missing > 0:
            self._stop_ids = np.pad(self._stop_ids, ((0, 0), (0, missing)), constant_values=_NO_TOKEN)
        self._stop_ids[index] = _NO_TOKEN
        self._stop_ids[index, : len(ids)] = ids


def _widened(column: NDArray[N]) -> NDArray[N]:
    """Room for twice as many tokens."""
    return np.concatenate([column, np.zeros_like(column)], axis=1)
