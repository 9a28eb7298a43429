"""Admission control: decides which samples start, allocates their slots and reuses cached prefixes.

Requests are admitted in order, sample by sample, once a slot for the whole sample is free; finished sequences
in the cache are evicted for it. A prompt starts from its longest cached prefix. If that prefix is still being
computed, the prompt waits for it rather than computing it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hermes.engine.attention.kv_cache import KvSlot, SlotAllocator
from hermes.engine.sampling.prefix_cache import CachedSlot, PrefixIndex, PrefixMatch
from hermes.engine.sampling.request import SampleJob
from hermes.engine.sampling.runner import ModelRunner, PrefillChunk
from hermes.engine.types import Ints


@dataclass(slots=True, eq=False)
class PrefillPrompt:
    """A prompt that is being computed, for the samples that start with it."""

    job: SampleJob
    samples: list[int]
    slots: list[KvSlot]
    entry: CachedSlot
    first: int
    """The first position whose hidden state is needed."""

    @property
    def done(self) -> int:
        return self.entry.ready

    @property
    def left(self) -> int:
        """Tokens that are not computed yet."""
        return len(self.job.prompt) - self.done

    def chunk(self, size: int) -> PrefillChunk:
        """The next `size` tokens to compute."""
        job, start = self.job, self.done
        end = start + size
        outputs = max(0, end - max(start, self.first))
        if end == len(job.prompt):
            outputs = max(outputs, 1)
        return PrefillChunk(job.policy, self.slots[0].start, start, job.prompt[start:end], outputs)


class Admission:
    """Owns the slots of the pool and the index of what they hold."""

    def __init__(self, runner: ModelRunner, kv_tokens: int) -> None:
        self.jobs: deque[SampleJob] = deque()
        """Jobs with samples that have not started, in order of arrival."""
        self._runner = runner
        self._slots = SlotAllocator(kv_tokens)
        self._index = PrefixIndex()

    @property
    def kv_tokens_used(self) -> int:
        return self._slots.used

    def admit(self, room: int) -> Iterator[PrefillPrompt]:
        """The prompts that can start now, for at most `room` samples."""
        waiting: list[SampleJob] = []
        while self.jobs and room:
            job = self.jobs[0]
            if job.awaited is not None and job.awaited.is_pending:  # cheaper than to look it up each step
                waiting.append(self.jobs.popleft())
                continue
            match = self._index.find(job.policy.id, job.prompt, job.first)
            if match is not None and match.tokens > match.entry.ready:
                job.awaited = match
                waiting.append(self.jobs.popleft())
                continue
            prompt = self._start(job, match, room)
            if prompt is None and match is not None:  # the matched entry may be what occupies the memory
                prompt = self._start(job, None, room, rematch=True)
            if prompt is None:
                break
            if job.started == job.request.num_samples:
                self.jobs.popleft()
            room -= len(prompt.samples)
            yield prompt
        self.jobs.extendleft(reversed(waiting))

    def cache(self, entry: CachedSlot, tokens: Ints) -> None:
        """Keeps the slot of a finished sequence, which holds `tokens`, until its memory is needed."""
        self._index.finish(entry, tokens)

    def free(self, slots: Sequence[KvSlot], entry: CachedSlot | None) -> None:
        """Frees slots whose contents are not reused; `entry` is the index entry of the first one."""
        if entry is not None:
            self._index.remove(entry)
        for slot in slots:
            self._slots.free(slot)

    def drop_policy(self, policy_id: str | None) -> None:
        """Frees the policy's finished sequences."""
        for entry in self._index.finished_of(policy_id):
            self.free([entry.slot], entry)

    def _start(
        self, job: SampleJob, match: PrefixMatch | None, room: int, *, rematch: bool = False
    ) -> PrefillPrompt | None:
        """Allocates slots for as many of the job's samples as fit; None if not even one does.

        `rematch`: what is in the cache after that is matched again. A sequence that runs may have the same
        prefix as the entry that was evicted.
        """
        slots: list[KvSlot] = []
        samples_left = job.request.num_samples - job.started if job.limit else 1
        while len(slots) < min(samples_left, room):
            slot = self._allocate(job.slot_size, match)
            if slot is None:
                break
            slots.append(slot)
        if not slots:
            return None
        entry = CachedSlot(job.policy.id, slots[0], job.prompt)
        if rematch:
            match = self._index.find(job.policy.id, job.prompt, job.first)
        if match is not None:
            entry.ready = min(match.tokens, match.entry.ready)
            self._runner.copy(match.entry.slot.start, [slots[0].start], entry.ready)
            self._index.touch(match.entry)
        self._index.add(entry)
        samples = list(range(job.started, job.started + len(slots)))
        prompt = PrefillPrompt(job, samples, slots, entry, job.first)
        job.started = job.started + len(slots) if job.limit else job.request.num_samples
        return prompt

    def _allocate(self, size: int, match: PrefixMatch | None) -> KvSlot | None:
        """A slot, for which cached sequences other than the matched one are evicted if necessary."""
        slot = self._slots.allocate(size)
        while slot is None:
            evicted = self._index.evict(match.entry if match else None)
            if evicted is None:
                return None
            self._slots.free(evicted.slot)
            slot = self._slots.allocate(size)
        return slot
