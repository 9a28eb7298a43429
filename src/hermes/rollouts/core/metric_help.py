"""What each metric of the API's `/metrics` means: the HELP lines, and the page of metrics in the docs."""

from __future__ import annotations

PREFIX = "hermes_rollouts_"
HELP = {
    "requests_total": "Requests, by path and status.",
    "groups_received_total": "Groups that environments posted.",
    "posts_refused_total": "Posts that were refused, by reason: the queue is full, or a group is held.",
    "batches_served_total": "Batches that trainers took, redelivered ones included.",
    "batches_redelivered_total": "Batches that were served again under their lease.",
    "batches_lost_total": "Batches whose connection broke before they had arrived.",
    "step": "The step of the run: where it started, plus the batches that were formed.",
    "queue_groups": "Groups that wait for a trainer.",
    "queue_sequences": "Sequences in those groups.",
    "queue_bytes": "Size of those groups.",
    "queue_oldest_age_seconds": "Age of the oldest group that waits; 0 if none does.",
    "set_aside_groups": "Queued groups whose size fits no batch of the trainer.",
    "buffered_groups": "Parts of groups that wait for the rest of their group.",
    "kept_groups": "Groups that are buffered, queued or leased.",
    "kept_bytes": "Size of those groups.",
    "leases_outstanding": "Batches that a trainer has taken and not acknowledged.",
    "leases_lost": "Batches that wait to be served again.",
    "envs_connected": "Environments that are connected.",
    "log_bytes": "Size of the log on disk; only with --state-dir.",
    "log_segments": "Files of the log.",
    "log_flushes_total": "Flushes of the log to disk.",
    "log_flush_seconds_total": "Time that those flushes took.",
}
