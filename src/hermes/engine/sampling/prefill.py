"""Chunked prefill: a step computes a bounded amount of prompts, so that others do not wait for a long one.

The oldest prompt has at least half of every step; shorter ones that came later share the rest, the shortest
first, then the others in order of arrival. A step is bounded by its cost: a token far into a prompt attends
to more positions, and on a CPU costs several times as much as one at the beginning. It is also bounded by its
time, which is what counts on a busy machine, except for a prompt that is alone and fits into one step: that
is always computed as one chunk, so that the same requests one after the other give the same bits.

With `gather`, prompts wait for each other while sequences are running: the next step is due once as much time
has passed as the last one took, or enough prompts wait to fill it. A GPU computes ten short prompts together
in the time of one, and a group of rollouts arrives request by request.

A step reports which prompts are complete and which jobs failed; the scheduler starts the former and ends the
latter. Chunks that do not fit into memory together are computed one by one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from hermes.engine.lora.weights import Policy
from hermes.engine.memory import capacity_error, is_out_of_memory
from hermes.engine.sampling.admission import PrefillPrompt
from hermes.engine.sampling.request import SampleJob
from hermes.engine.sampling.runner import ModelRunner, PrefillChunk
from hermes.engine.types import NotFiniteError

_MIN_TOKENS = 32.0
"""The least that a step computes, in first tokens: less would read the weights for too little."""


@dataclass(slots=True)
class PrefillStep:
    ready: list[tuple[PrefillPrompt, Tensor]] = field(default_factory=list)
    """Complete prompts, with the hidden state [1, hidden] of their last token."""
    failed: dict[SampleJob, BaseException] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """How much of the prompts one step computes."""

    tokens: int
    """At the beginning of a prompt."""
    position_cost: float = 0.0
    """The cost of attending to one more position, in units of the cost of a first token."""
    seconds: float | None = None
    """The time of one step; None: not bounded by time."""
    gather: bool = False
    """Prompts wait for each other while sequences are running."""

    def cost(self, offset: int, tokens: int) -> float:
        """The cost of a chunk, in first tokens."""
        return tokens * (1.0 + self.position_cost * (offset + tokens / 2))

    def fitting_tokens(self, offset: int, budget: float) -> int:
        """How many tokens from `offset` on the budget pays for; at least 1."""
        base, slope = 1.0 + self.position_cost * offset, self.position_cost
        if slope * budget < 1e-6:
            return max(1, int(budget / base))
        return max(1, int((math.sqrt(base * base + 2 * slope * budget) - base) / slope))


class Prefill:
    def __init__(
        self,
        runner: ModelRunner,
        limits: PrefillLimits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._runner = runner
        self._limits = limits
        self._clock = clock
        self._timed_budget = float(limits.tokens)
        """The tokens that a step may compute so that it takes about as long as it may."""
        self._due_s = 0.0
        """When prompts have waited long enough for each other."""
        self.prompts: list[PrefillPrompt] = []

    @property
    def samples(self) -> int:
        """How many samples wait for their prompts."""
        return sum(len(prompt.samples) for prompt in self.prompts)

    def remove(self, job: SampleJob) -> list[PrefillPrompt]:
        """Removes the job's prompts and returns them."""
        removed = [prompt for prompt in self.prompts if prompt.job is job]
        self.prompts = [prompt for prompt in self.prompts if prompt.job is not job]
        return removed

    def is_due(self, *, running: bool) -> bool:
        """Whether the next step is to be computed now; `running`: sequences are running."""
        if not self.prompts or not self._limits.gather or not running or self._clock() >= self._due_s:
            return bool(self.prompts)
        costs = (self._limits.cost(prompt.done, prompt.left) for prompt in self.prompts)
        return sum(costs) >= self._limits.tokens

    def step(self, order: Callable[[Policy], int], *, others_wait: bool) -> PrefillStep:
        """Computes the next chunks; `order` sorts those of one policy together.

        `others_wait`: sequences are running, or requests wait for a slot.
        """
        limits, oldest = self._limits, self.prompts[0]
        alone = not others_wait and len(self.prompts) == 1
        whole = alone and limits.cost(oldest.done, oldest.left) <= limits.tokens
        budget = float(limits.tokens) if whole else self._timed_budget
        chosen = self._choose(budget)
        chosen.sort(key=lambda pair: order(pair[0].job.policy))
        step = PrefillStep()
        started_s = self._clock()
        hidden_states = self._compute(chosen, step)
        ended_s = self._clock()
        self._adapt(budget, ended_s - started_s)
        self._due_s = ended_s + (ended_s - started_s)
        for (prompt, chunk), hidden in zip(chosen, hidden_states, strict=True):
            if hidden is None or not self._score(prompt, chunk, hidden, step):
                continue
            prompt.entry.ready += len(chunk.tokens)
            if prompt.done == len(prompt.job.prompt):
                step.ready.append((prompt, hidden[-1:]))
        step.ready = [(prompt, hidden) for prompt, hidden in step.ready if prompt.job not in step.failed]
        done = [prompt for prompt, _ in step.ready]
        self.prompts = [prompt for prompt in self.prompts if prompt not in done]
        return step

    def _choose(self, budget: float) -> list[tuple[PrefillPrompt, PrefillChunk]]:
        oldest = self.prompts[0]
        shorter = sorted(
            (prompt for prompt in self.prompts[1:] if prompt.left < oldest.left),
            key=lambda prompt: prompt.left,
        )
        rest = [prompt for prompt in self.prompts[1:] if prompt.left >= oldest.left]
        cost_of_shorter = sum(self._limits.cost(prompt.done, prompt.left) for prompt in shorter)
        reserved = budget - min(budget / 2, cost_of_shorter)
        chosen: list[tuple[PrefillPrompt, PrefillChunk]] = []
        for prompt in (oldest, *shorter, *rest):
            allowed = min(budget, reserved) if prompt is oldest else budget
            if allowed < 1:
                break
            size = min(self._limits.fitting_tokens(prompt.done, allowed), prompt.left)
            budget -= self._limits.cost(prompt.done, size)
            chosen.append((prompt, prompt.chunk(size)))
        return chosen

    def _adapt(self, budget: float, seconds: float) -> None:
        """Makes the next step take about as long as it may, after one of this budget took `seconds`."""
        if self._limits.seconds is None or seconds <= 0:
            return
        scaled = budget * min(2.0, self._limits.seconds / seconds)
        self._timed_budget = max(_MIN_TOKENS, min(float(self._limits.tokens), scaled))

    def _compute(
        self, chosen: list[tuple[PrefillPrompt, PrefillChunk]], step: PrefillStep
    ) -> list[Tensor | None]:
        """Hidden states of each chunk; None for one that does not fit into memory even by itself."""
        try:
            return list(self._runner.prefill([chunk for _, chunk in chosen]))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(chosen) == 1:
                step.failed.setdefault(chosen[0][0].job, capacity_error(error, "the prompt"))
                return [None]
        return [hidden for pair in chosen for hidden in self._compute([pair], step)]

    def _score(self, prompt: PrefillPrompt, chunk: PrefillChunk, hidden: Tensor, step: PrefillStep) -> bool:
        """Adds the prompt logprobs that were requested; False if the job has failed."""
        job = prompt.job
        if job in step.failed:
            return False
        if job.scores is None or prompt.samples[0] != 0 or not chunk.outputs:
            return True
        position = chunk.offset + len(chunk.tokens) - chunk.outputs
        try:
            job.scores.add(position, hidden, lambda rows: self._runner.logits(job.policy, rows))
        except NotFiniteError as error:
            step.failed[job] = error
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            step.failed[job] = capacity_error(error, "the prompt's logprobs")
        return job not in step.failed
