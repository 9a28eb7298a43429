"""The contents of /status and the gauges of /metrics. Pure: time is an argument."""

from __future__ import annotations

from hermes.core.json import JSONObject
from hermes.rollouts.service import TrajectoryService


def status(service: TrajectoryService, now_s: float) -> JSONObject:
    """`current_step` and `queue_size` for Atropos's clients; the rest for people."""
    state, metrics = service.state, service.metrics
    oldest = state.queue.oldest()
    lost = [lease for lease in state.leases.values() if lease.waiting]
    waiting_s = service.trainer_wait.seconds(now_s)
    return {
        "current_step": state.step,
        "queue_size": state.queue.groups,
        "registered": state.registration is not None,
        "started": state.started,
        "queue": {
            "groups": state.queue.groups,
            "sequences": state.queue.sequences,
            "bytes": state.queue.bytes,
            "oldest_age_s": round(max(0.0, now_s - oldest.received_s), 3) if oldest else None,
            "set_aside_groups": state.set_aside(),
            "buffered_groups": sum(len(buffer.parts) for buffer in state.buffers.values()),
        },
        "leases": {"outstanding": len(state.leases) - len(lost), "lost": len(lost)},
        "trainer": {"waiting_s": None if waiting_s is None else round(waiting_s, 3)},
        "rates_per_s": {
            "groups": round(metrics.groups.per_second(now_s), 3),
            "sequences": round(metrics.sequences.per_second(now_s), 3),
            "batches": round(metrics.batches.per_second(now_s), 3),
        },
        "envs": [
            {
                "env_id": env.id,
                "wandb_name": env.wandb_name,
                "connected": env.connected,
                "last_seen_age_s": round(max(0.0, now_s - env.last_seen_s), 3),
            }
            for env in state.envs.values()
        ],
    }


def gauges(service: TrajectoryService, now_s: float) -> dict[str, float]:
    state = service.state
    queue = status(service, now_s)["queue"]
    return {
        "step": float(state.step),
        "queue_groups": float(state.queue.groups),
        "queue_sequences": float(state.queue.sequences),
        "queue_bytes": float(state.queue.bytes),
        "queue_oldest_age_seconds": float(queue["oldest_age_s"] or 0.0),
        "set_aside_groups": float(queue["set_aside_groups"]),
        "buffered_groups": float(queue["buffered_groups"]),
        "kept_groups": float(state.kept_groups),
        "kept_bytes": float(state.kept_bytes),
        "leases_outstanding": float(sum(not lease.waiting for lease in state.leases.values())),
        "leases_lost": float(sum(lease.waiting for lease in state.leases.values())),
        "envs_connected": float(sum(env.connected for env in state.envs.values())),
        **service.journal.figures(),
    }
