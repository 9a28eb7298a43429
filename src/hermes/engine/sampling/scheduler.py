"""Continuous batching: samples join and leave the running batch between decode steps.

A step admits the samples that fit into memory, computes a bounded number of prompt tokens, and samples one
token for every running sequence. An admitted sample is never preempted. The samples of a request that start
together share one computation of the prompt. All of this runs in the compute thread. An error ends the job it
belongs to; `step` raises only for bugs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hermes.engine.attention.kv_cache import KvSlot
from hermes.engine.lora.weights import Policy
from hermes.engine.memory import capacity_error, is_out_of_memory
from hermes.engine.sampling.admission import Admission, PrefillPrompt
from hermes.engine.sampling.prefill import Prefill, PrefillLimits
from hermes.engine.sampling.prefix_cache import CachedSlot
from hermes.engine.sampling.request import SampleJob
from hermes.engine.sampling.runner import ModelRunner, SampledTokens, SampleFuture
from hermes.engine.sampling.running import RowSnapshot, RunningBatch, RunningSequence
from hermes.engine.types import Ints, NotFiniteError, SampledSequence, SampleResult, StopReason

_EXPECTED_TOKENS = 256
"""Assumed length of a sample, unless its limit is lower."""


class PolicyLoad:
    def __init__(self) -> None:
        self._order: dict[Policy, int] = {}
        self._outstanding_tokens: dict[Policy, int] = {}
        self._dropped: set[Policy] = set()
        self._count = 0

    def add(self, job: SampleJob) -> None:
        self._count += 1
        self._order.setdefault(job.policy, self._count)
        self._outstanding_tokens[job.policy] = self._outstanding_tokens.get(job.policy, 0) + _cost(job)

    def remove(self, job: SampleJob) -> bool:
        """Subtracts a finished job. True if it was the last one of a dropped policy."""
        self._outstanding_tokens[job.policy] -= _cost(job)
        if self._outstanding_tokens[job.policy]:
            return False
        del self._outstanding_tokens[job.policy]
        return job.policy in self._dropped and self._remove_policy(job.policy)

    def drop(self, policy: Policy) -> bool:
        """Marks that no more jobs of this policy will be added. True if none is outstanding."""
        self._dropped.add(policy)
        return policy not in self._outstanding_tokens and self._remove_policy(policy)

    def is_dropped(self, policy: Policy) -> bool:
        return policy in self._dropped

    def order(self, policy: Policy) -> int:
        """A number that sorts the sequences of one policy together."""
        return self._order[policy]

    def sole_policy(self, min_tokens: int) -> Policy | None:
        """The only policy with unfinished jobs, if about `min_tokens` or more are outstanding for it."""
        if len(self._outstanding_tokens) != 1:
            return None
        policy, tokens = next(iter(self._outstanding_tokens.items()))
        return policy if tokens >= min_tokens else None

    def _remove_policy(self, policy: Policy) -> bool:
        self._dropped.discard(policy)
        self._order.pop(policy, None)
        return True


def _cost(job: SampleJob) -> int:
    """About how many tokens the job takes; never 0."""
    return len(job.prompt) + job.request.num_samples * min(job.limit, _EXPECTED_TOKENS)


MERGE_MIN_TOKENS = 512
"""The adapter of the only running policy is merged if at least this many tokens are outstanding."""


@dataclass(slots=True)
class SamplerCounts:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0


class SamplingScheduler:
    def __init__(self, runner: ModelRunner, kv_tokens: int, max_batch: int, prefill: PrefillLimits) -> None:
        self._runner = runner
        self._admission = Admission(runner, kv_tokens)
        self._running = RunningBatch(max_batch)
        self._prefill = Prefill(runner, prefill)
        self._last_token_pending: list[CachedSlot] = []
        """Prompts whose last token is computed by the next decode step."""
        self._rows: Ints = np.zeros(0, np.int64)
        """The rows of the runner's batch, in its order."""
        self._stale = False
        """The runner's batch is not the running sequences any more."""
        self._in_flight: deque[tuple[RowSnapshot, SampleFuture]] = deque()
        self._load = PolicyLoad()
        self._merge_fits = True
        self.counts = SamplerCounts()

    @property
    def busy(self) -> bool:
        return bool(self._admission.jobs or self._prefill.prompts or len(self._rows) or self._stale)

    @property
    def waiting(self) -> int:
        return sum(job.request.num_samples - job.started for job in list(self._admission.jobs))

    @property
    def running(self) -> int:
        return len(self._rows) + self._prefill.samples

    @property
    def kv_tokens_used(self) -> int:
        return self._admission.kv_tokens_used

    def submit(self, job: SampleJob) -> None:
        self.counts.prompt_tokens += len(job.prompt)
        self._load.add(job)
        self._admission.jobs.append(job)

    def drop_policy(self, policy: Policy) -> None:
        """Frees the policy's cached sequences; no more jobs of it may be submitted."""
        self._admission.drop_policy(policy.id)
        if self._load.drop(policy):
            self._runner.unmerge(policy)

    def end(self, job: SampleJob, error: BaseException | None) -> None:
        """Removes an unfinished job and fails its future; `error` is None if the future was cancelled."""
        if job in self._admission.jobs:
            self._admission.jobs.remove(job)
        for prompt in self._prefill.remove(job):
            self._free_unfinished(prompt.slots, prompt.entry)
        for row in self._running.rows_of(job):
            sequence = self._running.remove(row)
            self._free_unfinished([sequence.slot], sequence.entry)
        if self._mark_resolved(job) and job.future.set_running_or_notify_cancel():
            job.future.set_exception(error or CancelledError())

    def end_cancelled(self, future: Future[SampleResult]) -> None:
        """Removes the job of a cancelled future, if it is unfinished."""
        for job in self._jobs():
            if job.future is future:
                self.end(job, None)

    def end_all(self, error: BaseException) -> None:
        self._in_flight.clear()
        for job in self._jobs():
            self.end(job, error)

    def _jobs(self) -> list[SampleJob]:
        running = (self._running[int(row)].job for row in self._running.ordered_rows())
        prompts = (prompt.job for prompt in self._prefill.prompts)
        return list(dict.fromkeys([*self._admission.jobs, *prompts, *running]))

    def step(self) -> None:
        """Computes some prompt tokens, and one token for every running sequence."""
        if self._admission.jobs:
            self._admit()
        if self._prefill.is_due(running=bool(len(self._rows)) or self._stale):
            self._step_prefill()
        try:
            if self._stale:
                self._reload()
            if len(self._rows):
                self._decode()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            newest = self._running[self._running.newest(self._rows)].job
            self.end(newest, capacity_error(error, "the running batch"))

    def _admit(self) -> None:
        for prompt in self._admission.admit(self._running.free - self._prefill.samples):
            job = prompt.job
            if prompt.samples[0] == 0:
                job.cached_tokens = prompt.done
                self.counts.cached_tokens += prompt.done
            if job.limit and job.scores is None and prompt.done == len(job.prompt) - 1:
                self._start_cached(prompt)
            else:
                self._prefill.prompts.append(prompt)

    def _start_cached(self, prompt: PrefillPrompt) -> None:
        """Starts samples with a cached prompt, whose last token the next decode step computes."""
        self._stale = True
        self._last_token_pending.append(prompt.entry)
        self._add_rows(prompt)

    def _add_rows(self, prompt: PrefillPrompt) -> list[int]:
        """A row for each of the prompt's samples, whose slots are filled from the first one's."""
        job, starts = prompt.job, [slot.start for slot in prompt.slots]
        self._runner.copy(starts[0], starts[1:], prompt.done)
        order = self._load.order(job.policy)
        return [
            self._running.add(RunningSequence(job, sample, slot, None if number else prompt.entry), order)
            for number, (sample, slot) in enumerate(zip(prompt.samples, prompt.slots, strict=True))
        ]

    def _step_prefill(self) -> None:
        step = self._prefill.step(self._load.order, others_wait=bool(len(self._rows) or self._admission.jobs))
        for job, error in step.failed.items():
            self.end(job, error)
        if step.ready:
            self._start_samples(step.ready)

    def _start_samples(self, ready: list[tuple[PrefillPrompt, Tensor]]) -> None:
        """Samples the first tokens of complete prompts, whose samples join the running batch."""
        rows: list[int] = []
        states: list[Tensor] = []
        for prompt, hidden in ready:
            job = prompt.job
            if not job.limit:
                self._finish_without_sampling(prompt, hidden)
                continue
            rows += self._add_rows(prompt)
            states.append(hidden.expand(len(prompt.slots), -1))
        if rows:
            self._sample_first(np.array(rows, np.int64), states)

    def _sample_first(self, rows: Ints, states: Sequence[Tensor]) -> None:
        self._stale = True
        try:
            sampled = self._runner.sample(torch.cat(list(states)), self._running.sampling_metadata(rows))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            for job in dict.fromkeys(self._running[int(row)].job for row in rows):
                self.end(job, capacity_error(error, "the first tokens"))
        else:
            self._accept(self._running.snapshot(rows), sampled)

    def _finish_without_sampling(self, prompt: PrefillPrompt, hidden: Tensor) -> None:
        job = prompt.job
        if not bool(hidden.isfinite().all()):
            self._free_unfinished(prompt.slots, prompt.entry)
            self.end(job, NotFiniteError())
            return
        empty = SampledSequence(np.zeros(0, np.int64), np.zeros(0, np.float32), "length")
        job.sequences = dict.fromkeys(range(job.request.num_samples), empty)
        self._admission.cache(prompt.entry, job.prompt)
        self._resolve(job)

    def _reload(self) -> None:
        """Gives the runner the changed batch, after the steps in flight have been fetched."""
        while self._in_flight:
            self._accept(*self._in_flight.popleft())
        self._stale = False
        self._rows = self._running.ordered_rows()
        if len(self._rows):
            self._merge_sole_policy()
            self._runner.load(self._running.decode_batch(self._rows))

    def _merge_sole_policy(self) -> None:
        """Merges the adapter of the only policy. If a merged copy does not fit, none is tried again."""
        policy = self._load.sole_policy(MERGE_MIN_TOKENS)
        if policy is None or policy.weights is None or not self._merge_fits:
            return
        try:
            self._runner.merge(policy)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._merge_fits = False

    def _decode(self) -> None:
        self._in_flight.append((self._running.snapshot(self._rows), self._runner.step()))
        for entry in self._last_token_pending:
            entry.ready = len(entry.tokens)
        self._last_token_pending.clear()
        if len(self._in_flight) > self._runner.depth:
            self._accept(*self._in_flight.popleft())

    def _accept(self, snapshot: RowSnapshot, future: SampleFuture) -> None:
        """Appends the sampled tokens to the sequences that still run, and finishes those that end."""
        sampled = future.fetch()
        if not np.isfinite(sampled.logprobs).all():
            self._end_not_finite(snapshot, sampled)
        rows, sampled = self._running.filter_current(snapshot, sampled)
        if not len(rows):
            return
        self.counts.sampled_tokens += len(rows)
        ended = self._running.append(rows, sampled)
        for row in self._running.rows_with_listener(rows):
            self._notify(row)
        for row, reason in ended:
            if self._running.is_running(row):
                self._finish(row, reason)

    def _end_not_finite(self, snapshot: RowSnapshot, sampled: SampledTokens) -> None:
        """Ends the jobs whose logprobs are not finite; the rest of the batch continues."""
        rows, sampled = self._running.filter_current(snapshot, sampled)
        for row in rows[~np.isfinite(sampled.logprobs)].tolist():
            if self._running.is_running(row):
                self.end(self._running[row].job, NotFiniteError())

    def _notify(self, row: int) -> None:
        """Calls the request's `on_token`. If it raises, that request fails, and no other."""
        if not self._running.is_running(row):
            return
        sequence = self._running[row]
        assert sequence.job.request.on_token is not None
        try:
            sequence.job.request.on_token(sequence.sample, *self._running.last_token(row))
        except Exception as error:  # noqa: BLE001 - it becomes the request's result
            self.end(sequence.job, error)

    def _finish(self, row: int, reason: StopReason) -> None:
        self._stale = True
        sampled, cached = self._running.sampled_sequence(row, reason), self._running.cached_tokens(row)
        sequence = self._running.remove(row)
        job, slot, entry = sequence.job, sequence.slot, sequence.entry
        job.sequences[sequence.sample] = sampled
        if self._load.is_dropped(job.policy):
            self._admission.free([slot], entry)
        else:
            self._admission.cache(entry or CachedSlot(job.policy.id, slot, cached), cached)
        if job.complete:
            self._resolve(job)

    def _resolve(self, job: SampleJob) -> None:
        if self._mark_resolved(job) and job.future.set_running_or_notify_cancel():
            job.future.set_result(job.result())

    def _free_unfinished(self, slots: Sequence[KvSlot], entry: CachedSlot | None) -> None:
        """Zeroes and frees the slots of a sequence that did not finish."""
        self._stale = True
        for slot in slots:
            self._runner.zero(slot)
        self._admission.free(slots, entry)

    def _mark_resolved(self, job: SampleJob) -> bool:
        """False if the job was resolved before."""
        if job.resolved:
            return False
        job.resolved = True
        if self._load.remove(job):
            self._runner.unmerge(job.policy)
        return True
