"""The running sequences as the rows of one table: a decode step is a few array operations on all of them.

A row is one sample of one job with its slot. It is added once its prompt is computed, and removed when the
sequence ends. Per step, the host handles single sequences only where it must: for stop texts that may have
just been completed, and for token callbacks.
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hermes.engine.attention.kv_cache import KvSlot
from hermes.engine.attention.kv_decode import MIN_SHARED_ROWS, MIN_SHARED_TOKENS
from hermes.engine.sampling.prefix_cache import CachedSlot
from hermes.engine.sampling.request import SampleJob
from hermes.engine.sampling.runner import DecodeBatch, SampledTokens, SamplingMetadata, combine_policies
from hermes.engine.sampling.stops import Stops
from hermes.engine.types import Floats, Ints, SampledSequence, StopReason, TopK

N = TypeVar("N", bound=np.generic)

_INITIAL_WIDTH = 256
_NO_TOKEN = -1


@dataclass(frozen=True, slots=True, eq=False)
class _RowTable:
    """The state of the running sequences by column, [rows] each."""

    generation: Ints
    """The number of sequences added so far when this one was; 0 while the row is free."""
    slot_start: Ints
    slot_size: Ints
    length: Ints
    """Tokens in the cache."""
    last_token: Ints
    """The last sampled token, which is not in the cache yet."""
    count: Ints
    """Tokens sampled."""
    limit: Ints
    """Tokens to sample at most."""
    seed: Ints
    policy: Ints
    """Sorts the rows of one policy together."""
    prefix_hash: Ints
    """The hash of the first tokens of the prompt."""
    top_k: Ints
    topk: Ints
    """Alternatives to report with each token."""
    stop_group: Ints
    """Rows with the same stop texts have the same number; 0: no stop texts."""
    temperature: Floats
    top_p: Floats
    has_listener: NDArray[np.bool_]

    @classmethod
    def empty(cls, rows: int) -> _RowTable:
        def ints() -> Ints:
            return np.zeros(rows, np.int64)

        return cls(
            generation=ints(),
            slot_start=ints(),
            slot_size=ints(),
            length=ints(),
            last_token=ints(),
            count=ints(),
            limit=ints(),
            seed=ints(),
            policy=ints(),
            prefix_hash=ints(),
            top_k=ints(),
            topk=ints(),
            stop_group=ints(),
            temperature=np.zeros(rows, np.float32),
            top_p=np.ones(rows, np.float32),
            has_listener=np.zeros(rows, np.bool_),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RunningSequence:
    """The facts that stay the same while a sequence runs."""

    job: SampleJob
    sample: int
    slot: KvSlot
    entry: CachedSlot | None
    """The slot's entry in the prefix index, if its prompt can be found there already."""


class RowSnapshot(NamedTuple):
    """Rows as they were at one moment: a row that was reused since has another generation."""

    rows: Ints
    generations: Ints


class RunningBatch:
    def __init__(self, count: int) -> None:
        self._sequences: list[RunningSequence | None] = [None] * count
        self._free = list(range(count - 1, -1, -1))
        self._table = _RowTable.empty(count)
        self._stop_groups: dict[Stops, int] = {}
        """The numbers of the running stop texts. Each has a table as large as the vocabulary."""
        self._stop_ids = np.full((count, 1), _NO_TOKEN, np.int64)
        self._tokens: Ints = np.zeros((count, _INITIAL_WIDTH), np.int64)
        self._logprobs: Floats = np.zeros((count, _INITIAL_WIDTH), np.float32)
        self._alternatives: dict[int, list[tuple[Ints, Floats]]] = {}
        self._added = 0

    @property
    def free(self) -> int:
        return len(self._free)

    def __getitem__(self, row: int) -> RunningSequence:
        sequence = self._sequences[row]
        assert sequence is not None
        return sequence

    def add(self, sequence: RunningSequence, policy_order: int) -> int:
        """The row of a sequence whose prompt is in its slot, or all but the last token of it."""
        row, job, request = self._free.pop(), sequence.job, sequence.job.request
        self._sequences[row] = sequence
        self._added += 1
        table = self._table
        table.generation[row] = self._added
        table.slot_start[row], table.slot_size[row] = sequence.slot.start, sequence.slot.size
        table.length[row] = len(job.prompt) - 1  # the first sampled token makes it the prompt's length
        table.last_token[row] = job.prompt[-1]
        table.count[row], table.limit[row] = 0, job.limit
        table.seed[row], table.policy[row] = job.sample_seed(sequence.sample), policy_order
        table.prefix_hash[row] = zlib.crc32(job.prompt[:MIN_SHARED_TOKENS].tobytes())
        table.temperature[row], table.top_p[row] = request.params.temperature, request.params.top_p
        table.top_k[row] = request.params.top_k
        table.topk[row] = request.topk_sample_logprobs
        table.has_listener[row] = request.on_token is not None
        table.stop_group[row] = self._stop_groups.setdefault(job.stops, self._added) if job.stops.texts else 0
        if request.topk_sample_logprobs:
            self._alternatives[row] = []
        self._set_stop_ids(row, job.stops.ids)
        return row

    def remove(self, row: int) -> RunningSequence:
        sequence = self[row]
        self._sequences[row] = None
        self._free.append(row)
        self._alternatives.pop(row, None)
        group = self._table.stop_group[row]
        self._table.generation[row] = self._table.stop_group[row] = 0
        if group and not (self._table.stop_group == group).any():
            del self._stop_groups[sequence.job.stops]
        return sequence

    def rows_of(self, job: SampleJob) -> list[int]:
        return [
            row
            for row, sequence in enumerate(self._sequences)
            if sequence is not None and sequence.job is job
        ]

    def is_running(self, row: int) -> bool:
        return self._sequences[row] is not None

    def snapshot(self, rows: Ints) -> RowSnapshot:
        return RowSnapshot(rows, self._table.generation[rows])

    def filter_current(self, snapshot: RowSnapshot, sampled: SampledTokens) -> tuple[Ints, SampledTokens]:
        """The rows that still hold the same sequences, and what was sampled for them."""
        current = self._table.generation[snapshot.rows] == snapshot.generations
        if current.all():
            return snapshot.rows, sampled
        ids, logprobs = sampled.topk_ids, sampled.topk_logprobs
        return snapshot.rows[current], SampledTokens(
            sampled.tokens[current],
            sampled.logprobs[current],
            None if ids is None else ids[current],
            None if logprobs is None else logprobs[current],
        )

    def newest(self, rows: Ints) -> int:
        """The row that was added last."""
        return int(rows[self._table.generation[rows].argmax()])

    def ordered_rows(self) -> Ints:
        """All running rows, by policy, then by shared prefix, then by slot."""
        rows = np.flatnonzero(self._table.generation)
        table, prefix_hash = self._table, self._table.prefix_hash[rows]
        _, group, sizes = np.unique(prefix_hash, return_inverse=True, return_counts=True)
        # A prefix of few rows is not read separately, so those rows are ordered by their slots alone.
        prefix = np.where(sizes[group] < MIN_SHARED_ROWS, -1, prefix_hash)
        return rows[np.lexsort((table.slot_start[rows], table.slot_size[rows], prefix, table.policy[rows]))]

    def sampling_metadata(self, rows: Ints) -> SamplingMetadata:
        """How the next tokens of these rows are sampled; rows of one policy must be consecutive."""
        table = self._table
        starts = [0, *(np.flatnonzero(np.diff(table.policy[rows])) + 1).tolist(), len(rows)]
        return SamplingMetadata(
            policies=combine_policies(
                (self[int(rows[start])].job.policy, end - start) for start, end in itertools.pairwise(starts)
            ),
            seeds=table.seed[rows],
            counts=table.count[rows],
            temperature=table.temperature[rows],
            top_k=table.top_k[rows],
            top_p=table.top_p[rows],
            topk=int(table.topk[rows].max()),
        )

    def decode_batch(self, rows: Ints) -> DecodeBatch:
        table = self._table
        lengths = table.length[rows]
        return DecodeBatch(
            slot_starts=table.slot_start[rows],
            slot_sizes=table.slot_size[rows],
            lengths=lengths,
            tokens=table.last_token[rows],
            prompts=[
                self[row].job.prompt[:length]
                for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)
            ],
            sampling=self.sampling_metadata(rows),
        )

    def append(self, rows: Ints, sampled: SampledTokens) -> list[tuple[int, StopReason]]:
        """Appends one token to each of `rows`; returns those that have ended, with the reason."""
        table, position = self._table, self._table.count[rows]
        if int(position.max()) >= self._tokens.shape[1]:
            self._tokens, self._logprobs = _double_width(self._tokens), _double_width(self._logprobs)
        self._tokens[rows, position] = sampled.tokens
        self._logprobs[rows, position] = sampled.logprobs
        table.count[rows] += 1
        table.length[rows] += 1
        table.last_token[rows] = sampled.tokens
        if sampled.topk_ids is not None and sampled.topk_logprobs is not None:
            self._append_alternatives(rows, sampled.topk_ids, sampled.topk_logprobs)
        stopped = (sampled.tokens[:, None] == self._stop_ids[rows]).any(axis=1)
        for index in self._possible_stops(rows, sampled.tokens):
            stopped[index] |= self._stop_text_completed(int(rows[index]))
        ended = stopped | (table.count[rows] >= table.limit[rows])
        return [
            (int(rows[index]), "stop" if stopped[index] else "length")
            for index in np.flatnonzero(ended).tolist()
        ]

    def rows_with_listener(self, rows: Ints) -> list[int]:
        """Those of `rows` whose request has an `on_token` callback."""
        return [int(row) for row in rows[self._table.has_listener[rows]]]

    def last_token(self, row: int) -> tuple[int, float]:
        position = self._table.count[row] - 1
        return int(self._tokens[row, position]), float(self._logprobs[row, position])

    def sampled_sequence(self, row: int, reason: StopReason) -> SampledSequence:
        count = int(self._table.count[row])
        topk: TopK | None = None
        if row in self._alternatives:
            ids, logprobs = zip(*self._alternatives[row], strict=True)
            topk = TopK(np.stack(ids), np.stack(logprobs))
        return SampledSequence(
            self._tokens[row, :count].copy(), self._logprobs[row, :count].copy(), reason, topk
        )

    def cached_tokens(self, row: int) -> Ints:
        """The tokens whose keys and values are in the row's slot: all but the last one sampled."""
        sampled = self._tokens[row, : max(0, int(self._table.count[row]) - 1)]
        return np.concatenate([self[row].job.prompt, sampled])

    def _possible_stops(self, rows: Ints, tokens: Ints) -> list[int]:
        """Indices into `rows` whose new token can complete one of their stop texts."""
        groups = self._table.stop_group[rows]
        possible = np.zeros(len(rows), np.bool_)
        for stops, group in self._stop_groups.items():
            assert stops.may_complete is not None
            possible |= (groups == group) & stops.may_complete[tokens]
        return np.flatnonzero(possible).tolist()

    def _stop_text_completed(self, row: int) -> bool:
        return self[row].job.stops.text_completed(self._tokens[row, : self._table.count[row]])

    def _append_alternatives(self, rows: Ints, ids: Ints, logprobs: Floats) -> None:
        for index, row in enumerate(rows.tolist()):
            alternatives = self._alternatives.get(row)
            if alternatives is not None:
                width = int(self._table.topk[row])
                alternatives.append((ids[index, :width].copy(), logprobs[index, :width].copy()))

    def _set_stop_ids(self, row: int, ids: tuple[int, ...]) -> None:
        missing = len(ids) - self._stop_ids.shape[1]
        if missing > 0:
            self._stop_ids = np.pad(self._stop_ids, ((0, 0), (0, missing)), constant_values=_NO_TOKEN)
        self._stop_ids[row] = _NO_TOKEN
        self._stop_ids[row, : len(ids)] = ids


def _double_width(column: NDArray[N]) -> NDArray[N]:
    return np.concatenate([column, np.zeros_like(column)], axis=1)
