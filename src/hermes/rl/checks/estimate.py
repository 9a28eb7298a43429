"""How long a run will take, and how much memory: from what was measured, or not at all.

An update is made with an engine like the run's own, on a group that it sampled. At a service that would cost
money, so there only the sampling is known. Memory is reckoned for a run on a CPU; a GPU's engine plans its
own, and a service has none of this machine's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hermes.rl.service import LOCAL_KEY
from hermes.training.schedule import parameters_of

if TYPE_CHECKING:
    from hermes.core import JSONObject
    from hermes.rl.config.resolve import Resolved

_PROCESSES_GB = 1.3
"""What engine, trainer, environment and API need with nothing in them."""
_TRAINED_AT_ONCE = 1024
"""Tokens of one training micro-batch on a CPU."""
_KNOWN_PARAMETERS, _KNOWN_ACTIVATIONS = 135e6, 322e3
"""Of one model: numbers that a token leaves for the way back. They grow as the square root of the size."""
_NOT_SAMPLED = -100


def update_seconds(url: str, model: str, resolved: Resolved, groups: Sequence[JSONObject]) -> float | None:
    """Of one sequence's part in an update, by the engine there; None: no group is short enough to try.

    The second of two equal updates counts: the first one also sets things up.
    """
    from hermes.training.data.correction import LossSpec
    from hermes.training.data.datums import weighted
    from hermes.training.service.client import AdapterClient, LoraSpec, ServiceConnection
    from hermes.training.service.token_meter import TokenMeter

    longest = resolved.values["tinker.max_token_trainer_length"]
    fitting = [group for group in groups if all(len(tokens) <= longest for tokens in group["tokens"])]
    if not fitting:
        return None
    pairs = zip(fitting[0]["tokens"], fitting[0]["masks"], strict=True)
    data = [weighted(tokens, [float(one != _NOT_SAMPLED) for one in mask]) for tokens, mask in pairs]
    wish = LoraSpec(model, resolved.values["tinker.lora_rank"])
    with (
        TemporaryDirectory() as counted,
        closing(TokenMeter(Path(counted))) as meter,
        AdapterClient(ServiceConnection(url, LOCAL_KEY), wish, meter) as trainee,
    ):
        for _ in range(2):
            begun_s = time.monotonic()
            trainee.forward_backward(data, LossSpec("cross_entropy", {}))
            trainee.optim_step(1e-6, 0.9, 0.95, 1.0)
            took_s = time.monotonic() - begun_s
    return took_s / len(data)


def estimate(resolved: Resolved, sampling_s: float, update_s: float | None, on_cpu: bool) -> JSONObject:
    """`sampling_s` and `update_s` are those of one sequence."""
    values = resolved.values
    step_s = (sampling_s + (update_s or 0.0)) * values["env.batch_size"]
    return {
        "seconds_per_step": round(step_s, 1),
        "hours": round(step_s * values["env.total_steps"] / 3600, 2),
        "update_share": None if update_s is None else round(update_s / (sampling_s + update_s), 2),
        "memory_gb": _memory_gb(resolved.model) if on_cpu else None,
    }


def _memory_gb(model: str) -> float:
    parameters: float = parameters_of(model) or 0.0
    activations = _KNOWN_ACTIVATIONS * (parameters / _KNOWN_PARAMETERS) ** 0.5
    needed: float = _PROCESSES_GB + 4 * (parameters + _TRAINED_AT_ONCE * activations) / 1e9
    return round(needed, 2)
