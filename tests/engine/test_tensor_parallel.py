"""One model on several ranks: losses, updates and samples of one process; no rank outlives another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.replicas.front import EngineFront
from hermes.engine.spec import ModelSpec
from hermes.engine.tensor_parallel.leader import start_ranks
from hermes.engine.tensor_parallel.plan import check_shardable, largest_local_spec, plan_shards
from hermes.engine.types import (
    Datum,
    EngineCapacityError,
    EngineUserError,
    LoraConfig,
    Loss,
    SampleRequest,
    SampleResult,
    SamplingParams,
)
from tests.engine.replica_parts import ADAM, IMPORTANCE, grpo_data, options, request, texts, train, wait_until
from tests.engine.sampling_parts import prompt
from tests.engine.tiny import FAMILIES, tiny_model

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("tensor-parallel")


def saved(folder: Path, family: str, **changes: Any) -> EngineOptions:
    tiny_model(family, **changes).save_pretrained(folder)
    return replace(options(folder), max_length=256)


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, EngineFront]]:
    """The same model in one process, and on two ranks that have 1 and 2 of its key heads."""
    chosen = saved(tmp_path_factory.mktemp("model"), "qwen3", num_attention_heads=6, num_key_value_heads=3)
    engine = Engine(chosen)
    engine.start()
    front = EngineFront(replace(chosen, tensor_parallel_size=2), 1)
    yield engine, front
    front.close()
    engine.close()


def spec_with(heads: int, kv_heads: int, intermediate: int) -> ModelSpec:
    from hermes.engine.model.load import wrap_model

    changes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "hidden_size": 8 * heads}
    return wrap_model(tiny_model(intermediate_size=intermediate, **changes), "tiny").spec


def children(pid: int) -> list[int]:
    """Started by any of its threads."""
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for text in lists for child in text.split()]


def is_alive(pid: int) -> bool:
    """A zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ranks_of(front: EngineFront) -> tuple[int, list[int]]:
    """Process ids of the leader and of its followers, once they run."""
    wait_until(lambda: len(front.workers) == 1)
    (leader,) = front.workers.values()
    return leader, children(leader)


def assert_same_samples(left: SampleResult, right: SampleResult) -> None:
    assert texts(left) == texts(right)
    for sequence, expected in zip(left.sequences, right.sequences, strict=True):
        np.testing.assert_allclose(sequence.logprobs, expected.logprobs, atol=1e-4)


def assert_same_adapters(left: Path, right: Path) -> None:
    from safetensors.numpy import load_file

    for file in sorted(left.glob("*.safetensors")):
        arrays, expected = load_file(file), load_file(right / file.name)
        assert arrays.keys() == expected.keys()
        for name, values in arrays.items():
            np.testing.assert_allclose(values, expected[name], atol=2e-4, err_msg=f"{file.name} {name}")


@pytest.mark.parametrize(
    ("heads", "kv_heads", "intermediate", "size"), [(4, 2, 96, 2), (9, 3, 97, 2), (8, 8, 50, 3)]
)
def test_the_parts_of_all_ranks_are_the_model(
    heads: int, kv_heads: int, intermediate: int, size: int
) -> None:
    spec = spec_with(heads, kv_heads, intermediate)
    shards = plan_shards(spec, size)
    for total, parts in (
        (kv_heads, [shard.kv_heads for shard in shards]),
        (heads, [shard.heads for shard in shards]),
        (intermediate, [shard.inner for shard in shards]),
    ):
        assert [index for part in parts for index in range(part.start, part.stop)] == list(range(total))
    for shard in shards:
        per_key = heads // kv_heads
        assert shard.heads == slice(shard.kv_heads.start * per_key, shard.kv_heads.stop * per_key)
    assert largest_local_spec(spec, size).kv_heads == -(-kv_heads // size)


def test_what_cannot_be_divided_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(EngineUserError, match="its family is gemma") as refused:
        check_shardable(tiny_model("gemma").config, "g", 2)
    assert "--tensor-parallel-size 1" in refused.value.hint
    with pytest.raises(EngineUserError, match="2 key heads, which cannot be divided among 3") as refused:
        check_shardable(tiny_model().config, "m", 3)
    assert refused.value.hint == "Use --tensor-parallel-size 2 or less."
    config = tiny_model().config
    config.base_model_tp_plan = {"layers.*.self_attn.q_proj": "colwise"}
    with pytest.raises(EngineUserError, match=r"no tensor-parallel plan for its self_attn\.k_proj"):
        check_shardable(config, "m", 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantize": "nf4"}, "--quantize and --tensor-parallel-size cannot be combined"),
        ({"exact": True}, "--exact and --tensor-parallel-size cannot be combined"),
        ({"model": "/nowhere"}, "'/nowhere' could not be loaded"),
    ],
)
def test_options_that_do_not_go_with_ranks_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    chosen = replace(saved(tmp_path, "llama"), tensor_parallel_size=2, **changes)
    with pytest.raises(EngineUserError, match=words):
        start_ranks(chosen, torch.device("cpu"), torch.float32)


@pytest.mark.slow
def test_a_front_whose_ranks_cannot_start_says_why(tmp_path: Path) -> None:
    chosen = replace(saved(tmp_path, "llama"), tensor_parallel_size=2, memory_bytes=1 << 30)
    with pytest.raises(EngineCapacityError, match=r"0\.50 GiB are not enough .* in each of the processes"):
        EngineFront(chosen, 1)


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    chosen = replace(saved(tmp_path, "llama"), tensor_parallel_size=2)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    others = children(os.getpid())
    with pytest.raises(EngineUserError, match="only safetensors can be read in parts"):
        start_ranks(chosen, torch.device("cpu"), torch.float32)
    assert set(children(os.getpid())) <= set(others), "the followers have ended"


def test_two_ranks_train_the_update_of_one_process(
    ranked: tuple[Engine, EngineFront], tmp_path: Path
) -> None:
    engine, front = ranked
    outputs, of_ranks = train(front, 3, tmp_path / "ranks")
    expected, of_one = train(engine, 3, tmp_path / "one")
    for left, right in zip(outputs, expected, strict=True):
        assert left.metrics == pytest.approx(right.metrics, rel=1e-4, abs=1e-4)
        for logprobs, others in zip(left.logprobs, right.logprobs, strict=True):
            np.testing.assert_allclose(logprobs, others, atol=1e-4)
    assert_same_adapters(of_ranks, of_one)


@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(rank=4, seed=1, train_attn=False),
        LoraConfig(rank=4, seed=1, train_mlp=False, train_unembed=False),
        LoraConfig(rank=4, seed=1, train_attn=False, train_mlp=False),
    ],
    ids=["mlp", "attention", "head"],
)
def test_adapters_of_some_linears_train_the_same(
    ranked: tuple[Engine, EngineFront], tmp_path: Path, config: LoraConfig
) -> None:
    folders = []
    for name, engine in zip(("one", "ranks"), ranked, strict=True):
        adapter = engine.create_adapter(config).result()
        for step in range(2):
            engine.forward_backward(adapter, grpo_data(step), IMPORTANCE).result()
            engine.optim_step(adapter, ADAM).result()
        engine.save(adapter, tmp_path / name, optimizer=True).result()
        engine.drop_adapter(adapter)
        folders.append(tmp_path / name)
    assert_same_adapters(*folders)


def test_a_forward_pass_alone_changes_nothing(ranked: tuple[Engine, EngineFront]) -> None:
    engine, front = ranked
    outputs = []
    for served in (engine, front):
        adapter = served.create_adapter(LoraConfig(rank=2, seed=3)).result()
        outputs.append(served.forward_backward(adapter, grpo_data(0), IMPORTANCE, forward_only=True).result())
        assert served.optim_step(adapter, ADAM).result()["grad_norm"] == 0.0
        served.drop_adapter(adapter)
    for logprobs, others in zip(outputs[0].logprobs, outputs[1].logprobs, strict=True):
        np.testing.assert_allclose(logprobs, others, atol=1e-4)


def test_policies_are_sampled_together_and_alone_as_by_one_process(
    ranked: tuple[Engine, EngineFront], tmp_path: Path
) -> None:
    engine, front = ranked
    folders = []
    for seed in (1, 2):
        adapter = engine.create_adapter(LoraConfig(rank=4, seed=seed)).result()
        engine.forward_backward(adapter, grpo_data(seed), IMPORTANCE).result()
        engine.optim_step(adapter, ADAM).result()
        engine.save(adapter, tmp_path / str(seed), optimizer=False).result()
        engine.drop_adapter(adapter)
        folders.append(tmp_path / str(seed))
    policies = [
        [None, *(served.load_policy(folder).result() for folder in folders)] for served in (engine, front)
    ]
    requests = [(number % 3, request(number, tokens=20, samples=4)) for number in range(9)]
    results = [
        [served.sample(ids[policy], wanted) for policy, wanted in requests]
        for served, ids in zip((engine, front), policies, strict=True)
    ]
    for left, right in zip(*results, strict=True):
        assert_same_samples(left.result(), right.result())
    for served, ids in zip((engine, front), policies, strict=True):
        served.drop_policy(str(ids[1]))
    alone = [
        served.sample(ids[2], request(5, tokens=40)) for served, ids in zip(ranked, policies, strict=True)
    ]
    assert_same_samples(alone[0].result(), alone[1].result())
    for served, ids in zip((engine, front), policies, strict=True):
        served.drop_policy(str(ids[2]))


def test_scores_of_prompts_and_streams_are_those_of_one_process(ranked: tuple[Engine, EngineFront]) -> None:
    params = SamplingParams(max_tokens=8, temperature=0.0, stop=())
    streams: list[list[int]] = [[], []]
    results = []
    for served, tokens in zip(ranked, streams, strict=True):
        wanted = SampleRequest(
            prompt(60, 4),
            params,
            prompt_logprobs=True,
            topk_sample_logprobs=3,
            on_token=lambda _, token, __, tokens=tokens: tokens.append(token),  # type: ignore[misc]
        )
        results.append(served.sample(None, wanted).result())
    assert_same_samples(*results)
    assert streams[0] == streams[1] == results[0].sequences[0].tokens.tolist()
    assert results[0].prompt_logprobs is not None and results[1].prompt_logprobs is not None
    np.testing.assert_allclose(results[0].prompt_logprobs[1:], results[1].prompt_logprobs[1:], atol=1e-4)


def test_training_and_sampling_at_once_do_not_disturb_each_other(
    ranked: tuple[Engine, EngineFront], tmp_path: Path
) -> None:
    """The ranks have to agree on the order of everything."""
    engine, front = ranked
    expected = [engine.sample(None, request(number, tokens=30)).result() for number in range(6)]
    _, alone = train(engine, 3, tmp_path / "one")
    pending: list[Any] = []

    def ask(step: int) -> None:
        pending.extend(front.sample(None, request(number, tokens=30)) for number in range(6))

    _, busy = train(front, 3, tmp_path / "ranks", during=ask)
    for number, future in enumerate(pending):
        assert_same_samples(future.result(), expected[number % 6])
    assert_same_adapters(busy, alone)


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_nothing_is_lost_or_doubled(
    ranked: tuple[Engine, EngineFront], tmp_path: Path
) -> None:
    engine, front = ranked
    _, alone = train(engine, 2, tmp_path / "one")
    expected = engine.sample(None, request(3, tokens=30)).result()

    def kill(step: int) -> None:
        leader, followers = ranks_of(front)
        victim = (followers[0], leader)[step]
        sampling = front.sample(None, request(3, tokens=30))
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: not is_alive(leader) and not any(is_alive(pid) for pid in followers))
        assert_same_samples(sampling.result(), expected)

    _, killed = train(front, 2, tmp_path / "ranks", during=kill)
    assert_same_adapters(killed, alone)


@pytest.mark.slow
def test_closing_the_front_ends_every_rank_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    front = EngineFront(replace(saved(tmp_path / "model", "llama"), tensor_parallel_size=2), 1)
    leader, followers = ranks_of(front)
    assert len(followers) == 1 and len(list((tmp_path / "temporary").glob("hermes-ranks-*"))) == 1
    front.close()
    wait_until(lambda: not is_alive(leader) and not is_alive(followers[0]))
    assert not list((tmp_path / "temporary").glob("hermes-ranks-*"))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [2, 3])
def test_every_family_on_ranks_is_that_of_one_process(tmp_path: Path, family: str, size: int) -> None:
    chosen = saved(tmp_path / "model", family, num_attention_heads=8, num_key_value_heads=4)
    engine, front = Engine(chosen), EngineFront(replace(chosen, tensor_parallel_size=size), 1)
    engine.start()
    try:
        _, of_one = train(engine, 3, tmp_path / "one")
        _, of_ranks = train(front, 3, tmp_path / "ranks")
        assert_same_adapters(of_ranks, of_one)
        policies = [served.load_policy(of_one).result() for served in (engine, front)]
        results = [
            served.sample(policy, request(1, tokens=40, samples=5)).result()
            for served, policy in zip((engine, front), policies, strict=True)
        ]
        assert_same_samples(*results)
    finally:
        front.close()
        engine.close()


@pytest.mark.slow
def test_sequences_longer_than_a_micro_batch_are_recomputed_by_all_ranks(
    ranked: tuple[Engine, EngineFront], tmp_path: Path
) -> None:
    chosen = replace(saved(tmp_path / "model", "llama", max_position_embeddings=4096), max_length=None)
    engine, front = Engine(chosen), EngineFront(replace(chosen, tensor_parallel_size=2), 1)
    engine.start()
    ids = np.random.default_rng(0).integers(3, 500, 3000)
    data = [Datum(ids[:-1], {"target_tokens": ids[1:], "weights": np.ones(2999, np.float32)})]
    norms = []
    try:
        for served in (engine, front):
            adapter = served.create_adapter(LoraConfig(rank=4, seed=7)).result()
            served.forward_backward(adapter, data, Loss("cross_entropy")).result()
            norms.append(served.optim_step(adapter, ADAM).result()["grad_norm"])
    finally:
        front.close()
        engine.close()
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def _libraries_gib() -> float:
    """What a process has that has computed nothing."""
    program = (
        "import torch; from transformers import LlamaConfig; LlamaConfig(); "
        "torch.ones(512, 512) @ torch.ones(512); "
        "print([line for line in open('/proc/self/status') if line.startswith('VmData')][0].split()[1])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(ended.stdout) / 2**20


@pytest.mark.slow
def test_a_model_that_does_not_fit_one_device_trains_and_samples_on_two(tmp_path: Path) -> None:
    """1.3 GiB of weights, and processes that may write to 1 GiB beside their libraries."""
    shape = {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 10}
    heads = {"num_attention_heads": 12, "num_key_value_heads": 4, "initializer_range": 0.05}
    tiny_model("llama", **shape, **heads).save_pretrained(tmp_path, max_shard_size="200MB")

    def run(size: int, limit_gib: float) -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.engine.limited", str(tmp_path), str(size)]
        ended = subprocess.run(
            [*command, str(int(limit_gib * 2**30))], cwd=ROOT, capture_output=True, text=True, check=True
        )
        report: dict[str, Any] = json.loads(ended.stdout)
        return report

    limit_gib = 1.0 + _libraries_gib()
    assert "not enough memory for the base model" in run(1, limit_gib)["error"]
    expected, ranks = run(1, 64), run(2, limit_gib)
    assert ranks["losses"] == pytest.approx(expected["losses"], rel=1e-3)
    assert ranks["tokens"] == expected["tokens"]
