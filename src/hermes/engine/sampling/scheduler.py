"""Continuous batching: samples join and leave a running batch, a step at a time.

A step admits what has room, computes a bounded amount of prompts, and draws one token for every running
sequence. What is admitted always runs to its end. The samples of a request that start together share one
computation of the prompt. All of this runs in the compute thread. Errors end the job they belong to; `step`
raises only for bugs.
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
from hermes.engine.lora.policy import Policy
from hermes.engine.memory import capacity_error, is_out_of_memory
from hermes.engine.sampling.admission import Admission, PrefillPrompt
from hermes.engine.sampling.policy_load import PolicyLoad
from hermes.engine.sampling.prefill import Prefill
from hermes.engine.sampling.prefix_cache import CachedSlot
from hermes.engine.sampling.request import SampleJob
from hermes.engine.sampling.runner import ModelRunner, SampledTokens, SampleFuture
from hermes.engine.sampling.running import RowSnapshot, RunningBatch, RunningSequence
from hermes.engine.types import Ints, NotFiniteError, SampledSequence, SampleResult, StopReason

MERGE_PAYS_TOKENS = 512
"""A policy that has the sampler to itself and so many tokens to go is worth merging."""


@dataclass(slots=True)
class SamplerCounts:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0


class SamplingScheduler:
    def __init__(self, runner: ModelRunner, cells: int, max_batch: int, prefill_tokens: int) -> None:
        self._runner = runner
        self._admission = Admission(runner, cells)
        self._lanes = RunningBatch(max_batch)
        self._prefill = Prefill(runner, prefill_tokens)
        self._joined: list[CachedSlot] = []
        """Their prompts' last tokens are computed by the next decode step."""
        self._rows: Ints = np.zeros(0, np.int64)
        self._stale = False
        self._under_way: deque[tuple[RowSnapshot, SampleFuture]] = deque()
        self._ledger = PolicyLoad()
        self._merging = True
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
    def cells_used(self) -> int:
        return self._admission.cells_used

    def submit(self, job: SampleJob) -> None:
        self.counts.prompt_tokens += len(job.prompt)
        self._ledger.add(job)
        self._admission.jobs.append(job)

    def forget_policy(self, policy: Policy) -> None:
        """Nothing new will be asked of it: its part of the cache is given back."""
        self._admission.forget_policy(policy.id)
        if self._ledger.drop(policy):
            self._runner.unmerge(policy)

    def end(self, job: SampleJob, error: BaseException | None) -> None:
        """Takes a job out, wherever it is; without an error if its future was cancelled."""
        if job in self._admission.jobs:
            self._admission.jobs.remove(job)
        for prompt in self._prefill.take_out(job):
            self._wipe(prompt.slots, prompt.entry)
        for index in self._lanes.of_job(job):
            lane = self._lanes.close(index)
            self._wipe([lane.slot], lane.entry)
        if self._settle(job) and job.future.set_running_or_notify_cancel():
            job.future.set_exception(error or CancelledError())

    def end_cancelled(self, future: Future[SampleResult]) -> None:
        """Takes out the job of a cancelled future, if it is still here."""
        for job in self._jobs():
            if job.future is future:
                self.end(job, None)

    def end_all(self, error: BaseException) -> None:
        self._under_way.clear()
        for job in self._jobs():
            self.end(job, error)

    def _jobs(self) -> list[SampleJob]:
        lanes = (self._lanes[int(index)].job for index in self._lanes.order())
        prompts = (prompt.job for prompt in self._prefill.prompts)
        return list(dict.fromkeys([*self._admission.jobs, *prompts, *lanes]))

    def step(self) -> None:
        """One turn: some prompts, and one token for everybody."""
        if self._admission.jobs:
            self._admit()
        if self._prefill.prompts:
            self._compute_prompts()
        try:
            if self._stale:
                self._reload()
            if len(self._rows):
                self._decode()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            youngest = self._lanes[self._lanes.youngest(self._rows)].job
            self.end(youngest, capacity_error(error, "the running batch"))

    def _admit(self) -> None:
        for prompt in self._admission.admit(self._lanes.free - self._prefill.samples):
            job = prompt.job
            if prompt.samples[0] == 0:
                job.cached_tokens = prompt.done
                self.counts.cached_tokens += prompt.done
            if job.limit and job.scores is None and prompt.done == len(job.prompt) - 1:
                self._join(prompt)
            else:
                self._prefill.prompts.append(prompt)

    def _join(self, prompt: PrefillPrompt) -> None:
        """All but the last token is in the cache: that one is decoded like any other."""
        self._stale = True
        self._joined.append(prompt.entry)
        self._open(prompt)

    def _open(self, prompt: PrefillPrompt) -> list[int]:
        """A lane for each of the prompt's samples, whose slots are filled from the first's."""
        job, cells = prompt.job, [slot.start for slot in prompt.slots]
        self._runner.copy(cells[0], cells[1:], prompt.done)
        order = self._ledger.order(job.policy)
        return [
            self._lanes.open(RunningSequence(job, sample, slot, None if number else prompt.entry), order)
            for number, (sample, slot) in enumerate(zip(prompt.samples, prompt.slots, strict=True))
        ]

    def _compute_prompts(self) -> None:
        """What is then complete starts to run."""
        turn = self._prefill.turn(self._ledger.order)
        for job, error in turn.spoiled.items():
            self.end(job, error)
        if turn.ready:
            self._run(turn.ready)

    def _run(self, ready: list[tuple[PrefillPrompt, Tensor]]) -> None:
        """The prompts are in the cache: their samples draw a first token and join the running batch."""
        rows: list[int] = []
        states: list[Tensor] = []
        for prompt, hidden in ready:
            job = prompt.job
            if not job.limit:
                self._finish_without_sampling(prompt, hidden)
                continue
            rows += self._open(prompt)
            states.append(hidden.expand(len(prompt.slots), -1))
        if rows:
            self._draw_first(np.array(rows, np.int64), states)

    def _draw_first(self, lanes: Ints, states: Sequence[Tensor]) -> None:
        self._stale = True
        try:
            drawn = self._runner.draw(torch.cat(list(states)), self._lanes.choice(lanes))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            for job in dict.fromkeys(self._lanes[int(index)].job for index in lanes):
                self.end(job, capacity_error(error, "the first tokens"))
        else:
            self._accept(self._lanes.tenants(lanes), drawn)

    def _finish_without_sampling(self, prompt: PrefillPrompt, hidden: Tensor) -> None:
        job = prompt.job
        if not bool(hidden.isfinite().all()):
            self._wipe(prompt.slots, prompt.entry)
            self.end(job, NotFiniteError())
            return
        nothing = SampledSequence(np.zeros(0, np.int64), np.zeros(0, np.float32), "length")
        job.sequences = dict.fromkeys(range(job.request.num_samples), nothing)
        self._admission.keep(prompt.entry, job.prompt)
        self._resolve(job)

    def _reload(self) -> None:
        """The batch has changed: whatever is under way is fetched first."""
        while self._under_way:
            self._accept(*self._under_way.popleft())
        self._stale = False
        self._rows = self._lanes.order()
        if len(self._rows):
            self._merge_if_it_pays()
            self._runner.load(self._lanes.batch(self._rows))

    def _merge_if_it_pays(self) -> None:
        """Where a merged copy does not fit, adapters are applied as they are from then on."""
        policy = self._ledger.alone(MERGE_PAYS_TOKENS)
        if policy is None or policy.weights is None or not self._merging:
            return
        try:
            self._runner.merge(policy)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._merging = False

    def _decode(self) -> None:
        self._under_way.append((self._lanes.tenants(self._rows), self._runner.step()))
        self._ready_joined()
        if len(self._under_way) > self._runner.depth:
            self._accept(*self._under_way.popleft())

    def _ready_joined(self) -> None:
        for entry in self._joined:
            entry.ready = len(entry.tokens)
        self._joined.clear()

    def _accept(self, tenants: RowSnapshot, drawn: SampleFuture) -> None:
        """Appends what was drawn, but for lanes that have ended since; ends what has ended."""
        fetched = drawn.fetch()
        if not np.isfinite(fetched.logprobs).all():
            self._end_sick(tenants, fetched)
        rows, fetched = self._lanes.still(tenants, fetched)
        if not len(rows):
            return
        self.counts.sampled_tokens += len(rows)
        ended = self._lanes.accept(rows, fetched)
        for index in self._lanes.listeners(rows):
            self._tell(index)
        for index, reason in ended:
            if self._lanes.is_open(index):
                self._finish(index, reason)

    def _end_sick(self, tenants: RowSnapshot, drawn: SampledTokens) -> None:
        """Ends the jobs whose weights gave NaN; the others of the batch go on."""
        rows, drawn = self._lanes.still(tenants, drawn)
        for index in rows[~np.isfinite(drawn.logprobs)].tolist():
            if self._lanes.is_open(index):
                self.end(self._lanes[index].job, NotFiniteError())

    def _tell(self, index: int) -> None:
        """A listener that fails has spoiled its own request, not the others'."""
        if not self._lanes.is_open(index):
            return
        lane = self._lanes[index]
        assert lane.job.request.on_token is not None
        try:
            lane.job.request.on_token(lane.sample, *self._lanes.last_token(index))
        except Exception as error:  # noqa: BLE001 - handed on: it becomes the request's result
            self.end(lane.job, error)

    def _finish(self, index: int, reason: StopReason) -> None:
        self._stale = True
        sequence, cached = self._lanes.sequence(index, reason), self._lanes.cached(index)
        lane = self._lanes.close(index)
        job = lane.job
        job.sequences[lane.sample] = sequence
        if self._ledger.is_dropped(job.policy):
            self._admission.give_back([lane.slot], lane.entry)
        else:
            self._admission.keep(lane.entry or CachedSlot(job.policy.id, lane.slot, cached), cached)
        if job.complete:
            self._resolve(job)

    def _resolve(self, job: SampleJob) -> None:
        if self._settle(job) and job.future.set_running_or_notify_cancel():
            job.future.set_result(job.result())

    def _wipe(self, slots: Sequence[KvSlot], entry: CachedSlot | None) -> None:
        """Gives back slots of what was not finished, as if nothing had been in them."""
        self._stale = True
        for slot in slots:
            self._runner.wipe(slot)
        self._admission.give_back(slots, entry)

    def _settle(self, job: SampleJob) -> bool:
        """The job owes nothing any more; False if that was so before."""
        if job.settled:
            return False
        job.settled = True
        if self._ledger.settle(job):
            self._runner.unmerge(job.policy)
        return True
