from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pytest
import torch

from hermes.engine.attention.kv_cache import KvPool
from hermes.engine.lora.weights import Policy
from hermes.engine.model.backbone import Backbone
from hermes.engine.sampling.runner import SampledTokens, SampleFuture, TorchRunner
from hermes.engine.types import EngineCapacityError, EngineUserError, SampleResult
from tests.engine.sampling_parts import Bench, count_prefilled, prompt, same


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "yarn", "mistral-window", "gemma3", "phi3"])
def test_sampled_logprobs_are_those_of_one_full_forward_pass(family: str) -> None:
    bench = Bench(family)
    asked = prompt(37)
    result = bench.sample(asked, max_tokens=20, temperature=0.8, num_samples=3)
    for sequence in result.sequences:
        wanted = bench.logprobs(asked, sequence.tokens, temperature=0.8)
        assert np.abs(sequence.logprobs - wanted).max() < 1e-3


def test_greedy_takes_the_likeliest_token_every_time(bench: Bench) -> None:
    asked = prompt(20)
    found = bench.sample(asked, max_tokens=12, temperature=0.0).sequences[0].tokens
    rows = bench.logits([*asked, *found])[len(asked) - 1 : -1]
    assert rows.argmax(-1).tolist() == found.tolist()


def test_requests_that_join_and_leave_a_running_batch_get_what_they_get_alone(bench: Bench) -> None:
    wishes: list[dict[str, Any]] = [
        {"prompt": prompt(5 + 9 * n, n), "max_tokens": 3 + 5 * n, "seed": n, "num_samples": 1 + n % 3}
        for n in range(8)
    ]
    jobs = []
    for wish in wishes:
        jobs.append(bench.ask(**wish))
        bench.sampler.step()
    together = bench.run(*jobs)
    for wish, result in zip(wishes, together, strict=True):
        alone = Bench().sample(**wish)
        assert all(same(a, b) for a, b in zip(alone.sequences, result.sequences, strict=True))


def test_several_adapters_in_one_batch_get_what_each_gets_alone(bench: Bench) -> None:
    policies = [bench.policy(f"p{n}", seed=n, rank=2 + n) for n in range(3)]
    jobs = [
        bench.ask(prompt(30, n), policy, seed=n, max_tokens=15)
        for n, policy in enumerate([*policies, policies[0], policies[2], policies[1]])
    ]
    jobs.append(bench.ask(prompt(30, 99), seed=9, max_tokens=15))
    together = bench.run(*jobs)
    for job, result in zip(jobs, together, strict=True):
        again = Bench().sample(job.prompt, job.policy, seed=job.seed, max_tokens=15)
        assert same(again.sequences[0], result.sequences[0])
    assert len({tuple(result.sequences[0].tokens) for result in together}) == len(jobs)


def test_merged_weights_give_the_tokens_and_logprobs_of_the_adapter(bench: Bench) -> None:
    policy = bench.policy("p", seed=5)
    plain = bench.sample(prompt(40), policy, seed=1, max_tokens=30)
    other = Bench()
    other.runner.merge(policy)
    merged = other.sample(prompt(40), policy, seed=1, max_tokens=30)
    assert same(plain.sequences[0], merged.sequences[0])
    assert not same(bench.sample(prompt(40), seed=1, max_tokens=30).sequences[0], merged.sequences[0])


def test_a_policy_alone_with_much_to_do_is_merged_and_let_go_with_the_policy(bench: Bench) -> None:
    policy = bench.policy("p", seed=5)
    bench.sample(prompt(40), policy, max_tokens=100, num_samples=64)
    assert merged_policies(bench.runner) == [policy]
    bench.sampler.drop_policy(policy)
    assert not merged_policies(bench.runner) and bench.sampler.kv_tokens_used == 0


def test_a_group_computes_its_prompt_once(bench: Bench) -> None:
    counted = count_prefilled(bench)
    bench.sample(prompt(100), num_samples=16, max_tokens=2)
    assert sum(counted) == 100


def test_equal_prompts_of_separate_requests_are_computed_once(bench: Bench) -> None:
    counted = count_prefilled(bench)
    results = bench.run(*(bench.ask(prompt(100), max_tokens=2, seed=n) for n in range(8)))
    assert sum(counted) == 100, "the last token of the others is decoded"
    assert [result.cached_tokens for result in results] == [0] + [99] * 7


def test_what_joins_with_a_cached_prompt_draws_what_it_draws_alone(bench: Bench) -> None:
    shared, longer = prompt(100), np.concatenate([prompt(100), prompt(40, 5)])
    first = bench.ask(shared, max_tokens=20, seed=0)
    for _ in range(5):
        bench.sampler.step()
    scored = {"seed": 4, "prompt_logprobs": True, "prompt_logprobs_last_n": 5}
    wishes: list[dict[str, Any]] = [
        {"prompt": shared, "seed": 1},
        {"prompt": longer, "seed": 2},
        {"prompt": shared, "seed": 3, "num_samples": 3},
        {"prompt": shared, **scored},
    ]
    counted = count_prefilled(bench)
    jobs = [bench.ask(**wish, max_tokens=9) for wish in wishes]
    results = bench.run(first, *jobs)[1:]
    assert sum(counted) == 40 + 6, "what follows the shared part, and what a score needs"
    for wish, result in zip(wishes, results, strict=True):
        alone = Bench().sample(**wish, max_tokens=9)
        assert all(map(same, alone.sequences, result.sequences))


def test_a_prompt_whose_match_is_evicted_starts_from_a_running_sequence_with_the_same_prefix() -> None:
    bench = Bench(kv_tokens=2 * 192)
    shared = prompt(100)
    running = bench.ask(np.concatenate([shared, prompt(9, 1)]), max_tokens=60, seed=0)
    bench.sampler.step()
    finished = bench.ask(np.concatenate([shared, prompt(30, 2)]), max_tokens=20, seed=1)
    while not finished.resolved:
        bench.sampler.step()
    # Its best match is the finished one, whose slot it needs: there is no third.
    wish: dict[str, Any] = {"prompt": np.concatenate([shared, prompt(30, 2), prompt(5, 3)]), "seed": 2}
    (_, result) = bench.run(running, bench.ask(**wish, max_tokens=20))
    assert result.cached_tokens >= len(shared)
    assert all(map(same, Bench().sample(**wish, max_tokens=20).sequences, result.sequences))


def test_a_later_turn_starts_from_what_the_earlier_one_left(bench: Bench) -> None:
    first = bench.sample(prompt(50), max_tokens=20, seed=3)
    said = first.sequences[0].tokens
    turn = np.concatenate([prompt(50), said, prompt(10, 7)])
    second = bench.sample(turn, max_tokens=20, seed=4)
    assert second.cached_tokens == 50 + 20 - 1, "the last sampled token was never computed"
    assert same(second.sequences[0], Bench().sample(turn, max_tokens=20, seed=4).sequences[0])
    counted = count_prefilled(bench)
    other = bench.sample(turn, bench.policy("other", seed=1), max_tokens=1)
    assert other.cached_tokens == 0 and sum(counted) == len(turn), "never across policies"


def test_a_prompt_whose_twin_is_being_computed_waits_for_it() -> None:
    bench = Bench(prefill_tokens=16)
    counted = count_prefilled(bench)
    long = prompt(120)
    bench.run(
        bench.ask(long, max_tokens=1), bench.ask(np.concatenate([long[:100], prompt(20, 5)]), max_tokens=1)
    )
    assert sum(counted) == 120 + 20


def test_little_memory_makes_requests_wait_and_every_one_is_served() -> None:
    bench = Bench(kv_tokens=256)
    jobs = [bench.ask(prompt(40, n), max_tokens=20, seed=n, num_samples=3) for n in range(6)]
    for job, result in zip(jobs, bench.run(*jobs), strict=True):
        alone = Bench().sample(job.prompt, max_tokens=20, seed=job.seed, num_samples=3)
        assert all(same(a, b) for a, b in zip(alone.sequences, result.sequences, strict=True))
    assert bench.sampler.kv_tokens_used <= 256


def test_what_a_prompt_matches_gives_way_if_there_is_no_room_beside_it() -> None:
    bench = Bench(kv_tokens=256)
    bench.sample(prompt(100), max_tokens=20)
    longer = np.concatenate([prompt(100), prompt(50, 3)])
    result = bench.sample(longer, max_tokens=40, seed=2)
    assert result.cached_tokens == 0
    assert same(result.sequences[0], Bench().sample(longer, max_tokens=40, seed=2).sequences[0])


def test_a_request_that_can_never_fit_is_refused_before_it_harms_others() -> None:
    bench = Bench(kv_tokens=256)
    job = bench.ask(prompt(40), max_tokens=20)
    for size in (257, 513):
        with pytest.raises(EngineUserError, match="context limit of 256") as refused:
            bench.ask(prompt(size))
        assert "--kv-gib" in refused.value.hint
    assert len(bench.run(job)[0].sequences[0].tokens) == 20


@pytest.mark.parametrize("max_tokens", [None, 100])
def test_a_sequence_ends_where_the_pool_does(max_tokens: int | None) -> None:
    result = Bench(kv_tokens=250).sample(prompt(200), max_tokens=max_tokens, stop=(), seed=5)
    assert (len(result.sequences[0].tokens), result.sequences[0].stop_reason) == (50, "length")
    roomy = Bench().sample(prompt(200), max_tokens=50, stop=(), seed=5)
    assert same(result.sequences[0], roomy.sequences[0])


def test_the_context_limit_ends_a_sequence_as_length() -> None:
    bench = Bench(kv_tokens=2048)
    result = bench.sample(prompt(500), max_tokens=None, stop=())
    assert len(result.sequences[0].tokens) == 12 and result.sequences[0].stop_reason == "length"


def test_a_seeded_request_repeats_and_its_samples_differ(bench: Bench) -> None:
    first = bench.sample(prompt(30), seed=11, num_samples=6, max_tokens=12)
    others = [bench.ask(prompt(60, n), max_tokens=25) for n in range(9)]
    again = bench.ask(prompt(30), seed=11, num_samples=6, max_tokens=12)
    second = bench.run(*others, again)[-1]
    assert all(same(a, b) for a, b in zip(first.sequences, second.sequences, strict=True))
    assert len({tuple(one.tokens) for one in first.sequences}) == 6
    drawn = [tuple(bench.sample(prompt(30)).sequences[0].tokens) for _ in range(3)]
    assert len(set(drawn)) == 3, "without a seed every request has its own"


def test_alternatives_come_with_every_sampled_token(bench: Bench) -> None:
    jobs = [bench.ask(prompt(20), seed=1, topk_sample_logprobs=5), bench.ask(prompt(25), seed=2)]
    sequence = bench.run(*jobs)[0].sequences[0]
    rows = torch.log_softmax(bench.logits([*prompt(20), *sequence.tokens])[19:-1], -1).topk(5)
    assert sequence.topk is not None
    assert sequence.topk.ids.tolist() == rows.indices.tolist()
    assert np.allclose(sequence.topk.logprobs, rows.values, atol=1e-4)


def test_a_cancelled_request_frees_its_memory_and_disturbs_nobody(bench: Bench) -> None:
    doomed = bench.ask(prompt(40, 1), max_tokens=50, num_samples=4)
    kept = bench.ask(prompt(40, 2), max_tokens=10, seed=1)
    waiting = bench.ask(prompt(40, 3), max_tokens=10)
    for _ in range(5):
        bench.sampler.step()
    for job in (doomed, waiting):
        assert job.future.cancel()
        bench.sampler.end(job, None)
    assert same(
        bench.run(kept)[0].sequences[0], Bench().sample(prompt(40, 2), seed=1, max_tokens=10).sequences[0]
    )
    assert bench.sampler.kv_tokens_used == 64, "what is left is the finished sequence, kept for reuse"


def test_every_token_is_told_as_it_comes_and_a_failing_listener_ends_its_own_request(bench: Bench) -> None:
    heard: list[tuple[int, int, float]] = []

    def broken(sample: int, token: int, logprob: float) -> None:
        raise ValueError("listener")

    good = bench.ask(prompt(20), num_samples=2, seed=1, on_token=lambda *one: heard.append(one))
    bad = bench.ask(prompt(20, 2), on_token=broken)
    result = bench.run(good)[0]
    with pytest.raises(ValueError, match="listener"):
        bad.future.result(timeout=0)
    for index, sequence in enumerate(result.sequences):
        assert [token for sample, token, _ in heard if sample == index] == sequence.tokens.tolist()


def merged_policies(runner: TorchRunner) -> list[Policy]:
    return [runner._merged[0]] if runner._merged else []


class ShortRunner(TorchRunner):
    """Has no memory for what `missing` names: it asks for more than there can be."""

    missing: str | None = None

    def _allocate(self, what: str) -> None:
        if what == self.missing:
            torch.empty(1 << 60)

    def prefill(self, chunks: Any) -> Any:
        if any(len(chunk.tokens) > 30 for chunk in chunks):
            self._allocate("long prompts")
        return super().prefill(chunks)

    def sample(self, hidden: Any, sampling: Any) -> Any:
        self._allocate("first tokens")
        return super().sample(hidden, sampling)

    def step(self) -> Any:
        assert self._batch is not None
        if len(self._batch.tokens) > 2:
            self._allocate("three rows")
        return super().step()

    def merge(self, policy: Policy) -> None:
        self._allocate("merging")
        super().merge(policy)


def test_out_of_memory_ends_no_more_than_it_must() -> None:
    bench = Bench(runner=ShortRunner)
    assert isinstance(bench.runner, ShortRunner)
    bench.runner.missing = "long prompts"
    short, long = bench.ask(prompt(20), seed=1), bench.ask(prompt(60, 9))
    assert same(bench.run(short)[0].sequences[0], Bench().sample(prompt(20), seed=1).sequences[0])
    assert isinstance(long.future.exception(timeout=0), EngineCapacityError)
    bench.runner.missing = "three rows"
    jobs = [bench.ask(prompt(20, n), seed=n) for n in range(4)]
    bench.run()
    failed = [isinstance(job.future.exception(timeout=0), EngineCapacityError) for job in jobs]
    assert failed == [False, False, True, True], "the youngest make room"
    running = bench.ask(prompt(20, 5), max_tokens=30)
    bench.sampler.step()
    bench.runner.missing = "first tokens"
    joining = bench.ask(prompt(20, 6))
    bench.run(running)
    assert isinstance(joining.future.exception(timeout=0), EngineCapacityError)
    bench.runner.missing = "merging"
    policy = bench.policy("p", seed=1)
    result = bench.sample(prompt(30), policy, num_samples=64, max_tokens=80, seed=2)
    assert len(result.sequences) == 64 and not merged_policies(bench.runner)


class Late:
    """What was drawn, kept back until the next step is under way, as on a GPU."""

    def __init__(self, drawn: SampleFuture, launched: list[int]) -> None:
        self._drawn, self._launched, self._number = drawn, launched, launched[0]

    def fetch(self) -> SampledTokens:
        assert self._launched[0] - self._number <= 1, "fetched in time"
        return self._drawn.fetch()


class LateRunner(TorchRunner):
    depth = 1

    def __init__(self, backbone: Backbone, pool: KvPool) -> None:
        super().__init__(backbone, pool)
        self.launched = [0]

    def step(self) -> Any:
        self.launched[0] += 1
        return Late(super().step(), self.launched)


def test_a_runner_one_step_ahead_gives_the_same_sequences() -> None:
    late, plain = Bench(runner=LateRunner), Bench()
    wishes: list[dict[str, Any]] = [{"max_tokens": 2 + 3 * n, "seed": n, "stop": None} for n in range(7)]
    results: list[list[SampleResult]] = []
    for bench in (late, plain):
        jobs = []
        for n, wish in enumerate(wishes):
            jobs.append(bench.ask(prompt(20 + n, n), **wish))
            bench.sampler.step()
        results.append(bench.run(*jobs))
    for ours, wanted in zip(*results, strict=True):
        assert same(ours.sequences[0], wanted.sequences[0])


def test_a_sequence_that_fills_its_slot_does_not_write_into_the_next_one() -> None:
    """A step is in flight when a sequence ends, and computes one token more of it."""
    seed = secrets.randbelow(1 << 30)
    print("seed", seed)
    rng, bench = np.random.default_rng(seed), Bench(runner=LateRunner)
    jobs = []
    for number in range(24):
        filled = int(rng.choice([64, 96, 128])) + 1 if number % 2 else int(rng.integers(20, 120))
        tokens = int(rng.integers(1, 17))
        jobs.append(bench.ask(prompt(filled - tokens, number), max_tokens=tokens, seed=number))
        bench.sampler.step()
    for job, result in zip(jobs, bench.run(*jobs), strict=True):
        (sequence,) = result.sequences
        assert np.abs(sequence.logprobs - bench.logprobs(job.prompt, sequence.tokens)).max() < 1e-3
