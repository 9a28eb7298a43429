"""Plans a run before it is paid for: memory, seconds a step, tokens/s, the bottleneck, and what to add next.

`plan_capacity` is pure: constants of `hardware`, arithmetic of `costs`, and the simulation. docs/scale.md
compares it with the runs that were made. What it cannot know, the time of an environment and the length of
its answers, is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hermes.rl.capacity.costs import (
    ReplicaMemory,
    RolloutWorkload,
    adapter_bytes,
    decode_step_s,
    merge_s,
    prefill_s,
    replica_memory,
    sequences_that_fit,
    train_s,
)
from hermes.rl.capacity.hardware import HOST, DeviceSpeed, HostSpeed
from hermes.rl.capacity.shapes import ModelShape
from hermes.rl.capacity.simulate import FleetSize, RunSimulation, SimulatedStep, StageTimes

_SIMULATED_REPLICAS = 4
"""Of more, every k-th replica is simulated, and what all share takes k times as long for each group."""


@dataclass(frozen=True, slots=True)
class Cluster:
    device: DeviceSpeed
    replicas: int = 1
    """Engine replicas, one a device."""
    environments: int = 1
    """Environment processes."""
    host: HostSpeed = HOST


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    memory: ReplicaMemory
    sequences_at_once: int
    """On one replica."""
    step: SimulatedStep
    bottleneck: str
    """environment, front, api, sampling, training, trainer or hand-over."""
    rollouts_per_s: float
    sampled_tokens_per_s: float
    trained_tokens_per_s: float
    """Tokens of the sequences, prompts counted in each."""
    advice: str


def plan_capacity(shape: ModelShape, load: RolloutWorkload, cluster: Cluster) -> CapacityPlan:
    at_once = min(-(-load.batch_size // cluster.replicas), sequences_that_fit(shape, cluster.device, load))
    memory = replica_memory(shape, cluster.device, load, max(1, at_once))
    step = simulate_step(shape, load, cluster)
    bottleneck = max(step.busy_s, key=lambda part: step.busy_s[part])
    plan = CapacityPlan(
        memory=memory,
        sequences_at_once=at_once,
        step=step,
        bottleneck=bottleneck,
        rollouts_per_s=load.batch_size / step.step_s,
        sampled_tokens_per_s=load.batch_size * load.new_tokens / step.step_s,
        trained_tokens_per_s=load.batch_size * load.sequence_tokens / step.step_s,
        advice="",
    )
    return replace(plan, advice=_advice(shape, load, cluster, plan))


def simulate_step(shape: ModelShape, load: RolloutWorkload, cluster: Cluster) -> SimulatedStep:
    slice_of = max(1, cluster.replicas // _SIMULATED_REPLICAS)
    times = stage_times(shape, load, cluster, slice_of)
    groups = max(1, load.groups // slice_of)
    environments = max(1, cluster.environments // slice_of)
    fleet = FleetSize(
        replicas=cluster.replicas // slice_of,
        environments=environments,
        groups=groups,
        queue_groups=groups * load.off_policy_batches,
        groups_per_environment=max(1, -(-groups // environments)),
    )
    return RunSimulation(times, fleet).run()


def stage_times(shape: ModelShape, load: RolloutWorkload, cluster: Cluster, slice_of: int = 1) -> StageTimes:
    """`slice_of`: how many times larger the whole is than what is simulated."""
    device, host, size = cluster.device, cluster.host, load.group_size
    turns = max(1, round(load.turns))
    context = load.prompt_tokens + (load.tool_tokens + load.new_tokens) / 2
    limit = max(1, sequences_that_fit(shape, device, load))

    def decode_s(groups: int) -> float:
        waves = -(-groups * size // limit)  # what does not fit into the cache waits for what does
        return waves * decode_step_s(shape, device, groups * size / waves, context)

    # One engine process has one interpreter for HTTP and for the thread that computes; replicas have a front.
    front_s, interpreter_s = (
        size * host.front_s * load.turns,
        size * (host.request_s * load.turns + host.token_s * load.new_tokens),
    )
    if cluster.replicas == 1:
        front_s, interpreter_s = 0.0, front_s + interpreter_s
    added = load.prompt_tokens + load.tool_tokens * size
    share = 1 / cluster.replicas
    copies = 2 * (cluster.replicas - 1) * adapter_bytes(shape, load.rank)
    return StageTimes(
        env_turn_s=size * host.call_s * load.turns / turns,
        front_turn_s=slice_of * front_s / turns,
        turns=turns,
        decode_steps=load.length_spread * load.new_tokens / turns,
        prefill_s=(prefill_s(shape, device, added) + interpreter_s) / turns,
        decode_s=decode_s,
        post_s=slice_of * host.post_s,
        host_s=load.batch_size * host.trained_sequence_s,
        train_s=train_s(shape, device, load.computed_tokens * share, load.batch_size * share),
        handover_s=merge_s(shape, device) + copies / host.link_bytes_per_s,
        turn_gap_s=host.turn_s,
    )


def _advice(shape: ModelShape, load: RolloutWorkload, cluster: Cluster, plan: CapacityPlan) -> str:
    if not plan.memory.fits:
        return "a device with more memory, a smaller model, or fewer tokens a rollout: it does not fit"
    options = {
        f"{2 * cluster.environments} environment processes (env_replicas)": replace(
            cluster, environments=2 * cluster.environments
        ),
        f"{2 * cluster.replicas} engine replicas (engine_replicas)": replace(
            cluster, replicas=2 * cluster.replicas
        ),
    }
    gains = {
        text: 1 - simulate_step(shape, load, larger).step_s / plan.step.step_s
        for text, larger in options.items()
    }
    best = max(gains, key=lambda text: gains[text])
    if gains[best] < 0.1:
        return "nothing of these: twice the environments or replicas would save under 10 % of a step"
    return f"{best}: a step would take {significant(plan.step.step_s * (1 - gains[best]), 3)} s"


def significant(value: float, digits: int) -> str:
    """The number with so many significant digits; below a million without an exponent: 130, not 1.3e+02."""
    return f"{float(f'{value:.{digits}g}'):,g}"
