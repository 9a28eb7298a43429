"""Prompts share the prefill: a short one does not wait for a long one, nor a long one for short ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hermes.engine.sampling.prefill import Prefill, PrefillLimits
from hermes.engine.sampling.request import SampleJob
from hermes.engine.sampling.runner import PrefillChunk
from tests.engine.sampling_parts import Bench, prompt


def steps_until_done(bench: Bench, job: SampleJob, limit: int = 200) -> int:
    for number in range(1, limit):
        bench.sampler.step()
        if job.future.done():
            return number
    raise AssertionError(f"not done after {limit} steps")


def test_a_short_request_is_answered_while_a_long_prompt_is_computed() -> None:
    bench = Bench(prefill_tokens=16)
    long = bench.ask(prompt(240), max_tokens=1, temperature=0.0)
    bench.sampler.step()
    short = bench.ask(prompt(8, seed=1), max_tokens=3)
    assert steps_until_done(bench, short) <= 4
    assert not long.future.done()
    alone = Bench(prefill_tokens=16).sample(prompt(240), max_tokens=1, temperature=0.0)
    (shared,) = bench.run(long)
    assert shared.sequences[0].tokens.tolist() == alone.sequences[0].tokens.tolist()


def test_short_requests_that_keep_coming_do_not_hold_up_a_long_one() -> None:
    bench = Bench(prefill_tokens=16)
    long = bench.ask(prompt(240), max_tokens=1)
    for number in range(240 // 8 + 1):
        for offset in range(3):
            bench.ask(prompt(12, seed=3 * number + offset), max_tokens=1)
        bench.sampler.step()
    assert long.future.done(), "it has half of every step"


def test_prompts_of_one_length_are_computed_in_order() -> None:
    bench = Bench(prefill_tokens=16)
    jobs = [bench.ask(prompt(24, seed=seed), max_tokens=1) for seed in range(4)]
    done: list[SampleJob] = []
    while bench.sampler.busy:
        bench.sampler.step()
        done += [job for job in jobs if job.future.done() and job not in done]
    assert done == jobs


@given(
    st.integers(1, 4096),
    st.floats(0, 0.01),
    st.integers(0, 10_000),
    st.floats(1, 5_000),
)
def test_a_chunk_costs_no_more_than_its_budget(
    tokens: int, position_cost: float, offset: int, budget: float
) -> None:
    limits = PrefillLimits(tokens, position_cost)
    size = limits.fitting_tokens(offset, budget)
    assert size == 1 or limits.cost(offset, size) <= budget * 1.001
    assert limits.cost(offset, size + 2) >= budget * 0.999


@pytest.mark.parametrize("seconds_a_step", [0.1, 50.0])
def test_a_step_is_bounded_by_its_time(seconds_a_step: float) -> None:
    """The clock says how long each step took: twenty times as long as it may, or a part of it."""
    bench = Bench(prefill_tokens=64)
    ticks = itertools.count(0.0, seconds_a_step)
    bench.sampler._prefill = prefill = Prefill(
        bench.runner, PrefillLimits(64, seconds=2.5), clock=lambda: next(ticks)
    )
    bench.ask(prompt(200), max_tokens=1)
    bench.ask(prompt(220, seed=1), max_tokens=1)
    sizes = []
    while prefill.prompts or not sizes:
        before = {id(waiting): waiting.done for waiting in prefill.prompts}
        bench.sampler.step()
        sizes.append(sum(waiting.done - before.get(id(waiting), 0) for waiting in prefill.prompts))
    assert sizes[0] == 64
    assert (min(size for size in sizes[1:3]) == 32) is (seconds_a_step > 2.5)


@pytest.mark.parametrize("seconds_a_step", [0.1, 50.0])
def test_a_prompt_that_is_alone_and_fits_into_a_step_is_one_chunk_however_slow_the_machine(
    seconds_a_step: float,
) -> None:
    bench = Bench(prefill_tokens=64)
    ticks = itertools.count(0.0, seconds_a_step)
    bench.sampler._prefill = prefill = Prefill(
        bench.runner, PrefillLimits(64, seconds=2.5), clock=lambda: next(ticks)
    )
    for seed in range(3):
        bench.ask(prompt(60, seed=seed), max_tokens=1)
        bench.sampler.step()
        assert not prefill.prompts
        bench.run()


class GatheringBench(Bench):
    """Prompts wait for each other; computing some takes five times as long as a decode step."""

    def __init__(self, tokens: int) -> None:
        super().__init__(prefill_tokens=tokens)
        self.now_s, self.passes = 0.0, list[int]()
        compute = self.runner.prefill

        def prefill(chunks: Sequence[PrefillChunk]) -> Sequence[Tensor]:
            self.now_s += 5
            self.passes.append(len(chunks))
            return compute(chunks)

        self.runner.prefill = prefill  # type: ignore[method-assign]
        limits = PrefillLimits(tokens, gather=True)
        self.sampler._prefill = Prefill(self.runner, limits, clock=lambda: self.now_s)

    def step(self) -> None:
        self.sampler.step()
        self.now_s += 1


def test_prompts_that_arrive_one_by_one_are_computed_together() -> None:
    bench = GatheringBench(tokens=512)
    running = bench.ask(prompt(40), max_tokens=60)
    bench.step()
    jobs = []
    for seed in range(1, 13):
        jobs.append(bench.ask(prompt(20, seed=seed), max_tokens=2, temperature=0.0))
        bench.step()
    while not all(job.future.done() for job in jobs):
        bench.step()
    assert not running.future.done(), "it went on meanwhile"
    assert sum(bench.passes) == 13
    assert len(bench.passes) <= 1 + 12 // 4
    for seed, result in enumerate(bench.run(*jobs), 1):
        alone = Bench().sample(prompt(20, seed=seed), max_tokens=2, temperature=0.0)
        assert result.sequences[0].tokens.tolist() == alone.sequences[0].tokens.tolist()


def test_a_prompt_waits_no_longer_than_the_last_ones_took() -> None:
    bench = GatheringBench(tokens=512)
    bench.ask(prompt(40), max_tokens=60)
    bench.step()
    job = bench.ask(prompt(20, seed=1), max_tokens=1)
    assert steps_until_done_by(bench, job) <= 6


def test_prompts_that_fill_a_step_do_not_wait() -> None:
    bench = GatheringBench(tokens=64)
    bench.ask(prompt(40), max_tokens=60)
    bench.step()
    jobs = [bench.ask(prompt(32, seed=seed), max_tokens=1) for seed in (1, 2)]
    bench.step()
    bench.step()
    assert all(job.future.done() for job in jobs)


def steps_until_done_by(bench: GatheringBench, job: SampleJob) -> int:
    for number in range(1, 50):
        bench.step()
        if job.future.done():
            return number
    raise AssertionError("not done after 50 steps")


@pytest.mark.parametrize("seed", range(3))
def test_gathered_prompts_give_the_samples_of_prompts_alone(seed: int) -> None:
    """Requests of drawn sizes, many with a common beginning, at drawn moments; some are cancelled."""
    draw = random.Random(seed)
    bench, plain = GatheringBench(tokens=draw.choice([32, 128])), Bench()
    common = prompt(48, seed=99)
    asked = []
    for number in range(40):
        own = prompt(draw.randint(1, 60), seed=number)
        tokens = [*common, *own][: draw.randint(20, 100)] if draw.random() < 0.6 else own
        fields: dict[str, Any] = {"max_tokens": draw.randint(1, 8), "temperature": 0.0}
        asked.append((bench.ask(tokens, **fields), tokens, fields))
        if draw.random() < 0.1:
            asked.pop()[0].future.cancel()
        for _ in range(draw.randint(0, 3)):
            bench.step()
    for job, tokens, fields in asked:
        (result,) = bench.run(job)
        alone = plain.sample(tokens, **fields)
        assert result.sequences[0].tokens.tolist() == alone.sequences[0].tokens.tolist(), f"seed {seed}"
