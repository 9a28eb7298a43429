"""Plans a run before it is paid for: memory, seconds a step, tokens/s, the bottleneck, and what to add next.

Everything is arithmetic over constants that were measured on one H200 and on two cores of a Xeon. A decode
step reads the weights, keys and values, computes products and the operations between them, and has a latency
for every layer. A trained token takes 4 FLOP a parameter (the base model is frozen) and three times those
operations; the tokens of a group's prompt are computed once. The parts of a step overlap, so the slowest one
is the step: the environments, the replicas (which sample and train), or the trainer.

docs/scale.md compares the plan with the runs that were made. What it cannot know, the time of an environment
and the length of its answers, is an argument. It leaves out failures, evaluations, checkpoints, and cores
that processes have to share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from hermes.errors import UsageError
from hermes.rl.model_shape import ModelShape

_GIB = float(2**30)
_BF16, _FP32 = 2, 4
_PASSES = 3
"""Operations between products: once forwards, twice backwards."""
_MAX_TRAIN_TOKENS = 65_536
"""The largest micro-batch on a GPU (engine/setup.py)."""
_ACTIVATION_SHARE, _KV_SHARE = 0.6, 0.5
_LENGTH_SPREAD = 1.5
"""The longest answer over the mean one: so many more decode steps, with so many fewer sequences in each."""
_CHAINS = (
    ("environment",),
    ("front",),
    ("api",),
    ("sampling", "training"),
    ("trainer", "training", "hand-over"),
)
"""Parts of a step that wait for each other. Chains overlap, so the slowest one is the step."""
_DOES_NOT_FIT = "a device with more memory, a smaller model, or fewer tokens a rollout: it does not fit"
_RANKS = (2, 4, 8, 16, 32, 64)
"""Sizes of --tensor-parallel-size that are tried for a model that does not fit on one device."""


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """The rates of a device."""

    name: str
    memory_bytes: float
    read_bytes_per_s: float
    """At which weights are read."""
    attention_bytes_per_s: float
    """At which keys and values are read."""
    flop_per_s: float
    """The rate of large matrix products while prompts are computed."""
    train_flop_per_s: float
    """The same in forward and backward passes."""
    layer_latency_s: float
    """The time of one layer of a decode step, however few the sequences."""
    adapter_latency_s: float
    """The time that an adapter adds to that."""
    row_s: float
    """The time of drawing and bookkeeping for one sequence of a decode step."""
    element_s: float
    """The time of what is no matrix product: for a token, per layer and hidden unit, one way."""
    sequence_s: float
    """The time of planning and bookkeeping for one sequence of a training call."""
    weight_copies: int
    """Copies of the base model in memory: one to train, others laid out or merged for sampling."""
    runtime_bytes: float
    measured: bool = True


H200 = DeviceSpeed(
    name="h200",
    memory_bytes=139 * _GIB,
    read_bytes_per_s=4.3e12,
    attention_bytes_per_s=0.78 * 4.3e12,
    flop_per_s=790e12,
    train_flop_per_s=790e12,
    layer_latency_s=32e-6,
    adapter_latency_s=20e-6,
    row_s=0.8e-6,
    element_s=2.1e-11,
    sequence_s=77e-6,
    weight_copies=1,
    runtime_bytes=3 * _GIB,
)
"""docs/benchmarks.md, "Engine": memory and product speed, attention at 78 % of its speed. The latency is that
of batch 1 without an adapter (1,020 and 196 tokens/s), an adapter's is from
docs/results/many-policies-h200.json, and the row's cost is what is left of 512 sequences. `element_s` and
`sequence_s` are the least squares over the four training measurements of docs/results/engine-h200.json and
engine-h200-8b.json."""

XEON_2_CORES = DeviceSpeed(
    name="cpu",
    memory_bytes=8 * _GIB,
    read_bytes_per_s=6.3e9,
    attention_bytes_per_s=12e9,
    flop_per_s=0.40e12,
    train_flop_per_s=0.18e12,
    layer_latency_s=0.0,
    adapter_latency_s=0.0,
    row_s=1.8e-3,
    element_s=0.0,
    sequence_s=0.0,
    weight_copies=3,
    runtime_bytes=0.7 * _GIB,
)
"""docs/benchmarks.md, "CPU": the Xeon's two cores in bf16 with the bundled model. Batch 1 decodes 23.3
tokens/s, 64 sequences 289, prefill computes 1,488 tokens/s, and four groups of 8 (2,464 computed tokens) are
trained in 7.4 s."""

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
    """The measured H200, or its constants scaled by both data sheets. UsageError: unknown."""
    if gpu not in _DATASHEETS:
        raise UsageError(f"there are no figures for the GPU '{gpu}'", f"use one of {', '.join(_DATASHEETS)}")
    memory, bandwidth, flop = _DATASHEETS[gpu]
    _, known_bandwidth, known_flop = _DATASHEETS[H200.name]
    reads, computes = bandwidth / known_bandwidth, flop / known_flop
    if gpu == H200.name:
        return H200
    return replace(
        H200,
        name=gpu,
        memory_bytes=0.97 * memory,
        read_bytes_per_s=H200.read_bytes_per_s * reads,
        attention_bytes_per_s=H200.attention_bytes_per_s * reads,
        flop_per_s=H200.flop_per_s * computes,
        train_flop_per_s=H200.train_flop_per_s * computes,
        element_s=H200.element_s / reads,
        measured=False,
    )


@dataclass(frozen=True, slots=True)
class HostSpeed:
    """The cost of the processes around the device, in seconds of one core."""

    call_s: float = 5.1e-3
    """An environment process, for one model call of a rollout: one process took 6.2 s for 512 rollouts of 2.3
    calls."""
    front_s: float = 0.34e-3
    """The engine's HTTP loop, for one request (docs/benchmarks.md, "HTTP")."""
    request_s: float = 1.1e-3
    """The interpreter of the thread that computes, for one request. This and `token_s` are fitted to the
    quickstart and to one run of function calling on an H200: no benchmark measures them alone."""
    token_s: float = 10e-6
    """The same, for one sampled token."""
    post_s: float = 1.8e-3
    """The trajectory API, for one group (docs/trajectory-api.md, 1.6 to 2.1 ms)."""
    trained_sequence_s: float = 1.4e-3
    """Trainer and engine outside the device, for one sequence of a step: reading, packing, protobuf, metrics.
    The quickstart's steps on an H200 took 0.92 s on average, of which the device needs 0.1."""
    link_bytes_per_s: float = 1.0e9
    """Adapter bytes between the engine's front and a worker."""


HOST = HostSpeed()


@dataclass(frozen=True, slots=True)
class Cluster:
    device: DeviceSpeed
    replicas: int = 1
    """Engine replicas, one a device."""
    environments: int = 1
    """Environment processes."""
    host: HostSpeed = HOST


@dataclass(frozen=True, slots=True)
class RolloutWorkload:
    """The work of one step of a run."""

    batch_size: int = 512
    """Rollouts a step."""
    group_size: int = 16
    turns: float = 2.0
    """Model calls of a rollout."""
    prompt_tokens: int = 300
    """Tokens that the rollouts of a group have in common."""
    new_tokens: int = 48
    """Sampled in a rollout, all turns together."""
    tool_tokens: int = 0
    """Added by tools and the environment in a rollout."""
    rank: int = 32

    @property
    def groups(self) -> int:
        return max(1, self.batch_size // self.group_size)

    @property
    def sequence_tokens(self) -> int:
        return self.prompt_tokens + self.tool_tokens + self.new_tokens

    @property
    def computed_tokens(self) -> int:
        """The tokens of one training step, prompts of groups counted once."""
        return self.groups * self.prompt_tokens + self.batch_size * (self.new_tokens + self.tool_tokens)


@dataclass(frozen=True, slots=True)
class ReplicaMemory:
    """The memory that one replica needs, in bytes."""

    weights: float
    adapter: float
    activations: float
    kv_cache: float
    runtime: float
    total: float
    """The memory of the device."""

    @property
    def used(self) -> float:
        return self.weights + self.adapter + self.activations + self.runtime + self.kv_cache

    @property
    def fits(self) -> bool:
        return self.used <= self.total


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    memory: ReplicaMemory
    sequences_at_once: int
    """On one replica."""
    decode_tokens_per_s: float
    """The rate of one replica while that many sequences decode."""
    busy_s: Mapping[str, float]
    """Seconds that the busiest process or device of each part works in a step."""
    step_s: float
    bottleneck: str
    """environment, front, api, sampling, training, trainer or hand-over."""
    advice: str


def plan_capacity(shape: ModelShape, load: RolloutWorkload, cluster: Cluster) -> CapacityPlan:
    at_once = _sequences_at_once(shape, load, cluster)
    memory = replica_memory(shape, cluster.device, load, at_once)
    busy_s = busy_seconds(shape, load, cluster)
    return CapacityPlan(
        memory=memory,
        sequences_at_once=at_once,
        decode_tokens_per_s=at_once / decode_step_s(shape, cluster.device, at_once, _mean_context(load)),
        busy_s=busy_s,
        step_s=step_seconds(busy_s),
        bottleneck=max(_slowest_chain(busy_s), key=lambda part: busy_s[part]),
        advice=_advice(shape, load, cluster) if memory.fits else _DOES_NOT_FIT,
    )


def busy_seconds(shape: ModelShape, load: RolloutWorkload, cluster: Cluster) -> dict[str, float]:
    """Seconds that the busiest process or device of each part works in a step."""
    device, host, replicas = cluster.device, cluster.host, cluster.replicas
    share = 1 / replicas
    calls = load.batch_size * load.turns
    sampled_tokens = load.batch_size * load.new_tokens
    # One engine process has one interpreter for HTTP and for the thread that computes; replicas have a front.
    interpreter_s = share * (calls * host.request_s + sampled_tokens * host.token_s)
    front_s = calls * host.front_s
    if replicas == 1:
        interpreter_s, front_s = interpreter_s + front_s, 0.0
    copies = 2 * (replicas - 1) * adapter_bytes(shape, load.rank)
    return {
        "environment": calls * host.call_s / cluster.environments,
        "front": front_s,
        "sampling": interpreter_s + _generate_s(shape, load, cluster),
        "api": load.groups * host.post_s,
        "trainer": load.batch_size * host.trained_sequence_s,
        "training": train_s(shape, device, load.computed_tokens * share, load.batch_size * share),
        "hand-over": copies / host.link_bytes_per_s,
    }


def step_seconds(busy_s: Mapping[str, float]) -> float:
    """The slowest of what can only be done one after another."""
    return sum(busy_s[part] for part in _slowest_chain(busy_s))


def _slowest_chain(busy_s: Mapping[str, float]) -> Sequence[str]:
    return max(_CHAINS, key=lambda chain: sum(busy_s[part] for part in chain))


def _generate_s(shape: ModelShape, load: RolloutWorkload, cluster: Cluster) -> float:
    """Prefill and decode of one replica's share of a batch; what does not fit into the cache waits."""
    device, at_once = cluster.device, _sequences_at_once(shape, load, cluster)
    added = (load.groups * load.prompt_tokens + load.batch_size * load.tool_tokens) / cluster.replicas
    waves = -(-load.batch_size // (cluster.replicas * at_once))
    running = load.batch_size / (cluster.replicas * waves * _LENGTH_SPREAD)
    step_s = decode_step_s(shape, device, running, _mean_context(load))
    return prefill_s(shape, device, added) + waves * _LENGTH_SPREAD * load.new_tokens * step_s


def _mean_context(load: RolloutWorkload) -> float:
    return load.prompt_tokens + (load.tool_tokens + load.new_tokens) / 2


def decode_step_s(
    shape: ModelShape,
    device: DeviceSpeed,
    sequences: float,
    context_tokens: float,
    *,
    has_adapter: bool = True,
) -> float:
    return (
        (device.layer_latency_s + has_adapter * device.adapter_latency_s) * shape.layers
        + _read_weights_s(shape, device)
        + sequences * context_tokens * shape.kv_bytes_per_token / device.attention_bytes_per_s
        + sequences * device.row_s
        + prefill_s(shape, device, sequences)
    )


def _read_weights_s(shape: ModelShape, device: DeviceSpeed) -> float:
    """The time of one pass over all layers. Quantised ones are read, written in bf16, and read again."""
    if shape.quantization is None:
        return _BF16 * shape.parameters / device.read_bytes_per_s
    layers = shape.parameters - shape.embedding_parameters
    return (shape.weight_bytes + 2 * _BF16 * layers) / device.read_bytes_per_s


def prefill_s(shape: ModelShape, device: DeviceSpeed, tokens: float) -> float:
    products = 2 * shape.parameters * tokens / device.flop_per_s
    return products + tokens * shape.layers * shape.hidden * device.element_s


def train_s(shape: ModelShape, device: DeviceSpeed, computed_tokens: float, sequences: float) -> float:
    """Forward, backward and the optimizer's step of one replica's share."""
    products = 4 * shape.parameters * computed_tokens / device.train_flop_per_s
    between = _PASSES * computed_tokens * shape.layers * shape.hidden * device.element_s
    return products + between + sequences * device.sequence_s


def adapter_bytes(shape: ModelShape, rank: int) -> float:
    """Its weights in fp32, as they are handed over."""
    return _FP32 * shape.adapter_parameters(rank)


def replica_memory(
    shape: ModelShape, device: DeviceSpeed, load: RolloutWorkload, sequences: int
) -> ReplicaMemory:
    """`sequences`: sampled at once on this replica."""
    tokens = min(_MAX_TRAIN_TOKENS, max(load.sequence_tokens, load.computed_tokens))
    weights = shape.weight_bytes * (device.weight_copies if shape.quantization is None else 1)
    state = _adapter_state_bytes(shape, load)
    kv_cache = sequences * load.sequence_tokens * float(shape.kv_bytes_per_token)
    free = max(0.0, device.memory_bytes - weights - state - device.runtime_bytes - kv_cache)
    full = tokens * float(shape.activation_bytes_per_token())
    least = load.sequence_tokens * float(shape.activation_bytes_per_token())
    activations = max(least, min(full, _ACTIVATION_SHARE * free))
    return ReplicaMemory(weights, state, activations, kv_cache, device.runtime_bytes, device.memory_bytes)


def _adapter_state_bytes(shape: ModelShape, load: RolloutWorkload) -> float:
    """Parameters, gradient, two moments, and the policies that are sampled while the next is handed over."""
    return (4 + 2 * 1.5) * adapter_bytes(shape, load.rank)


def _sequences_at_once(shape: ModelShape, load: RolloutWorkload, cluster: Cluster) -> int:
    """How many rollouts one replica samples at once: its share of the batch, or what its KV cache holds."""
    base = replica_memory(shape, cluster.device, load, 0)
    room = _KV_SHARE * (base.total - base.weights - base.adapter - base.runtime)
    fitting = int(room / (load.sequence_tokens * shape.kv_bytes_per_token))
    return max(1, min(-(-load.batch_size // cluster.replicas), fitting))


def ranks_that_fit(shape: ModelShape, device: DeviceSpeed, load: RolloutWorkload) -> tuple[int, float] | None:
    """(`--tensor-parallel-size`, bytes a device) of the smallest group of devices that holds the model.

    One of them has the embedding and the LM head, whole.
    """
    ends = _BF16 * shape.embedding_parameters
    divided = shape.weight_bytes - ends + load.sequence_tokens * float(shape.kv_bytes_per_token)
    activations = load.sequence_tokens * float(shape.activation_bytes_per_token())
    whole = ends + activations + _adapter_state_bytes(shape, load) + device.runtime_bytes
    sizes = ((ranks, divided / ranks + whole) for ranks in _RANKS)
    return next(((ranks, needed) for ranks, needed in sizes if needed <= device.memory_bytes), None)


def _advice(shape: ModelShape, load: RolloutWorkload, cluster: Cluster) -> str:
    step_s = step_seconds(busy_seconds(shape, load, cluster))
    environments, replicas = 2 * cluster.environments, 2 * cluster.replicas
    options = {
        f"{environments} environment processes (env_replicas)": replace(cluster, environments=environments),
        f"{replicas} engine replicas (engine_replicas)": replace(cluster, replicas=replicas),
    }
    steps_s = {text: step_seconds(busy_seconds(shape, load, larger)) for text, larger in options.items()}
    best = min(steps_s, key=lambda text: steps_s[text])
    if steps_s[best] > 0.9 * step_s:
        return "nothing of these: twice the environments or replicas would save under 10 % of a step"
    return f"{best}: a step would take {steps_s[best]:.3g} s"
