"""The running sequences as the rows of one table, so that a decode step is a few array operations on all of
them.

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

_ROW = np.dtype(
    [
        ("generation", np.int64),  # the number of rows added before, and this one; 0 while the row is free
        ("slot_start", np.int64),
        ("slot_size", np.int64),
        ("length", np.int64),  # tokens in the cache
        ("last_token", np.int64),  # the last one sampled, which is not in the cache yet
        ("count", np.int64),  # tokens sampled
        ("limit", np.int64),  # tokens to sample at most
        ("seed", np.int64),
        ("policy", np.int64),  # sorts the rows of one policy together
        ("prefix_hash", np.int64),  # of the first tokens of the prompt
        ("temperature", np.float32),
        ("top_k", np.int64),
        ("top_p", np.float32),
        ("topk", np.int64),  # alternatives to report with each token
        ("stop_group", np.int64),  # rows with the same stop texts have the same number; 0: no stop texts
        ("has_listener", np.bool_),
    ]
)


@dataclass(frozen=True, slots=True, eq=False)
class RunningSequence:
    """What stays the same while a sequence runs."""

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
        self._table: NDArray[np.void] = np.zeros(count, _ROW)
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
        record = self._table[row]
        record["generation"] = self._added
        record["slot_start"], record["slot_size"] = sequence.slot.start, sequence.slot.size
        record["length"] = len(job.prompt) - 1  # the first sampled token makes it the prompt's length
        record["last_token"] = job.prompt[-1]
        record["count"], record["limit"] = 0, job.limit
        record["seed"], record["policy"] = job.sample_seed(sequence.sample), policy_order
        record["prefix_hash"] = zlib.crc32(job.prompt[:MIN_SHARED_TOKENS].tobytes())
        record["temperature"], record["top_p"] = request.params.temperature, request.params.top_p
        record["top_k"] = request.params.top_k
        record["topk"] = request.topk_sample_logprobs
        record["has_listener"] = request.on_token is not None
        if job.stops.texts:
            record["stop_group"] = self._stop_groups.setdefault(job.stops, self._added)
        if request.topk_sample_logprobs:
            self._alternatives[row] = []
        self._set_stop_ids(row, job.stops.ids)
        return row

    def remove(self, row: int) -> RunningSequence:
        sequence = self[row]
        self._sequences[row] = None
        self._free.append(row)
        self._alternatives.pop(row, None)
        group = self._table["stop_group"][row]
        self._table[row] = np.zeros((), _ROW)
        if group and not (self._table["stop_group"] == group).any():
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
        return RowSnapshot(rows, self._table["generation"][rows])

    def filter_current(self, snapshot: RowSnapshot, sampled: SampledTokens) -> tuple[Ints, SampledTokens]:
        """The rows that still hold the same sequences, and what was sampled for them."""
        current = self._table["generation"][snapshot.rows] == snapshot.generations
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
        return int(rows[self._table["generation"][rows].argmax()])

    def ordered_rows(self) -> Ints:
        """All running rows, by policy, then by shared prefix, then by slot."""
        rows = np.flatnonzero(self._table["generation"])
        table = self._table[rows]
        _, group, sizes = np.unique(table["prefix_hash"], return_inverse=True, return_counts=True)
        # A prefix of few rows is not read separately, so those rows are ordered by their slots alone.
        prefix = np.where(sizes[group] < MIN_SHARED_ROWS, -1, table["prefix_hash"])
        return rows[np.lexsort((table["slot_start"], table["slot_size"], prefix, table["policy"]))]

    def sampling_metadata(self, rows: Ints) -> SamplingMetadata:
        """How the next tokens of these rows are sampled; rows of one policy must be consecutive."""
        table = self._table[rows]
        starts = [0, *(np.flatnonzero(np.diff(table["policy"])) + 1).tolist(), len(rows)]
        return SamplingMetadata(
            policies=combine_policies(
                (self[int(rows[start])].job.policy, end - start) for start, end in itertools.pairwise(starts)
            ),
            seeds=table["seed"].copy(),
            counts=table["count"].copy(),
            temperature=table["temperature"].copy(),
            top_k=table["top_k"].copy(),
            top_p=table["top_p"].copy(),
            topk=int(table["topk"].max()),
        )

    def decode_batch(self, rows: Ints) -> DecodeBatch:
        table = self._table[rows]
        lengths = table["length"].copy()
        return DecodeBatch(
            slot_starts=table["slot_start"].copy(),
            slot_sizes=table["slot_size"].copy(),
            lengths=lengths,
            tokens=table["last_token"].copy(),
            prompts=[
                self[row].job.prompt[:length]
                for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)
            ],
            sampling=self.sampling_metadata(rows),
        )

    def append(self, rows: Ints, sampled: SampledTokens) -> list[tuple[int, StopReason]]:
        """Appends one token to each of `rows`; returns those that have ended, with the reason."""
        table, position = self._table, self._table["count"][rows]
        if int(position.max()) >= self._tokens.shape[1]:
            self._tokens, self._logprobs = _double_width(self._tokens), _double_width(self._logprobs)
        self._tokens[rows, position] = sampled.tokens
        self._logprobs[rows, position] = sampled.logprobs
        table["count"][rows] += 1
        table["length"][rows] += 1
        table["last_token"][rows] = sampled.tokens
        if sampled.topk_ids is not None and sampled.topk_logprobs is not None:
            self._append_alternatives(rows, sampled.topk_ids, sampled.topk_logprobs)
        stopped = (sampled.tokens[:, None] == self._stop_ids[rows]).any(axis=1)
        for index in self._possible_stops(rows, sampled.tokens):
            stopped[index] |= self._stop_text_completed(int(rows[index]))
        ended = stopped | (table["count"][rows] >= table["limit"][rows])
        return [
            (int(rows[index]), "stop" if stopped[index] else "length")
            for index in np.flatnonzero(ended).tolist()
        ]

    def rows_with_listener(self, rows: Ints) -> list[int]:
        """Those of `rows` whose request has an `on_token` callback."""
        return [int(row) for row in rows[self._table["has_listener"][rows]]]

    def last_token(self, row: int) -> tuple[int, float]:
        position = self._table["count"][row] - 1
        return int(self._tokens[row, position]), float(self._logprobs[row, position])

    def sampled_sequence(self, row: int, reason: StopReason) -> SampledSequence:
        count = int(self._table["count"][row])
        topk: TopK | None = None
        if row in self._alternatives:
            ids, logprobs = zip(*self._alternatives[row], strict=True)
            topk = TopK(np.stack(ids), np.stack(logprobs))
        return SampledSequence(
            self._tokens[row, :count].copy(), self._logprobs[row, :count].copy(), reason, topk
        )

    def cached_tokens(self, row: int) -> Ints:
        """The tokens whose keys and values are in the row's slot: all but the last one sampled."""
        sampled = self._tokens[row, : max(0, int(self._table["count"][row]) - 1)]
        return np.concatenate([self[row].job.prompt, sampled])

    def _possible_stops(self, rows: Ints, tokens: Ints) -> list[int]:
        """Indices into `rows` whose new token can complete one of their stop texts."""
        groups = self._table["stop_group"][rows]
        possible = np.zeros(len(rows), np.bool_)
        for stops, group in self._stop_groups.items():
            assert stops.may_complete is not None
            possible |= (groups == group) & stops.may_complete[tokens]
        return np.flatnonzero(possible).tolist()

    def _stop_text_completed(self, row: int) -> bool:
        return self[row].job.stops.text_completed(self._tokens[row, : self._table["count"][row]])

    def _append_alternatives(self, rows: Ints, ids: Ints, logprobs: Floats) -> None:
        for index, row in enumerate(rows.tolist()):
            alternatives = self._alternatives.get(row)
            if alternatives is not None:
                width = int(self._table["topk"][row])
                alternatives.append((ids[index, :width].copy(), logprobs[index, :width].copy()))

    def _set_stop_ids(self, row: int, ids: tuple[int, ...]) -> None:
        missing = len(ids) - self._stop_ids.shape[1]
        if missing > 0:
            self._stop_ids = np.pad(self._stop_ids, ((0, 0), (0, missing)), constant_values=_NO_TOKEN)
        self._stop_ids[row] = _NO_TOKEN
        self._stop_ids[row, : len(ids)] = ids


def _double_width(column: NDArray[N]) -> NDArray[N]:
    return np.concatenate([column, np.zeros_like(column)], axis=1)
