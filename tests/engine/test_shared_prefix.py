"""Sequences with a shared prefix: it is read once per step, and they sample the same tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hermes.engine.attention.kv_decode import SharedPrefix, shared_prefixes
from hermes.engine.sampling.runner import TorchRunner
from tests.engine.sampling_parts import Bench, prompt, same


class Watched(TorchRunner):
    """Remembers every shared prefix it has run with, and how many calls a batch of so many rows took."""

    seen: set[tuple[int, int]]
    calls: set[tuple[int, int]]

    def load(self, batch: Any) -> None:
        super().load(batch)
        self.seen = getattr(self, "seen", set()) | {
            (run.prefix.last - run.prefix.first, run.prefix.tokens) for run in self._runs
        }
        self.calls = getattr(self, "calls", set()) | {(len(batch.tokens), len(self._runs))}


def watched(family: str = "llama") -> tuple[Bench, Watched]:
    bench = Bench(family, runner=Watched, kv_tokens=8192)
    assert isinstance(bench.runner, Watched)
    return bench, bench.runner


def wishes(head: int, seeds: range, **more: Any) -> list[dict[str, Any]]:
    """Requests whose prompts have `head` tokens in common, and lengths of their own."""
    return [
        {
            "prompt": np.concatenate([prompt(head, 77), prompt(3 + 11 * (n % 4), n)]),
            "seed": n,
            "max_tokens": 6 + 7 * (n % 3),
            **more,
        }
        for n in seeds
    ]


def test_rows_that_begin_alike_draw_what_each_draws_alone() -> None:
    bench, runner = watched()
    asked = [*wishes(90, range(6)), *wishes(20, range(10, 13))]
    jobs = [bench.ask(**one) for one in asked]
    for one, result in zip(asked, bench.run(*jobs), strict=True):
        assert same(Bench().sample(**one).sequences[0], result.sequences[0])
    assert any(rows == 6 and tokens >= 90 for rows, tokens in runner.seen), runner.seen


def test_a_group_reads_its_whole_prompt_once() -> None:
    bench, runner = watched()
    result = bench.sample(prompt(100), num_samples=8, max_tokens=10, seed=1)
    assert (8, 100) in runner.seen
    alone = Bench().sample(prompt(100), num_samples=1, max_tokens=10, seed=1)
    assert same(alone.sequences[0], result.sequences[0])


def test_a_beginning_under_other_weights_is_another_one() -> None:
    bench, runner = watched()
    policies = [bench.policy(f"p{n}", seed=n) for n in range(2)]
    asked = [(one, policies[n % 2]) for n, one in enumerate(wishes(90, range(8)))]
    jobs = [bench.ask(policy=policy, **one) for one, policy in asked]
    for (one, policy), result in zip(asked, bench.run(*jobs), strict=True):
        assert same(Bench().sample(policy=policy, **one).sequences[0], result.sequences[0])
    shared = {rows for rows, tokens in runner.seen if tokens}
    assert shared and max(shared) <= 4 and any(tokens >= 90 for _, tokens in runner.seen)


@pytest.mark.parametrize("family", ["mistral", "mistral-window", "gemma3"])
def test_windows_are_honoured(family: str) -> None:
    bench, runner = watched(family)
    asked = wishes(90, range(6))
    for one, result in zip(asked, bench.run(*(bench.ask(**one) for one in asked)), strict=True):
        assert same(Bench(family).sample(**one).sequences[0], result.sequences[0])
    if any(window is not None for window in bench.backbone.spec.windows):
        assert all(tokens == 0 for _, tokens in runner.seen)


def test_shared_prefixes_partition_the_rows_of_one_policy_in_order() -> None:
    spec = Bench().backbone.spec
    a, b = prompt(100, 1), prompt(100, 2)
    prompts = [a, a[:80], np.concatenate([a[:70], b]), a, b, b, b, b, a, a]
    slot_starts = np.arange(10) * 128
    assert shared_prefixes(spec, [8, 2], slot_starts, prompts) == (
        SharedPrefix(0, 4, 0, 70),
        SharedPrefix(4, 8, 512, 100),
        SharedPrefix(8, 10, 1024, 0),
    )


def test_neighbours_with_nothing_in_common_are_read_in_one_call() -> None:
    spec = Bench().backbone.spec
    a = prompt(100, 1)
    prompts = [prompt(40, 5), prompt(90, 6), a, a, a, a, prompt(90, 7), a]
    assert shared_prefixes(spec, [7, 1], np.arange(8) * 128, prompts) == (
        SharedPrefix(0, 2, 0, 0),
        SharedPrefix(2, 6, 256, 100),
        SharedPrefix(6, 8, 768, 0),
    )
    bench, runner = watched()
    asked: list[dict[str, Any]] = [{"prompt": prompt(30, n), "seed": n, "max_tokens": 8} for n in range(9)]
    for one, result in zip(asked, bench.run(*(bench.ask(**one) for one in asked)), strict=True):
        assert same(Bench().sample(**one).sequences[0], result.sequences[0])
    assert (9, 0) in runner.seen  # rows come and go one by one
    assert {calls for rows, calls in runner.calls if rows == 9} == {1}, "their slots lie side by side"
