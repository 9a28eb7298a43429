"""What a device does in a second, from measurements, and what it is scaled by where nothing was measured.

Two devices were measured: one H200 and two cores of a Xeon. Other GPUs have the H200's constants scaled by
the memory speed and the dense bf16 speed of their data sheets; `measured` is False for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from hermes.errors import UsageError

GIB = float(2**30)


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    name: str
    memory_bytes: float
    read_bytes_per_s: float
    """At which weights are read."""
    attention_bytes_per_s: float
    """At which keys and values are read."""
    flop_per_s: float
    """Of large matrix products while prompts are computed."""
    train_flop_per_s: float
    """The same in forward and backward passes."""
    layer_latency_s: float
    """Of one layer of a decode step, however few the sequences."""
    row_s: float
    """Of drawing and bookkeeping for one sequence of a decode step."""
    element_s: float
    """Of the operations that are no matrix products: for a token, per layer and hidden unit, one way."""
    sequence_s: float
    """Of planning and bookkeeping for one sequence of a training call."""
    weight_copies: int
    """Copies of the base model in memory: one to train, others laid out or merged for sampling."""
    runtime_bytes: float
    measured: bool = True


H200 = DeviceSpeed(
    name="h200",
    memory_bytes=139 * GIB,
    read_bytes_per_s=4.3e12,
    attention_bytes_per_s=0.78 * 4.3e12,
    flop_per_s=790e12,
    train_flop_per_s=790e12,
    layer_latency_s=32e-6,
    row_s=0.8e-6,
    element_s=2.1e-11,
    sequence_s=77e-6,
    weight_copies=2,
    runtime_bytes=3 * GIB,
)
"""docs/benchmarks.md, "Engine": memory and product speed, attention at 78 % of its speed; the latency
is that of batch 1 (1,020 and 196 tokens/s), the row's cost what is left of 512 sequences; `element_s` and
`sequence_s` are the least squares over the four training measurements of docs/results/engine-h200.json and
engine-h200-8b.json."""

XEON_2_CORES = DeviceSpeed(
    name="cpu",
    memory_bytes=8 * GIB,
    read_bytes_per_s=6.3e9,
    attention_bytes_per_s=12e9,
    flop_per_s=0.40e12,
    train_flop_per_s=0.18e12,
    layer_latency_s=0.0,
    row_s=1.8e-3,
    element_s=0.0,
    sequence_s=0.0,
    weight_copies=3,
    runtime_bytes=0.7 * GIB,
)
"""docs/benchmarks.md, "CPU": the Xeon's two cores in bf16 with the bundled model. Batch 1 decodes 23.3
tokens/s, 64 sequences 289, prefill computes 1,488 tokens/s, and four groups of 8 (2,464 computed
tokens) are trained in 7.4 s."""

_DATASHEETS = MappingProxyType(
    {
        "h200": (141e9, 4.8e12, 989e12),
        "h100": (80e9, 3.35e12, 989e12),
        "b200": (180e9, 8.0e12, 2250e12),
        "a100": (80e9, 2.04e12, 312e12),
        "l40s": (48e9, 0.864e12, 362e12),
        "l4": (24e9, 0.3e12, 121e12),
        "rtx4090": (24e9, 1.008e12, 165e12),
    }
)
"""Bytes of memory, bytes/s and dense bf16 FLOP/s, as published by the vendor."""


def device_speed(gpu: str) -> DeviceSpeed:
    """The measured H200, or its constants scaled to another GPU. UsageError: unknown."""
    if gpu == H200.name:
        return H200
    if gpu not in _DATASHEETS:
        raise UsageError(f"there are no figures for the GPU '{gpu}'", f"use one of {', '.join(_DATASHEETS)}")
    memory, bandwidth, flop = _DATASHEETS[gpu]
    _, known_bandwidth, known_flop = _DATASHEETS[H200.name]
    reads, computes = bandwidth / known_bandwidth, flop / known_flop
    return DeviceSpeed(
        name=gpu,
        memory_bytes=0.97 * memory,
        read_bytes_per_s=H200.read_bytes_per_s * reads,
        attention_bytes_per_s=H200.attention_bytes_per_s * reads,
        flop_per_s=H200.flop_per_s * computes,
        train_flop_per_s=H200.train_flop_per_s * computes,
        layer_latency_s=H200.layer_latency_s,
        row_s=H200.row_s,
        element_s=H200.element_s / reads,
        sequence_s=H200.sequence_s,
        weight_copies=H200.weight_copies,
        runtime_bytes=H200.runtime_bytes,
        measured=False,
    )


@dataclass(frozen=True, slots=True)
class HostSpeed:
    """What the processes around the device cost, in seconds of one core."""

    call_s: float = 5.1e-3
    """An environment process, for one model call of a rollout: one process took 6.2 s for 512 rollouts of 2.3
    calls."""
    front_s: float = 0.34e-3
    """The engine's HTTP loop, for one request (docs/benchmarks.md, "HTTP")."""
    request_s: float = 0.86e-3
    """The interpreter of the thread that computes, for one request. This and `token_s` are fitted to the
    quickstart and to one run of function calling on an H200: no benchmark measures them alone."""
    token_s: float = 8e-6
    """The same, for one sampled token."""
    post_s: float = 1.8e-3
    """The trajectory API, for one group (docs/trajectory-api.md, 1.6 to 2.1 ms)."""
    trained_sequence_s: float = 1.4e-3
    """Trainer and engine outside the device, for one sequence of a step: reading, packing, protobuf, metrics.
    The quickstart's steps on an H200 took 0.92 s on average, of which the device needs 0.1."""
    turn_s: float = 0.1
    """Between two looks of an environment at the queue (envs/modes/serve.py)."""
    link_bytes_per_s: float = 1.0e9
    """Adapter bytes between the engine's front and a worker."""


HOST = HostSpeed()
