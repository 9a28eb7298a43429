"""Prompts on their way into the cache: a bounded number of their tokens at a time, first come first.

A turn tells which prompts are complete and which jobs it spoiled; starting the former and ending the latter
is the sampler's. Prompts that do not fit into memory together are computed one by one.
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
class Turn:
    ready: list[tuple[PrefillPrompt, Tensor]] = field(default_factory=list)
    """Complete prompts, with the hidden state [1, hidden] of their last token."""
    spoiled: dict[SampleJob, BaseException] = field(default_factory=dict)


class Prefill:
    def __init__(self, runner: ModelRunner, budget_tokens: int) -> None:
        self._runner = runner
        self._budget_tokens = budget_tokens
        self.prompts: list[PrefillPrompt] = []

    @property
    def samples(self) -> int:
        """How many wait for their prompts."""
        return sum(len(prompt.samples) for prompt in self.prompts)

    def take_out(self, job: SampleJob) -> list[PrefillPrompt]:
        """The job's prompts, which are no longer under way."""
        mine = [prompt for prompt in self.prompts if prompt.job is job]
        self.prompts = [prompt for prompt in self.prompts if prompt.job is not job]
        return mine

    def turn(self, order: Callable[[Policy], int]) -> Turn:
        """The next tokens of the prompts that came first; those of one policy lie together by `order`."""
        chosen: list[tuple[PrefillPrompt, PrefillChunk]] = []
        budget = self._budget_tokens
        for prompt in self.prompts:
            if budget <= 0:
                break
            size = min(budget, len(prompt.job.prompt) - prompt.done)
            budget -= size
            chosen.append((prompt, prompt.piece(size)))
        chosen.sort(key=lambda one: order(one[0].job.policy))
        turn = Turn()
        for (prompt, piece), hidden in zip(chosen, self._compute(chosen, turn), strict=True):
            if hidden is None or not self._score(prompt, piece, hidden, turn):
                continue
            prompt.entry.ready += len(piece.tokens)
            if prompt.done == len(prompt.job.prompt):
                turn.ready.append((prompt, hidden[-1:]))
        turn.ready = [(prompt, hidden) for prompt, hidden in turn.ready if prompt.job not in turn.spoiled]
        done = [prompt for prompt, _ in turn.ready]
        self.prompts = [prompt for prompt in self.prompts if prompt not in done]
        return turn

    def _compute(self, chosen: list[tuple[PrefillPrompt, PrefillChunk]], turn: Turn) -> list[Tensor | None]:
        """Hidden states of each piece. If they do not fit together they go alone; who does not is out."""
        try:
            return list(self._runner.prefill([piece for _, piece in chosen]))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(chosen) == 1:
                turn.spoiled.setdefault(chosen[0][0].job, capacity_error(error, "the prompt"))
                return [None]
        return [hidden for one in chosen for hidden in self._compute([one], turn)]

    def _score(self, prompt: PrefillPrompt, piece: PrefillChunk, hidden: Tensor, turn: Turn) -> bool:
        """Gathers what was asked about the prompt itself; False if that spoiled the job."""
        job = prompt.job
        if job in turn.spoiled:
            return False
        if job.scores is None or prompt.samples[0] != 0 or not piece.wanted:
            return True
        at = piece.offset + len(piece.tokens) - piece.wanted
        try:
            job.scores.add(at, hidden, lambda rows: self._runner.logits(job.policy, rows))
        except NotFiniteError as error:
            turn.spoiled[job] = error
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            turn.spoiled[job] = capacity_error(error, "the prompt's logprobs")
        return job not in turn.spoiled
