"""`hermes rl plan`: the arithmetic against the engine's benchmarks, the simulation against recorded runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from hermes.cli.main import cli
from hermes.errors import UsageError
from hermes.rl.capacity.costs import (
    RolloutWorkload,
    decode_step_s,
    prefill_s,
    rank_bytes,
    replica_memory,
    train_s,
)
from hermes.rl.capacity.hardware import H200, XEON_2_CORES, device_speed
from hermes.rl.capacity.plan import Cluster, plan_capacity, significant, simulate_step
from hermes.rl.capacity.shapes import QWEN3_8B, SMOLLM2, ModelShape, shape_of
from hermes.rl.capacity.text import plan_text

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ENGINE_ERROR, RUN_ERROR = 0.15, 0.25
"""As docs/scale.md states them."""
QUICKSTART = RolloutWorkload(512, 16, 2.3, 300, 46)
CALLING = RolloutWorkload(512, 16, 1, 323, 115)


def seconds(file: str) -> dict[str, float]:
    report = json.loads((RESULTS / file).read_text())
    return {figure["what"]: figure["seconds"] for figure in report["engine"]}


def mean_interval_s(file: str) -> float:
    times = [json.loads(line)["time_s"] for line in (RESULTS / file).read_text().splitlines()]
    return float((times[-1] - times[0]) / (len(times) - 1))


@pytest.mark.parametrize(
    ("file", "shape", "batch", "new"),
    [("engine-h200.json", SMOLLM2, 512, 128), ("engine-h200-8b.json", QWEN3_8B, 256, 64)],
)
def test_the_arithmetic_agrees_with_the_engines_benchmarks(
    file: str, shape: ModelShape, batch: int, new: int
) -> None:
    measured, prompt, shared, completion, group = seconds(file), 211, 80, 29, 16
    context = prompt + new / 2
    predicted = {
        "generate": prefill_s(shape, H200, batch * prompt) + new * decode_step_s(shape, H200, batch, context),
        "generate at batch 1": prefill_s(shape, H200, prompt) + new * decode_step_s(shape, H200, 1, context),
        "train": train_s(shape, H200, batch * (shared + completion), batch),
        "train, prompt shared": train_s(shape, H200, batch * completion + batch // group * shared, batch),
    }
    errors = {what: predicted[what] / measured[what] - 1 for what in predicted}
    assert {what: error for what, error in errors.items() if abs(error) > ENGINE_ERROR} == {}


@pytest.mark.parametrize(
    ("file", "load", "cluster"),
    [
        ("quickstart-h200/grpo-metrics.jsonl", QUICKSTART, Cluster(H200, 1, 8)),
        ("tool-calling-h200/metrics.jsonl", CALLING, Cluster(H200, 1, 8)),
        ("tool-calling-h200/seeds/0/metrics.jsonl", CALLING, Cluster(H200, 1, 8)),
        ("tool-calling-h200/one-reward/metrics.jsonl", CALLING, Cluster(H200, 1, 8)),
        ("quickstart-cpu/grpo-metrics.jsonl", RolloutWorkload(64, 8, 2, 299, 45), Cluster(XEON_2_CORES)),
    ],
)
def test_the_simulation_agrees_with_recorded_runs(file: str, load: RolloutWorkload, cluster: Cluster) -> None:
    measured_s, simulated_s = mean_interval_s(file), simulate_step(SMOLLM2, load, cluster).step_s
    assert abs(simulated_s / measured_s - 1) < RUN_ERROR, (simulated_s, measured_s)


def test_one_environment_process_is_the_bottleneck_of_a_gpu_and_more_of_them_are_advised() -> None:
    alone = plan_capacity(SMOLLM2, QUICKSTART, Cluster(H200, 1, 1))
    assert alone.bottleneck == "environment"
    assert alone.advice.startswith("2 environment processes")
    several = plan_capacity(SMOLLM2, QUICKSTART, Cluster(H200, 1, 8))
    assert several.bottleneck == "sampling"
    assert several.step.step_s < 0.5 * alone.step.step_s


def test_a_slow_environment_is_named_whatever_the_gpus() -> None:
    cluster = Cluster(H200, 4, 4)
    slow = replace(cluster, host=replace(cluster.host, call_s=1.0))
    assert plan_capacity(SMOLLM2, QUICKSTART, slow).bottleneck == "environment"


def test_one_link_for_all_weights_is_the_limit_of_a_thousand_gpus() -> None:
    load = RolloutWorkload(65_536, 16, 4, 300, 2000)
    assert plan_capacity(QWEN3_8B, load, Cluster(H200, 1024, 4096)).bottleneck == "hand-over"


def test_a_model_that_does_not_fit_is_said_so() -> None:
    large = replace(QWEN3_8B, stated_parameters=70e9)
    plan = plan_capacity(large, RolloutWorkload(), Cluster(H200, 1, 1))
    assert not plan.memory.fits
    assert "does not fit" in plan.advice
    text = plan_text(large, RolloutWorkload(), Cluster(H200, 1, 1), plan)
    assert "With --tensor-parallel-size 2 each of 2 devices needs" in text
    assert rank_bytes(large, H200, RolloutWorkload(), 2) < H200.memory_bytes < plan.memory.least
    assert replica_memory(QWEN3_8B, H200, RolloutWorkload(), 512).fits


def test_another_gpu_is_slower_where_its_data_sheet_is() -> None:
    a100 = device_speed("a100")
    assert not a100.measured
    assert decode_step_s(QWEN3_8B, a100, 64, 500) > decode_step_s(QWEN3_8B, H200, 64, 500)
    with pytest.raises(UsageError, match="no figures for the GPU 'abacus'"):
        device_speed("abacus")


def test_the_shape_is_read_from_a_folder_or_assumed_by_size(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert shape_of(str(tmp_path)) == ModelShape(2, 64, 128, 4, 4, 16, 100, tied=True)
    assumed = shape_of("someone/Model-7B")
    assert (assumed.assumed_from, assumed.parameters) == ("Qwen3-8B", 7e9)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"config\.json does not describe a model"):
        shape_of(str(tmp_path))
    with pytest.raises(UsageError, match="the size of 'nameless' is unknown"):
        shape_of("nameless")


def test_the_command_prints_text_and_json() -> None:
    text = CliRunner().invoke(cli, ["rl", "plan", "--env-replicas", "8"])
    assert text.exit_code == 0, text.output
    assert {"memory", "step", "busy", "bottleneck", "add"} <= {
        line.split()[0] for line in text.output.splitlines()
    }
    as_json = json.loads(CliRunner().invoke(cli, ["rl", "plan", "--gpus", "0", "--json"]).output)
    assert as_json["device"] == "cpu" and as_json["fits"] is True
    refused = CliRunner().invoke(cli, ["rl", "plan", "--batch-size", "10", "--group-size", "4"])
    assert isinstance(refused.exception, UsageError)
    assert "not a number of groups" in refused.exception.message


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(128.7, 2, "130"), (0.0581, 2, "0.058"), (1234.5, 3, "1,230"), (35.0, 3, "35"), (99.96, 3, "100")],
)
def test_seconds_have_no_exponent(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text


def test_quantised_layers_take_a_fraction_of_the_memory_and_fit_a_small_gpu() -> None:
    small_gpu = Cluster(device_speed("rtx4090"))
    plain, eight, four = (
        plan_capacity(replace(QWEN3_8B, quantization=kind), RolloutWorkload(), small_gpu)
        for kind in (None, "int8", "nf4")
    )
    assert not plain.memory.fits and eight.memory.fits and four.memory.fits
    assert four.memory.weights < eight.memory.weights < plain.memory.weights / 3
    assert four.step.step_s < plain.step.step_s, "more sequences fit at once"
