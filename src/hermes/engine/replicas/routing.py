"""Which worker samples a request: the one with the least work, where a cached prefix counts as work saved.

A worker's work is counted in decoded tokens. What its prefix cache holds is not asked but remembered: the
blocks of the prompts that were sent to it last. A wrong guess costs time, never correctness. Not thread-
safe.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from hermes.engine.types import Ints

BLOCK_TOKENS = 32
PREFILL_WEIGHT = 0.2
"""A prompt's token against a decoded one: prompts are computed many tokens at once."""
ASSUMED_TOKENS = 256
"""Of an answer whose request sets no limit."""
_MAX_BLOCKS = 65_536
"""Remembered for one worker."""


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    worker: int
    work: float
    """Decoded tokens, about."""


@dataclass(slots=True)
class _WorkerLoad:
    outstanding: float = 0.0
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Hashes of prefixes, least recently used first."""


class PrefixRouter:
    def __init__(self, workers: int) -> None:
        self._loads = [_WorkerLoad() for _ in range(workers)]

    def route(
        self,
        policy_id: str | None,
        prompt: Ints,
        samples: int,
        max_tokens: int | None,
        available: Iterable[int],
    ) -> RoutedRequest:
        """The worker for a request, whose work counts until `finish`. `available` must not be empty."""
        blocks = _prefix_hashes(policy_id, prompt)
        answers = samples * (ASSUMED_TOKENS if max_tokens is None else max_tokens)
        costs: dict[int, tuple[float, int]] = {}
        for worker in available:
            cached = self._cached_blocks(worker, blocks) * BLOCK_TOKENS
            work = answers + PREFILL_WEIGHT * (len(prompt) - cached)
            costs[worker] = (self._loads[worker].outstanding + work, worker)
        chosen = min(costs, key=lambda worker: costs[worker])
        load = self._loads[chosen]
        work = costs[chosen][0] - load.outstanding
        load.outstanding += work
        for block in blocks:
            load.blocks[block] = None
            load.blocks.move_to_end(block)
        while len(load.blocks) > _MAX_BLOCKS:
            load.blocks.popitem(last=False)
        return RoutedRequest(chosen, work)

    def finish(self, routed: RoutedRequest) -> None:
        load = self._loads[routed.worker]
        load.outstanding = max(0.0, load.outstanding - routed.work)

    def reset(self, worker: int) -> None:
        """The worker was started again: it has nothing to do and nothing cached."""
        self._loads[worker] = _WorkerLoad()

    def _cached_blocks(self, worker: int, blocks: list[int]) -> int:
        known = self._loads[worker].blocks
        count = 0
        for block in blocks:
            if block not in known:
                break
            count += 1
        return count


def _prefix_hashes(policy_id: str | None, prompt: Ints) -> list[int]:
    """Of the prompt's whole blocks, each with everything before it."""
    hashes: list[int] = []
    last = hash(policy_id)
    for start in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        last = hash((last, prompt[start : start + BLOCK_TOKENS].tobytes()))
        hashes.append(last)
    return hashes
