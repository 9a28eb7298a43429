"""`hermes rl plan`: what a run needs and how long its steps take, before anything is started."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

import click

from hermes.cli.model_options import model_options
from hermes.cli.options import json_option
from hermes.config.option import Options, option

if TYPE_CHECKING:
    from hermes.core import JSONObject
    from hermes.rl.capacity import CapacityPlan, Cluster, RolloutWorkload
    from hermes.rl.model_shape import ModelShape

_GIB = 2**30


class PlanOptions(Options):
    model: str = option("hermes/smollm2", "Bundled, hub name or folder.")
    gpus: int = option(1, "Engine replicas, one a GPU; 0: two CPU cores.", ge=0, le=4096)
    gpu: str = option("h200", "Kind of GPU: h200, h100, b200, a100, l40s, l4, rtx4090.")
    env_replicas: int = option(1, "Environment processes.", ge=1, le=65_536)
    batch_size: int = option(512, "Rollouts a step.", ge=1, le=1 << 20)
    group_size: int = option(16, "Rollouts of one task.", ge=1, le=1024)
    turns: float = option(2.0, "Model calls a rollout.", "--max-turns", former=("--turns",), ge=1, le=1000)
    prompt_tokens: int = option(300, "Tokens that the rollouts of a group have in common.", ge=1, le=1 << 20)
    new_tokens: int = option(
        48,
        "Tokens sampled in a rollout, all its turns together.",
        "--answer-tokens",
        former=("--new-tokens",),
        ge=1,
        le=1 << 20,
    )
    tool_tokens: int = option(0, "Tokens that tools and the environment add to a rollout.", ge=0, le=1 << 20)
    rank: int = option(32, "Rank of the adapter.", ge=1, le=512)
    quantize: Literal["nf4", "int8"] | None = option(
        None, "Layers of the base model in 4 or 8 bits (engine_quantize)."
    )
    env_ms: float | None = option(
        None,
        "CPU of the environment for one model call, in ms; default: 5.1, that of the built-in calculator.",
        ge=0,
    )


@click.command()
@model_options(PlanOptions)
@json_option
def plan(options: PlanOptions, as_json: bool) -> None:
    """Estimate memory, time a step and bottleneck of a run.

    \b
    hermes rl plan --model Qwen/Qwen3-8B --gpus 8 --turns 4 --new-tokens 800
    """
    from dataclasses import fields, replace

    from hermes.errors import UsageError
    from hermes.rl import capacity
    from hermes.rl.model_shape import shape_of

    if options.batch_size % options.group_size:
        raise UsageError(
            f"a batch of {options.batch_size} rollouts is not a number of groups of {options.group_size}",
            "make --batch-size a multiple of --group-size",
        )
    names = [field.name for field in fields(capacity.RolloutWorkload)]
    load = capacity.RolloutWorkload(**options.model_dump(include=set(names)))
    host = capacity.HOST if options.env_ms is None else replace(capacity.HOST, call_s=options.env_ms / 1000)
    cluster = capacity.Cluster(
        device=capacity.device_speed(options.gpu.lower()) if options.gpus else capacity.XEON_2_CORES,
        replicas=max(1, options.gpus),
        environments=options.env_replicas,
        host=host,
    )
    shape = replace(shape_of(options.model), quantization=options.quantize)
    result = capacity.plan_capacity(shape, load, cluster)
    if as_json:
        click.echo(json.dumps(_plan_json(shape, load, cluster, result), indent=2))
    else:
        from hermes.safety.output.columns import wrapped

        lines = [*_plan_lines(shape, load, cluster, result), *_notes(shape, load, cluster, result)]
        click.echo(wrapped("\n".join(lines)))


def _plan_json(
    shape: ModelShape, load: RolloutWorkload, cluster: Cluster, result: CapacityPlan
) -> JSONObject:
    memory = asdict(result.memory)
    memory["device"] = memory.pop("total")
    return {
        "device": cluster.device.name,
        "measured_device": cluster.device.measured,
        "replicas": cluster.replicas,
        "env_replicas": cluster.environments,
        "parameters": shape.parameters,
        "quantization": shape.quantization,
        "shape_assumed_from": shape.assumed_from,
        "batch_size": load.batch_size,
        "memory_gib": {part: round(size / _GIB, 2) for part, size in memory.items()},
        "fits": result.memory.fits,
        "sequences_at_once": result.sequences_at_once,
        "decode_tokens_per_s": round(result.decode_tokens_per_s, 1),
        "seconds_per_step": round(result.step_s, 3),
        "busy_seconds_per_step": {part: round(busy_s, 4) for part, busy_s in result.busy_s.items()},
        "rollouts_per_s": round(load.batch_size / result.step_s, 2),
        "sampled_tokens_per_s": round(load.batch_size * load.new_tokens / result.step_s, 1),
        "trained_tokens_per_s": round(load.batch_size * load.sequence_tokens / result.step_s, 1),
        "bottleneck": result.bottleneck,
        "add_next": result.advice,
    }


def _plan_lines(
    shape: ModelShape, load: RolloutWorkload, cluster: Cluster, result: CapacityPlan
) -> list[str]:
    memory, step_s, environments = result.memory, result.step_s, cluster.environments
    bits = f" in {shape.quantization}" if shape.quantization else ""
    if cluster.device.name == "cpu":
        devices = "two CPU cores" if cluster.replicas == 1 else f"{cluster.replicas} times two CPU cores"
    else:
        devices = f"{cluster.replicas} {cluster.device.name.upper()}"
    parts = sorted(result.busy_s.items(), key=lambda item: -item[1])
    return [
        f"{shape.parameters / 1e9:.3g} B parameters{bits} on {devices}, {environments} "
        f"environment {'process' if environments == 1 else 'processes'}, {load.batch_size} rollouts a step",
        f"memory      {memory.used / _GIB:.1f} of {memory.total / _GIB:.0f} GiB a device: weights "
        f"{memory.weights / _GIB:.1f}, adapter {memory.adapter / _GIB:.1f}, activations "
        f"{memory.activations / _GIB:.1f}, KV cache {memory.kv_cache / _GIB:.1f} "
        f"({result.sequences_at_once} sequences)",
        f"decode      {_significant(result.decode_tokens_per_s, 3)} tokens/s a device with "
        f"{result.sequences_at_once} sequences at once",
        f"step        {_significant(step_s, 3)} s: {_significant(load.batch_size / step_s, 3)} rollouts/s, "
        f"{_significant(load.batch_size * load.new_tokens / step_s, 3)} sampled and "
        f"{_significant(load.batch_size * load.sequence_tokens / step_s, 3)} trained tokens/s",
        "busy        "
        + ", ".join(f"{part} {_significant(busy_s, 2)} s" for part, busy_s in parts if busy_s >= 0.001),
        f"bottleneck  {result.bottleneck}",
        f"add next    {result.advice}",
    ]


def _notes(shape: ModelShape, load: RolloutWorkload, cluster: Cluster, result: CapacityPlan) -> list[str]:
    from hermes.rl.capacity import ranks_that_fit

    notes = []
    if not result.memory.fits:
        notes.append("It does not fit: the engine would refuse to start, or a training call would fail.")
        if shape.quantization is None:
            notes.append("With --quantize nf4 or int8 the weights need less memory.")
            if divided := ranks_that_fit(shape, cluster.device, load):
                ranks, needed = divided
                notes.append(
                    f"With --tensor-parallel-size {ranks} each of {ranks} devices needs {needed / _GIB:.0f} "
                    "GiB at least; the seconds of such a group were not measured."
                )
    if shape.assumed_from is not None:
        notes.append(
            f"Layers and widths are those of {shape.assumed_from}; give a folder to use the model's own."
        )
    if shape.quantization is not None:
        notes.append("Times of quantised models are from bytes read and written; no run was measured.")
    if not cluster.device.measured:
        notes.append("This GPU was not measured: the H200's figures are scaled by both data sheets.")
    return notes


def _significant(value: float, digits: int) -> str:
    """The number with so many significant digits; below a million without an exponent: 130, not 1.3e+02."""
    return f"{float(f'{value:.{digits}g}'):,g}"
