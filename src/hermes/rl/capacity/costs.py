"""Memory and time of one engine replica, for a workload: arithmetic without I/O.

A decode step reads the weights, keys and values, computes products and the operations between them, and has a
latency for every layer. A trained token takes 4 FLOP a parameter (the base model is frozen) and three times
those operations; the tokens of a group's prompt are computed once.
"""

from __future__ import annotations

from dataclasses import dataclass

from hermes.rl.capacity.hardware import DeviceSpeed
from hermes.rl.capacity.shapes import ModelShape

_BF16, _FP32 = 2, 4
_PASSES = 3
"""Operations between products: once forwards, twice backwards."""
_MAX_TRAIN_TOKENS = 65_536
"""Of a micro-batch on a GPU (engine/setup.py)."""
_ACTIVATION_SHARE, _KV_SHARE = 0.6, 0.5


@dataclass(frozen=True, slots=True)
class RolloutWorkload:
    """What one step of a run has to do."""

    batch_size: int = 512
    """Rollouts a step."""
    group_size: int = 16
    turns: float = 2.0
    """Model calls of a rollout."""
    prompt_tokens: int = 300
    """That the rollouts of a group have in common."""
    new_tokens: int = 48
    """Sampled in a rollout, all turns together."""
    tool_tokens: int = 0
    """Added by tools and the environment in a rollout."""
    length_spread: float = 1.5
    """The longest answer of a group over the mean one."""
    rank: int = 32
    off_policy_batches: int = 1
    """Batches that may be queued (env.max_batches_offpolicy)."""

    @property
    def groups(self) -> int:
        return max(1, self.batch_size // self.group_size)

    @property
    def sequence_tokens(self) -> int:
        return self.prompt_tokens + self.tool_tokens + self.new_tokens

    @property
    def computed_tokens(self) -> int:
        """Of one training step, prompts of groups counted once."""
        return self.groups * self.prompt_tokens + self.batch_size * (self.new_tokens + self.tool_tokens)


@dataclass(frozen=True, slots=True)
class ReplicaMemory:
    """Of one replica, in bytes."""

    weights: float
    adapter: float
    activations: float
    kv_cache: float
    runtime: float
    total: float
    """What the device has."""

    @property
    def least(self) -> float:
        """What has to fit, with a cache for one sequence."""
        return self.weights + self.adapter + self.activations + self.runtime

    @property
    def fits(self) -> bool:
        return self.least + self.kv_cache <= self.total


def decode_step_s(shape: ModelShape, device: DeviceSpeed, sequences: float, context_tokens: float) -> float:
    return (
        device.layer_latency_s * shape.layers
        + read_weights_s(shape, device)
        + sequences * context_tokens * shape.kv_bytes_per_token / device.attention_bytes_per_s
        + sequences * device.row_s
        + prefill_s(shape, device, sequences)
    )


def read_weights_s(shape: ModelShape, device: DeviceSpeed) -> float:
    """Of one pass over all layers. Quantised ones are read, written in bf16, and read again."""
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


def merge_s(shape: ModelShape, device: DeviceSpeed) -> float:
    """Writing a copy of the weights with a new adapter merged in; none is made of a quantised model."""
    if shape.quantization is not None:
        return 0.0
    return 2 * _BF16 * shape.parameters / device.read_bytes_per_s


def adapter_bytes(shape: ModelShape, rank: int) -> float:
    """Its weights in fp32, as they are handed over."""
    return _FP32 * shape.adapter_parameters(rank)


def replica_memory(
    shape: ModelShape, device: DeviceSpeed, load: RolloutWorkload, sequences: int
) -> ReplicaMemory:
    """`sequences`: sampled at once on this replica."""
    tokens = min(_MAX_TRAIN_TOKENS, max(load.sequence_tokens, load.computed_tokens))
    copies = device.weight_copies if shape.quantization is None else 1
    weights = copies * shape.weight_bytes
    state = _adapter_state(shape, load)
    kv_cache = sequences * load.sequence_tokens * float(shape.kv_bytes_per_token)
    free = max(0.0, device.memory_bytes - weights - state - device.runtime_bytes - kv_cache)
    full = tokens * float(shape.activation_bytes_per_token())
    least = load.sequence_tokens * float(shape.activation_bytes_per_token())
    activations = max(least, min(full, _ACTIVATION_SHARE * free))
    return ReplicaMemory(weights, state, activations, kv_cache, device.runtime_bytes, device.memory_bytes)


def _adapter_state(shape: ModelShape, load: RolloutWorkload) -> float:
    """Parameters, gradient, two moments, and the policies that are sampled while the next is handed over."""
    return (4 + 2 * 1.5) * adapter_bytes(shape, load.rank)


def rank_bytes(shape: ModelShape, device: DeviceSpeed, load: RolloutWorkload, ranks: int) -> float:
    """What a device needs at least where `ranks` divide one copy of the model (`--tensor-parallel-size`).

    Nothing is merged there. One device has the embedding and the LM head, whole.
    """
    ends = _BF16 * shape.embedding_parameters
    divided = shape.weight_bytes - ends + load.sequence_tokens * float(shape.kv_bytes_per_token)
    activations = load.sequence_tokens * float(shape.activation_bytes_per_token())
    return divided / ranks + ends + activations + _adapter_state(shape, load) + device.runtime_bytes


def sequences_that_fit(shape: ModelShape, device: DeviceSpeed, load: RolloutWorkload) -> int:
    """How many rollouts the KV cache of one replica holds at once."""
    base = replica_memory(shape, device, load, 0)
    room = _KV_SHARE * (base.total - base.weights - base.adapter - base.runtime)
    return max(0, int(room / (load.sequence_tokens * shape.kv_bytes_per_token)))
