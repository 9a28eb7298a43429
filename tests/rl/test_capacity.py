"""`hermes rl plan`: its arithmetic against every measurement in docs/results that it can be compared with.

Left out are measurements of something else: seeds 1 and 2 of function calling (two runs shared the GPU), 64
policies in one batch, the front of replicas on one GPU, and the GRPO step of the engine's bench, whose host
work is in one process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from hermes.cli.main import cli
from hermes.errors import UsageError
from hermes.rl.capacity import (
    H200,
    HOST,
    XEON_2_CORES,
    Cluster,
    RolloutWorkload,
    busy_seconds,
    decode_step_s,
    device_speed,
    plan_capacity,
    prefill_s,
    ranks_that_fit,
    replica_memory,
    step_seconds,
    train_s,
)
from hermes.rl.model_shape import QWEN3_8B, SMOLLM2, ModelShape, shape_of

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ALLOWED_ERROR = 0.3
QWEN3_1_7B = shape_of("Qwen3-1.7B")
QUICKSTART = RolloutWorkload(512, 16, 2.3, 300, 46)
CALLING = RolloutWorkload(512, 16, 1, 323, 115)
EIGHT_ENVIRONMENTS = Cluster(H200, 1, 8)


def engine_benches() -> Iterator[tuple[str, float, float]]:
    """(what, planned, measured) seconds of the engine's bench, which samples without an adapter."""
    small = json.loads((RESULTS / "engine-h200.json").read_text())
    large = json.loads((RESULTS / "engine-h200-8b.json").read_text())
    redesign = json.loads((RESULTS / "engine-h200-redesign.json").read_text())["runs"]
    reports = [(SMOLLM2, small), (QWEN3_8B, large), *((SMOLLM2, report) for report in redesign.values())]
    for shape, report in reports:
        load, measured = report["workload"], {row["what"]: row["seconds"] for row in report["engine"]}
        batch, prompt, new = load["batch"], load["prompt"], load["new"]
        context, completion, shared = prompt + new / 2, load["completion"] - 1, load["shared"]

        def generate_s(rows: int, shape: ModelShape = shape, load: dict[str, int] = load) -> float:
            context = load["prompt"] + load["new"] / 2
            step_s = decode_step_s(shape, H200, rows, context, has_adapter=False)
            return prefill_s(shape, H200, rows * load["prompt"]) + load["new"] * step_s

        planned = {
            "generate": generate_s(batch),
            "generate at batch 1": generate_s(1),
            "train": train_s(shape, H200, batch * (shared + completion), batch),
            "train, prompt shared": train_s(shape, H200, batch * completion + load["groups"] * shared, batch),
        }
        for what, planned_s in planned.items():
            yield f"{what}, {shape.parameters:.3g} parameters, context {context}", planned_s, measured[what]


def policy_benches() -> Iterator[tuple[str, float, float]]:
    """(what, planned, measured) tokens/s of one to 32 policies that decode: 100 tokens of prompt, 64 new."""
    report = json.loads((RESULTS / "many-policies-h200.json").read_text())
    shapes = {"bundled": SMOLLM2, "1.7B": QWEN3_1_7B, "8B": QWEN3_8B}
    for name, bench in report.items():
        for row in bench["rounds"] if isinstance(bench, dict) else ():
            rows, shape = row.get("rows", 512), shapes[name.split()[0]]
            if row["policies"] <= 32:
                planned = rows / decode_step_s(shape, H200, rows, 100 + 64 / 2)
                yield f"{name}, {rows} rows, {row['policies']} policies", planned, row["tokens_per_s"]


def served_benches() -> Iterator[tuple[str, float, float]]:
    """(what, planned, measured) tokens/s of sampling over HTTP, on average over rounds."""
    for name, report in json.loads((RESULTS / "fleet-h200.json").read_text()).items():
        shape = QWEN3_1_7B if "1.7 billion" in name else SMOLLM2
        options = {key: int(report["options"][key]) for key in ("requests", "samples", "new")}
        sequences, new = options["requests"] * options["samples"], options["new"]
        host_s = options["requests"] * (HOST.request_s + HOST.front_s) + sequences * new * HOST.token_s
        planned = sequences * new / (host_s + new * decode_step_s(shape, H200, sequences, new))
        yield name, planned, report["summary"]["engine"]["tokens_s"][0]


def recorded_runs() -> Iterator[tuple[str, float, float]]:
    """(file, planned, measured) seconds a step."""
    runs = [
        ("quickstart-h200/grpo-metrics.jsonl", QUICKSTART, EIGHT_ENVIRONMENTS),
        ("tool-calling-h200/metrics.jsonl", CALLING, EIGHT_ENVIRONMENTS),
        ("tool-calling-h200/seeds/0/metrics.jsonl", CALLING, EIGHT_ENVIRONMENTS),
        ("tool-calling-h200/one-reward/metrics.jsonl", CALLING, EIGHT_ENVIRONMENTS),
        ("rl-64-rollouts-cpu.jsonl", RolloutWorkload(64, 8, 2, 299, 45), Cluster(XEON_2_CORES)),
    ]
    for file, load, cluster in runs:
        times = [json.loads(line)["time_s"] for line in (RESULTS / file).read_text().splitlines()]
        planned = step_seconds(busy_seconds(SMOLLM2, load, cluster))
        yield file, planned, (times[-1] - times[0]) / (len(times) - 1)
    # docs/results/quickstart-h200/README.md: 2 min 23 s for 20 steps, 19 s of them start.
    yield "one environment", step_seconds(busy_seconds(SMOLLM2, QUICKSTART, Cluster(H200))), 6.2


def test_the_plan_is_within_30_percent_of_every_measurement() -> None:
    measured = [*engine_benches(), *policy_benches(), *served_benches(), *recorded_runs()]
    assert len(measured) > 60
    errors = {what: round(planned / actual - 1, 2) for what, planned, actual in measured}
    assert {what: error for what, error in errors.items() if abs(error) > ALLOWED_ERROR} == {}


def test_128_sequences_of_an_8b_model_decode_as_fast_as_measured() -> None:
    load = RolloutWorkload(batch_size=128, prompt_tokens=100, new_tokens=64)
    planned = plan_capacity(QWEN3_8B, load, Cluster(H200))
    assert planned.sequences_at_once == 128
    assert planned.decode_tokens_per_s == pytest.approx(13_400, rel=ALLOWED_ERROR)


def test_one_environment_process_is_the_bottleneck_of_a_gpu_and_more_of_them_are_advised() -> None:
    alone = plan_capacity(SMOLLM2, QUICKSTART, Cluster(H200))
    assert alone.bottleneck == "environment"
    assert alone.advice.startswith("2 environment processes")
    several = plan_capacity(SMOLLM2, QUICKSTART, EIGHT_ENVIRONMENTS)
    assert several.bottleneck == "sampling"
    assert several.step_s < 0.5 * alone.step_s
    slow = Cluster(H200, 4, 4, replace(HOST, call_s=1.0))
    assert plan_capacity(SMOLLM2, QUICKSTART, slow).bottleneck == "environment"


def test_one_link_for_all_weights_is_the_limit_of_a_thousand_gpus() -> None:
    load = RolloutWorkload(65_536, 16, 4, 300, 2000)
    assert plan_capacity(QWEN3_8B, load, Cluster(H200, 1024, 4096)).bottleneck == "hand-over"


def test_a_model_that_does_not_fit_is_said_so() -> None:
    large = replace(QWEN3_8B, stated_parameters=140e9)
    planned = plan_capacity(large, RolloutWorkload(), Cluster(H200))
    assert not planned.memory.fits
    assert "does not fit" in planned.advice
    ranks, needed = ranks_that_fit(large, H200, RolloutWorkload()) or (0, 0.0)
    assert ranks == 2
    assert needed < H200.memory_bytes < planned.memory.used
    assert replica_memory(QWEN3_8B, H200, RolloutWorkload(), 512).fits
    text = CliRunner().invoke(cli, ["rl", "plan", "--model", "someone/Model-140B"]).output
    assert "--tensor-parallel-size 4" in " ".join(text.split())


def test_another_gpu_is_slower_where_its_data_sheet_is() -> None:
    a100 = device_speed("a100")
    assert not a100.measured
    assert decode_step_s(QWEN3_8B, a100, 64, 500) > decode_step_s(QWEN3_8B, H200, 64, 500)
    with pytest.raises(UsageError, match="'abacus'"):
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
    with pytest.raises(UsageError, match=r"config\.json"):
        shape_of(str(tmp_path))
    with pytest.raises(UsageError, match="'nameless'"):
        shape_of("nameless")


def test_the_command_prints_text_and_json() -> None:
    text = CliRunner().invoke(cli, ["rl", "plan", "--env-replicas", "8"])
    assert text.exit_code == 0, text.output
    assert {"memory", "decode", "step", "busy", "bottleneck", "add"} <= {
        line.split()[0] for line in text.output.splitlines()
    }
    assert "e+" not in text.output, "figures have no exponent"
    as_json = json.loads(CliRunner().invoke(cli, ["rl", "plan", "--gpus", "0", "--json"]).output)
    assert as_json["device"] == "cpu" and as_json["fits"] is True
    refused = CliRunner().invoke(cli, ["rl", "plan", "--batch-size", "10", "--group-size", "4"])
    assert isinstance(refused.exception, UsageError)


def test_quantised_layers_take_a_fraction_of_the_memory_and_fit_a_small_gpu() -> None:
    small_gpu = Cluster(device_speed("l4"))
    large = replace(QWEN3_8B, stated_parameters=12e9)
    plain, eight, four = (
        plan_capacity(replace(large, quantization=kind), RolloutWorkload(), small_gpu)
        for kind in (None, "int8", "nf4")
    )
    assert not plain.memory.fits and eight.memory.fits and four.memory.fits
    assert four.memory.weights < eight.memory.weights < plain.memory.weights / 1.5
    assert four.step_s < plain.step_s, "more sequences fit at once"
