"""Which samples may start: memory for the whole of each, and what the cache has of its prompt already.

Requests are admitted in their order, sample by sample, once a slot for the whole of a sample is free;
finished sequences that are kept for reuse give way. A prompt starts from the longest beginning that the cache
has of it. If that is being computed just now, the prompt waits for it rather than computing it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hermes.engine.attention.kv_cache import KvSlot, SlotAllocator
from hermes.engine.sampling.prefix_cache import CachedSlot, Match, PrefixIndex
from hermes.engine.sampling.request import SampleJob
from hermes.engine.sampling.runner import ModelRunner, PrefillChunk
from hermes.engine.types import Ints


@dataclass(slots=True, eq=False)
class PrefillPrompt:
    """A prompt on its way into the cache, for the samples that start with it."""

    job: SampleJob
    samples: list[int]
    slots: list[KvSlot]
    entry: CachedSlot
    first: int
    """Hidden states are wanted from this position on."""

    @property
    def done(self) -> int:
        return self.entry.ready

    def piece(self, size: int) -> PrefillChunk:
        """The next `size` tokens to compute."""
        job, start = self.job, self.done
        end = start + size
        wanted = max(0, end - max(start, self.first))
        if end == len(job.prompt):
            wanted = max(wanted, 1)
        return PrefillChunk(job.policy, self.slots[0].start, start, job.prompt[start:end], wanted)


class Admission:
    """Owns the slots, and knows what lies in them."""

    def __init__(self, runner: ModelRunner, cells: int) -> None:
        self.jobs: deque[SampleJob] = deque()
        """Those with samples that have not started, first come first."""
        self._runner = runner
        self._cells = SlotAllocator(cells)
        self._index = PrefixIndex()

    @property
    def cells_used(self) -> int:
        return self._cells.used

    def admit(self, room: int) -> Iterator[PrefillPrompt]:
        """The prompts that can start now, for `room` samples at most."""
        held: list[SampleJob] = []
        while self.jobs and room:
            job = self.jobs[0]
            match = self._index.find(job.policy.id, job.prompt, job.first)
            if match is not None and match.tokens > match.entry.ready:
                held.append(self.jobs.popleft())
                continue
            prompt = self._start(job, match, room)
            if prompt is None and match is not None:  # what it matches may be what takes up the room
                prompt = self._start(job, None, room)
            if prompt is None:
                break
            if job.started == job.request.num_samples:
                self.jobs.popleft()
            room -= len(prompt.samples)
            yield prompt
        self.jobs.extendleft(reversed(held))

    def keep(self, entry: CachedSlot, tokens: Ints) -> None:
        """A slot's sequence is finished and holds `tokens`; it may be of use until its memory is needed."""
        self._index.keep(entry, tokens)

    def give_back(self, slots: Sequence[KvSlot], entry: CachedSlot | None) -> None:
        """Slots that hold nothing of use; the entry that was made for the first."""
        if entry is not None:
            self._index.remove(entry)
        for slot in slots:
            self._cells.give_back(slot)

    def forget_policy(self, policy_id: str | None) -> None:
        for entry in self._index.of_policy(policy_id):
            self.give_back([entry.slot], entry)

    def _start(self, job: SampleJob, match: Match | None, room: int) -> PrefillPrompt | None:
        """Slots for as many of the job's samples as there is room for; None if there is none at all."""
        slots: list[KvSlot] = []
        wanted = job.request.num_samples - job.started if job.limit else 1
        while len(slots) < min(wanted, room):
            slot = self._take(job.cells, match)
            if slot is None:
                break
            slots.append(slot)
        if not slots:
            return None
        entry = CachedSlot(job.policy.id, slots[0], job.prompt)
        if match is not None:
            self._runner.copy(match.entry.slot.start, [slots[0].start], match.tokens)
            self._index.touch(match.entry)
            entry.ready = match.tokens
        self._index.add(entry)
        samples = list(range(job.started, job.started + len(slots)))
        prompt = PrefillPrompt(job, samples, slots, entry, job.first)
        job.started = job.started + len(slots) if job.limit else job.request.num_samples
        return prompt

    def _take(self, size: int, match: Match | None) -> KvSlot | None:
        """A slot, at the cost of finished sequences that are only kept in case they are useful again."""
        slot = self._cells.take(size)
        while slot is None:
            evicted = self._index.evict(match.entry if match else None)
            if evicted is None:
                return None
            self._cells.give_back(evicted.slot)
            slot = self._cells.take(size)
        return slot
