"""What each metric of the engine's `/metrics` means: the HELP lines, and the page of metrics in the docs."""

from __future__ import annotations

PREFIX = "hermes_engine_"
HELP = {
    "adapters": "LoRA adapters in memory that can be trained.",
    "policies": "Frozen copies of adapters in memory that can be sampled.",
    "training_waiting": "Training calls that are not finished.",
    "sampling_waiting": "Samples that wait for a slot in the KV cache.",
    "sampling_running": "Samples that are being generated.",
    "prompt_tokens_total": "Prompt tokens received; a prompt counts once for all samples of its request.",
    "cached_tokens_total": "Prompt tokens that were read from the prefix cache.",
    "sampled_tokens_total": "Tokens that were sampled.",
    "trained_tokens_total": "Tokens that went through a forward and backward pass.",
    "optimizer_steps_total": "Optimizer steps over all adapters.",
    "kv_tokens": "Size of the KV cache, in tokens.",
    "kv_tokens_used": "Tokens of the KV cache that running sequences and cached prefixes take.",
    "base_bytes": "Memory of the base model's weights.",
    "adapter_bytes": "Memory of the adapters and their optimizer state.",
    "policy_bytes": "Memory of the frozen policies.",
    "sampling_seconds_total": "Time that the compute thread spent on sampling.",
    "training_seconds_total": "Time that the compute thread spent on training.",
    "sessions": "Open sessions of Tinker clients.",
    "models": "Adapters that the open sessions own.",
    "samplers": "Samplers that the open sessions own.",
    "calls_pending": "Tinker calls whose result was not fetched yet.",
    "polls_held": "Requests that wait for such a result.",
    "checkpoints": "Checkpoints on disk.",
}
