"""A capacity plan as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.rl.capacity.costs import rank_bytes
from hermes.rl.capacity.hardware import GIB
from hermes.rl.capacity.plan import significant

if TYPE_CHECKING:
    from hermes.core import JSONObject
    from hermes.rl.capacity.costs import RolloutWorkload
    from hermes.rl.capacity.plan import CapacityPlan, Cluster
    from hermes.rl.capacity.shapes import ModelShape


_RANKS = (2, 4, 8, 16, 32, 64)
"""Sizes of --tensor-parallel-size that are tried."""


def plan_json(shape: ModelShape, load: RolloutWorkload, cluster: Cluster, plan: CapacityPlan) -> JSONObject:
    memory = plan.memory
    return {
        "device": cluster.device.name,
        "measured_device": cluster.device.measured,
        "replicas": cluster.replicas,
        "env_replicas": cluster.environments,
        "parameters": shape.parameters,
        "quantization": shape.quantization,
        "shape_assumed_from": shape.assumed_from,
        "batch_size": load.batch_size,
        "memory_gib": {
            "weights": round(memory.weights / GIB, 2),
            "adapter": round(memory.adapter / GIB, 2),
            "activations": round(memory.activations / GIB, 2),
            "kv_cache": round(memory.kv_cache / GIB, 2),
            "runtime": round(memory.runtime / GIB, 2),
            "device": round(memory.total / GIB, 2),
        },
        "fits": memory.fits,
        "sequences_at_once": plan.sequences_at_once,
        "seconds_per_step": round(plan.step.step_s, 3),
        "busy_seconds_per_step": {part: round(busy_s, 4) for part, busy_s in plan.step.busy_s.items()},
        "staleness": round(plan.step.staleness, 2),
        "rollouts_per_s": round(plan.rollouts_per_s, 2),
        "sampled_tokens_per_s": round(plan.sampled_tokens_per_s, 1),
        "trained_tokens_per_s": round(plan.trained_tokens_per_s, 1),
        "bottleneck": plan.bottleneck,
        "add_next": plan.advice,
    }


def plan_text(shape: ModelShape, load: RolloutWorkload, cluster: Cluster, plan: CapacityPlan) -> str:
    memory, step, environments = plan.memory, plan.step, cluster.environments
    parts = sorted(step.busy_s.items(), key=lambda item: -item[1])
    used = memory.least + memory.kv_cache
    lines = [
        f"{shape.parameters / 1e9:.3g} B parameters{_bits(shape)} on {_devices(cluster)}, {environments} "
        f"environment {'process' if environments == 1 else 'processes'}, {load.batch_size} rollouts a step",
        f"memory      {used / GIB:.1f} of {memory.total / GIB:.0f} GiB a device: weights "
        f"{memory.weights / GIB:.1f}, adapter {memory.adapter / GIB:.1f}, activations "
        f"{memory.activations / GIB:.1f}, KV cache {memory.kv_cache / GIB:.1f} "
        f"({plan.sequences_at_once} sequences)",
        f"step        {significant(step.step_s, 3)} s: {significant(plan.rollouts_per_s, 3)} rollouts/s, "
        f"{plan.sampled_tokens_per_s:,.0f} sampled and {plan.trained_tokens_per_s:,.0f} trained tokens/s",
        "busy        "
        + ", ".join(f"{part} {significant(busy_s, 2)} s" for part, busy_s in parts if busy_s >= 0.001),
        f"bottleneck  {plan.bottleneck}",
        f"add next    {plan.advice}",
    ]
    return "\n".join([*lines, *_notes(shape, load, cluster, plan)])


def _bits(shape: ModelShape) -> str:
    return "" if shape.quantization is None else f" in {shape.quantization}"


def _devices(cluster: Cluster) -> str:
    if cluster.device.name == "cpu":
        return "two CPU cores" if cluster.replicas == 1 else f"{cluster.replicas} times two CPU cores"
    return f"{cluster.replicas} {cluster.device.name.upper()}"


def _ranks_note(shape: ModelShape, cluster: Cluster, load: RolloutWorkload) -> list[str]:
    """How many devices hold one copy together, if any number of them does."""
    for ranks in _RANKS:
        needed = rank_bytes(shape, cluster.device, load, ranks)
        if needed <= cluster.device.memory_bytes:
            return [
                f"With --tensor-parallel-size {ranks} each of {ranks} devices needs {needed / GIB:.0f} GiB "
                "at least; the seconds of such a group were not measured."
            ]
    return []


def _notes(shape: ModelShape, load: RolloutWorkload, cluster: Cluster, plan: CapacityPlan) -> list[str]:
    notes = []
    if not plan.memory.fits:
        notes.append("It does not fit: the engine would refuse to start, or a training call would fail.")
        if shape.quantization is None:
            notes.append("With --quantize nf4 or int8 the weights need less memory.")
            notes += _ranks_note(shape, cluster, load)
    if shape.assumed_from is not None:
        notes.append(
            f"Layers and widths are those of {shape.assumed_from}; give a folder to use the model's own."
        )
    if shape.quantization is not None:
        notes.append("Times of quantised models are from bytes read and written; no run was measured.")
    if not cluster.device.measured:
        notes.append("This GPU was not measured: the H200's figures are scaled by both data sheets.")
    return notes
