"""Chunked prefill: computes a bounded number of prompt tokens at a time, in order of arrival.

A step reports which prompts are complete and which jobs failed; the scheduler starts the former and ends the
latter. Chunks that do not fit into memory together are computed one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from hermes.engine.lora.policy import Policy
from hermes.engine.memory import capacity_error, is_out_of_memory
from hermes.engine.sampling.admission import PrefillPrompt
from hermes.engine.sampling.request import SampleJob
from hermes.engine.sampling.runner import ModelRunner, PrefillChunk
from hermes.engine.types import NotFiniteError


@dataclass(slots=True)
class PrefillStep:
    ready: list[tuple[PrefillPrompt, Tensor]] = field(default_factory=list)
    """Complete prompts, with the hidden state [1, hidden] of their last token."""
    failed: dict[SampleJob, BaseException] = field(default_factory=dict)


class Prefill:
    def __init__(self, runner: ModelRunner, budget_tokens: int) -> None:
        self._runner = runner
        self._budget_tokens = budget_tokens
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

    def step(self, order: Callable[[Policy], int]) -> PrefillStep:
        """Computes the next chunks of the oldest prompts; `order` sorts those of one policy together."""
        chosen: list[tuple[PrefillPrompt, PrefillChunk]] = []
        budget = self._budget_tokens
        for prompt in self.prompts:
            if budget <= 0:
                break
            size = min(budget, len(prompt.job.prompt) - prompt.done)
            budget -= size
            chosen.append((prompt, prompt.chunk(size)))
        chosen.sort(key=lambda pair: order(pair[0].job.policy))
        step = PrefillStep()
        for (prompt, chunk), hidden in zip(chosen, self._compute(chosen, step), strict=True):
            if hidden is None or not self._score(prompt, chunk, hidden, step):
                continue
            prompt.entry.ready += len(chunk.tokens)
            if prompt.done == len(prompt.job.prompt):
                step.ready.append((prompt, hidden[-1:]))
        step.ready = [(prompt, hidden) for prompt, hidden in step.ready if prompt.job not in step.failed]
        done = [prompt for prompt, _ in step.ready]
        self.prompts = [prompt for prompt in self.prompts if prompt not in done]
        return step

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
